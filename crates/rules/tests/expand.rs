//! Operators with their own algorithm, rewritten: the whole new graph and what its dims mean.

mod support;

use std::fmt::Write;

use graph::{Graph, OpId};
use rules::expand::Builder;
use rules::families::{family_of, rule_text};
use rules::{Rule, View};

/// The rewriting of a one-operator graph. Every piece must have a valid rule whose terms are those
/// of its label.
fn expand(inputs: &str, op: &str) -> String {
    expand_split(inputs, op, &["v"])
}

fn expand_split(inputs: &str, op: &str, split: &[&str]) -> String {
    let whole = support::graph(inputs, op);
    let origin = whole.op(OpId(0)).clone();
    let mut graph = Graph { ops: vec![], ..whole };
    let mut builder =
        Builder::new(&mut graph, origin.clone(), split.iter().map(|d| (*d).to_owned()).collect());
    let family = family_of(&origin.target).expect("it has a family");
    (family.expand.expect("it is rewritten"))(&origin, &mut builder);
    let pieces = builder.pieces;
    let mut text = String::new();
    for piece in &pieces {
        let view = View::new(&graph, piece.op);
        let name = |id: &graph::TensorId| graph.tensor(*id).name.clone();
        let read: Vec<String> = view.op.inputs().iter().map(name).collect();
        let made: Vec<String> = view.op.outputs.iter().flatten().map(name).collect();
        let off = if view.op.no_grad { " nograd" } else { "" };
        writeln!(
            text,
            "{} = {}({}){off} : {}",
            made.join(", "),
            view.op.target,
            read.join(", "),
            piece.labels
        )
        .expect("writing to a string never fails");
        let shapes = (view.input_shapes(), view.output_shapes());
        Rule::parse(&piece.labels, &shapes.0, &shapes.1)
            .map_err(|error| error.why)
            .or_else(|why| if why.as_deref().is_some_and(unsaid) { Ok(empty()) } else { Err(why) })
            .unwrap_or_else(|why| panic!("`{}`: {why:?}", piece.labels));
        let rule = rule_text(view).unwrap_or_else(|| panic!("{} has no rule", view.op.target));
        Rule::parse(&rule, &shapes.0, &shapes.1).unwrap_or_else(|error| panic!("{error}"));
    }
    text
}

/// Labels do not say what becomes of the dims that are reduced.
fn unsaid(why: &str) -> bool {
    why.starts_with("a dim that only inputs have")
}

fn empty() -> Rule {
    Rule { dims: vec![], inputs: vec![], outputs: vec![], linear: vec![] }
}

#[test]
fn softmax_goes_through_the_maximum_and_the_sum() {
    assert_eq!(
        expand("x f32[2,3]", "%y f32[2,3] = aten.softmax.int(%x, -1)"),
        "\
y.0 = aten.amax.default(x) nograd : a b -> a 1
y.1 = aten.sub.Tensor(x, y.0) : a b, a 1 -> a b
y.2 = aten.exp.default(y.1) : a b -> a b
y.3 = aten.sum.dim_IntList(y.2) : a b -> a 1
y = aten.div.Tensor(y.2, y.3) : a b, a 1 -> a b
"
    );
    assert_eq!(
        expand("x bf16[2,3]", "%y bf16[2,3] = aten._log_softmax.default(%x, 0, False)"),
        "\
y.0 = aten.to.dtype(x) : a b -> a b
y.1 = aten.amax.default(y.0) nograd : a b -> 1 b
y.2 = aten.sub.Tensor(y.0, y.1) : a b, 1 b -> a b
y.3 = aten.exp.default(y.2) : a b -> a b
y.4 = aten.sum.dim_IntList(y.3) : a b -> 1 b
y.5 = aten.log.default(y.4) : 1 b -> 1 b
y.6 = aten.sub.Tensor(y.2, y.5) : a b, 1 b -> a b
y = aten.to.dtype(y.6) : a b -> a b
"
    );
}

#[test]
fn cross_entropy_over_a_split_batch_keeps_the_loss_whole() {
    assert_eq!(
        expand_split("x f32[6,10]; t i64[6]", "%y f32[] = aten.cross_entropy_loss.default(%x, %t)", &["b"]),
        "\
y.0 = aten.cross_entropy_loss.default(x, t) : b v, b -> scalar
y.1 = aten.ne.Scalar(t) nograd : b -> b
y.2 = aten.sum.default(y.1) nograd : b -> scalar
y = aten.div.Tensor(y.0, y.2) : scalar, scalar -> scalar
"
    );
}

#[test]
fn cross_entropy_is_a_sum_and_a_count() {
    assert_eq!(
        expand("x f32[6,10]; t i64[6]", "%y f32[] = aten.cross_entropy_loss.default(%x, %t)"),
        "\
y.0 = aten.amax.default(x) nograd : b v -> b 1
y.1 = aten.sub.Tensor(x, y.0) : b v, b 1 -> b v
y.2 = aten.exp.default(y.1) : b v -> b v
y.3 = aten.sum.dim_IntList(y.2) : b v -> b 1
y.4 = aten.log.default(y.3) : b 1 -> b 1
y.5 = aten.view.default(y.4) : b 1 -> b
y.6 = sw.pick(y.1, t) : b v, b -> b
y.7 = aten.sub.Tensor(y.5, y.6) : b, b -> b
y.8 = aten.ne.Scalar(t) nograd : b -> b
y.9 = aten.where.ScalarOther(y.8, y.7) : b, b -> b
y.10 = aten.sum.default(y.8) nograd : b -> scalar
y.11 = aten.sum.default(y.9) : b -> scalar
y = aten.div.Tensor(y.11, y.10) : scalar, scalar -> scalar
"
    );
    let none =
        expand("x f32[6,10,4]; t i64[6,4]", "%y f32[6,4] = aten.cross_entropy_loss.default(%x, %t, None, 0)");
    assert!(none.ends_with("y = aten.where.ScalarOther(y.8, y.7) : b s, b s -> b s\n"), "{none}");
    expand("x f32[10]; t i64[]", "%y f32[] = aten.cross_entropy_loss.default(%x, %t)");
}

#[test]
fn likelihood_gives_its_total_weight() {
    assert_eq!(
        expand(
            "x f32[6,10]; t i64[6]",
            "%y f32[], %n f32[] = aten.nll_loss_forward.default(%x, %t, None, 1, -100)"
        ),
        "\
y.0 = sw.pick(x, t) : b v, b -> b
y.1 = aten.neg.default(y.0) : b -> b
y.2 = aten.ne.Scalar(t) nograd : b -> b
y.3 = aten.sum.default(y.2) nograd : b -> scalar
y.4 = aten.sum.default(y.1) : b -> scalar
y = aten.div.Tensor(y.4, y.3) : scalar, scalar -> scalar
n = aten.to.dtype(y.3) : scalar -> scalar
"
    );
}

#[test]
fn distances_are_averaged_apart() {
    assert_eq!(
        expand("x f32[6,2]; y f32[6,2]", "%z f32[] = aten.mse_loss.default(%x, %y)"),
        "\
z.0 = aten.mse_loss.default(x, y) : a b, a b -> a b
z = aten.mean.default(z.0) : a b -> scalar
"
    );
}

#[test]
fn batch_norm_sums_over_the_batch() {
    let inputs = "x f32[2,4,3]; w f32[4]; b f32[4]; m f32[4]; v f32[4]";
    let op = "%y f32[2,4,3], _, _, %m1 f32[4], %v1 f32[4] = aten._native_batch_norm_legit_functional.default(%x, %w, %b, %m, %v, True, 0.1, 1e-05)";
    assert_eq!(
        expand(inputs, op),
        "\
y.0 = aten.mean.dim(x) : a b c -> 1 b 1
y.1 = aten.sub.Tensor(x, y.0) : a b c, 1 b 1 -> a b c
y.2 = aten.mul.Tensor(y.1, y.1) : a b c, a b c -> a b c
y.3 = aten.mean.dim(y.2) : a b c -> 1 b 1
y.4 = aten.add.Tensor(y.3) : 1 b 1 -> 1 b 1
y.5 = aten.rsqrt.default(y.4) : 1 b 1 -> 1 b 1
y.6 = aten.view.default(w) : b -> 1 b 1
y.7 = aten.mul.Tensor(y.5, y.6) : 1 b 1, 1 b 1 -> 1 b 1
y.8 = aten.view.default(b) : b -> 1 b 1
y = aten.addcmul.default(y.8, y.1, y.7) : 1 b 1, a b c, 1 b 1 -> a b c
y.10 = aten.view.default(y.0) nograd : 1 b 1 -> b
m1 = aten.lerp.Scalar(m, y.10) nograd : b, b -> b
y.12 = aten.view.default(y.3) nograd : 1 b 1 -> b
y.13 = aten.mul.Tensor(y.12) nograd : b -> b
v1 = aten.lerp.Scalar(v, y.13) nograd : b, b -> b
"
    );
    assert_eq!(
        expand(inputs, &op.replace("True", "False")),
        "\
y = aten.batch_norm.default(x, w, b, m, v) : a b c, b, b, b, b -> a b c
m1 = aten.clone.default(m) : b -> b
v1 = aten.clone.default(v) : b -> b
"
    );
}
