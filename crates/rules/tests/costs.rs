//! What one part of an operator costs: FLOPs, bytes, and what is kept.

use rules::Cost;
use rules::families::{cost_of, local_of};

use crate::support::{graph, part, rule, view};

/// The cost of a part; an operator without a rule is whole.
fn cost(inputs: &str, op: &str, split: &str) -> Cost {
    let graph = graph(inputs, op);
    let rule = rule(&graph).expect("it has a rule");
    let part = part(&rule, split);
    let local = local_of(view(&graph), &rule, &part);
    cost_of(view(&graph), Some(&rule), &part, &local, &graph.needs_grad())
}

/// FLOPs forward and of each gradient, bytes read and written forward and backward, what is kept.
fn check(inputs: &str, op: &str, split: &str, expect: &str) {
    let cost = cost(inputs, op, split);
    let kept = &cost.kept;
    let found = format!(
        "{} {:?}, {} {}, {} {}, {:?} {:?} {}",
        cost.flops,
        cost.gradients,
        cost.forward.read,
        cost.forward.written,
        cost.backward.read,
        cost.backward.written,
        kept.inputs,
        kept.outputs,
        kept.more
    );
    assert_eq!(found, expect, "\n{inputs}\n{op}\n{split}");
}

const LINEAR: (&str, &str) =
    ("param x f32[2,8]; param w f32[4,8]; param b f32[4]", "%y f32[2,4] = aten.linear.default(%x, %w, %b)");

#[test]
fn a_product_costs_by_the_sizes_of_its_part() {
    let (inputs, op) = LINEAR;
    check(inputs, op, "", "128 [128, 128, 0], 208 32, 224 208, [0, 1] [] 0");
    check(inputs, op, "n 0..1", "32 [32, 32, 0], 100 8, 104 100, [0, 1] [] 0");
    let (inputs, op) =
        ("b f32[4]; param x f32[2,8]; param w f32[8,4]", "%y f32[2,4] = aten.addmm.default(%b, %x, %w)");
    check(inputs, op, "k 0..2", "32 [0, 32, 32], 64 32, 80 48, [1, 2] [] 0");
    // The bias belongs to another part.
    check(inputs, op, "k 2..8", "96 [0, 96, 96], 144 32, 176 144, [1, 2] [] 0");
}

#[test]
fn only_what_a_gradient_needs_is_kept() {
    let frozen = "x f32[2,8]; param w f32[4,8]; b f32[4]";
    check(frozen, LINEAR.1, "", "128 [0, 128, 0], 208 32, 96 128, [0] [] 0");
    check("x f32[2,8]; w f32[4,8]; b f32[4]", LINEAR.1, "", "128 [0, 0, 0], 208 32, 0 0, [] [] 0");
    check("param x f32[2,8]", "%y f32[2,8] = aten.relu.default(%x)", "", "16 [16], 64 64, 128 64, [] [0] 0");
    check("param x bf16[2,8]", "%y bf16[2,8] = aten.gelu.default(%x)", "", "16 [16], 32 32, 64 32, [0] [] 0");
}

#[test]
fn a_tensor_that_is_given_twice_is_read_once() {
    let op = "%y f32[2,8] = aten.mul.Tensor(%x, %x)";
    check("param x f32[2,8]", op, "", "16 [16, 16], 64 64, 128 64, [0] [] 0");
}

#[test]
fn what_is_the_same_memory_moves_nothing() {
    let op = "%y f32[4,4] = aten.view.default(%x, [4, 4])";
    check("param x f32[2,8]", op, "", "0 [0], 0 0, 0 0, [] [] 0");
    let found = cost("param x f32[2,8]", op, "");
    assert_eq!(found.lies_in, [Some(0)]);
    // A gradient of what was repeated is a sum.
    let op = "%y f32[2,8] = aten.expand.default(%x, [2, 8])";
    check("param x f32[1,8]", op, "", "0 [0], 0 0, 64 32, [] [] 0");
}

#[test]
fn of_what_is_looked_up_only_that_is_read() {
    let (inputs, op) = ("param w f32[100,4]; i i64[3]", "%y f32[3,4] = aten.embedding.default(%w, %i)");
    check(inputs, op, "", "0 [0, 0], 72 48, 72 1600, [1] [] 0");
    check(inputs, op, "vocab 50..100", "0 [0, 0], 72 75, 75 800, [] [] 27");
}

#[test]
fn what_backward_alone_reads_is_counted_besides() {
    let op = "%y f32[4,8] = aten.dropout.default(%x, 0.1, True)";
    check("param x f32[4,8]", op, "", "64 [64], 128 160, 160 128, [] [] 32");
    let op = "%y f32[4,8] = aten.layer_norm.default(%x, [8])";
    check("param x f32[4,8]", op, "a 0..2", "128 [128], 64 80, 144 64, [0] [] 16");
}

#[test]
fn an_operator_without_a_family_costs_what_its_rule_tells() {
    let op = "%y f32[4] = mine.scale.default(%x, %w)";
    let graph = graph("param x f32[4]; param w f32[4]", op);
    let text = rules::Rule::parse("a, a -> a ; linear 0", &[&[4], &[4]], &[Some(&[4])]);
    let rule = text.unwrap_or_else(|error| panic!("{error}"));
    let part = part(&rule, "a 0..2");
    let local = rules::local::unchanged(view(&graph).op);
    let cost = cost_of(view(&graph), Some(&rule), &part, &local, &graph.needs_grad());
    assert_eq!((cost.flops, cost.kept.inputs), (2, vec![0, 1]));
}

#[test]
fn rows_for_experts_cost_as_many_as_are_expected() {
    // Of 6 tokens with 2 experts each, of 4: 12 rows.
    let (inputs, op) = ("param x f32[6,8]; i i64[6,2]", "%r f32[4,6,4] = sw.dispatch(%x, %i, 4, False)");
    check(inputs, op, "", "0 [0, 0], 288 576, 576 192, [] [] 192");
    check(inputs, op, "t 0..2", "0 [0, 0], 96 192, 192 64, [] [] 64");
    let inputs = "param r f32[4,6,4]; param u f32[4,10,8]; param d f32[4,7,5]";
    let op = "%m f32[4,6,4] = sw.expert_rows(%r, %u, %d, \"silu\", True, False)";
    check(inputs, op, "", "2760 [2760, 1920, 840], 2224 1344, 3568 2224, [0, 1, 2] [] 960");
    check(inputs, op, "e 0..1", "690 [690, 480, 210], 556 336, 892 556, [0, 1, 2] [] 240");
    let inputs = "param m f32[4,6,4]; i i64[6,2]; param p f32[6,2]";
    check(
        inputs,
        "%y f32[6,7] = sw.combine(%m, %i, %p, 4, False)",
        "",
        "168 [168, 0, 168], 528 432, 816 432, [0] [] 264",
    );
}
