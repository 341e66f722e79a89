//! What one part of an operator executes, family by family.

use crate::support::check_local;

#[test]
fn views_name_the_shape_of_the_part() {
    let inputs = "x f32[2,5,96]";
    let op = "%y f32[2,5,3,4,8] = aten.view.default(%x, [2, 5, 3, -1, 8])";
    check_local(inputs, op, "d 2..4", "aten.reshape.default(%0, [2, 5, 3, 2, 8])");
    check_local(
        "x f32[1,3]",
        "%y f32[4,3] = aten.expand.default(%x, [4, -1])",
        "a 0..2",
        "aten.expand.default(%0, [2, 3])",
    );
    let op = "%y f32[2,12] = aten.repeat.default(%x, [2, 4])";
    check_local("x f32[3]", op, "b_copy 0..1, b 0..2", "aten.repeat.default(%0, [2, 1])");
    let op = "%y f32[2,12] = aten.repeat_interleave.self_int(%x, 4, 1)";
    check_local("x f32[2,3]", op, "b_copy 0..2", "aten.repeat_interleave.self_int(%0, 2, 1)");
    check_local(
        "x f32[2,3]",
        "%y f32[2,3] = aten.squeeze.dim(%x, 1)",
        "b 1..2",
        "aten.reshape.default(%0, [2, 1])",
    );
}

#[test]
fn pieces_have_the_size_of_the_part() {
    let op = "%a f32[2,4], %b f32[2,4], %c f32[2,4] = aten.split.Tensor(%x, 4, 1)";
    check_local("x f32[2,12]", op, "b 0..2", "aten.split.Tensor(%0, 2, 1)");
    check_local("x f32[2,12]", op, "b 4..4", "aten.split_with_sizes.default(%0, [0, 0, 0], 1)");
    check_local("x f32[2,12]", op, "a 0..1", "aten.split.Tensor(%0, 4, 1)");
    let op = "%a f32[3,2], %b f32[3,2] = aten.chunk.default(%x, 2)";
    check_local("x f32[6,2]", op, "a 1..3", "aten.split.Tensor(%0, 2, 0)");
    check_local("x f32[6,2]", op, "b 0..1", "aten.chunk.default(%0, 2)");
    let op = "%y f32[2,6] = aten.narrow.default(%x, 1, 0, 6)";
    check_local("x f32[2,6]", op, "b 0..3", "aten.narrow.default(%0, 1, 0, 3)");
}

#[test]
fn a_bias_is_given_to_the_first_part() {
    let (inputs, op) =
        ("c f32[3]; x f32[2,8]; y f32[8,3]", "%z f32[2,3] = aten.addmm.default(%c, %x, %y, beta=2)");
    check_local(inputs, op, "k 0..4", "aten.addmm.default(%0, %1, %2, beta=2)");
    check_local(inputs, op, "k 4..8", "aten.mm.default(%1, %2)");
    check_local(inputs, op, "m 0..1", "aten.addmm.default(%0, %1, %2, beta=2)");
}

#[test]
fn random_operators_are_keyed() {
    let op = "%y f32[4,3] = aten.dropout.default(%x, 0.1, True)";
    check_local("x f32[4,3]", op, "a 2..4", "sw.dropout(%0, 0.1, 0, 7)");
    check_local("x f32[4,3]", &op.replace("True", "False"), "a 2..4", "aten.dropout.default(%0, 0.1, false)");
    let op = "%y f32[4,3], _ = aten.native_dropout.default(%x, 0.1, True)";
    check_local("x f32[4,3]", op, "", "sw.native_dropout(%0, 0.1, 0, 7)");
    let inputs = "q f32[2,4,5,8]; k f32[2,4,6,8]; v f32[2,4,6,8]";
    let op =
        "%y f32[2,4,5,8] = aten.scaled_dot_product_attention.default(%q, %k, %v, None, 0.1, True, scale=0.5)";
    check_local(inputs, op, "h 2..4", "sw.attention(%0, %1, %2, None, 0.1, true, 0.5, false, 0, 0, 7)");
    check_local(inputs, op, "l 3..5", "sw.attention(%0, %1, %2, None, 0.1, true, 0.5, false, 3, 0, 7)");
}

#[test]
fn parts_know_where_they_begin() {
    let (inputs, op) = ("w f32[10,4]; i i64[6]", "%y f32[6,4] = aten.embedding.default(%w, %i, 3)");
    check_local(inputs, op, "vocab 5..10", "sw.embedding_shard(%0, %1, 5, 3, 10)");
    check_local(inputs, op, "a 0..3", "aten.embedding.default(%0, %1, 3)");
    let op = "%y f32[6] = sw.pick(%x, %t, 1, 0, -100, 10)";
    check_local("x f32[6,10]; t i64[6]", op, "v 4..10", "sw.pick(%0, %1, 1, 4, -100, 10)");
    let inputs = "q f32[2,4,5,8]; k f32[2,4,5,8]; v f32[2,4,5,8]";
    let op = "%y f32[2,4,5,8] = aten.scaled_dot_product_attention.default(%q, %k, %v, None, 0.0, True)";
    check_local(inputs, op, "l 3..5", "sw.causal_attention(%0, %1, %2, None, false, 3)");
    check_local(inputs, op, "h 0..2", "aten.scaled_dot_product_attention.default(%0, %1, %2, None, 0, true)");
    let op = "%y i64[6] = aten.arange.start_step(2, 20, 3)";
    check_local("", op, "a 2..5", "aten.arange.start_step(8, 17, 3, dtype=i64)");
}

#[test]
fn a_mean_divides_by_the_count_of_the_whole() {
    let op = "%y f32[4] = aten.mean.dim(%x, [-1])";
    check_local("x f32[4,6]", op, "b 0..3", "sw.mean(%0, [1], false, 6, None)");
    check_local("x f32[4,6]", op, "a 0..2", "aten.mean.dim(%0, [-1])");
    let op = "%y f32[] = aten.mean.default(%x, dtype=f32)";
    check_local("x bf16[4,6]", op, "a 0..2", "sw.mean(%0, [0, 1], false, 24, f32)");
}

#[test]
fn groups_and_classes_are_counted_by_the_part() {
    let op = "%y f32[2,6,7,7] = aten.conv2d.default(%x, %w, None, [1, 1], [0, 0], [1, 1], 2)";
    let expect = "aten.conv2d.default(%0, %1, None, [1, 1], [0, 0], [1, 1], 1)";
    check_local("x f32[2,4,9,9]; w f32[6,2,3,3]", op, "g 1..2", expect);
    let op = "%y f32[2,4,3] = aten.group_norm.default(%x, 4)";
    check_local("x f32[2,4,3]", op, "b 0..2", "aten.group_norm.default(%0, 2)");
    let op = "%y f32[2,12,3] = aten.group_norm.default(%x, 4)";
    check_local("x f32[2,12,3]", op, "b 1..4", "aten.group_norm.default(%0, 3)");
    let op = "%y i64[2,7] = aten.one_hot.default(%x)";
    check_local("x i64[2]", op, "a 0..1", "aten.one_hot.default(%0, num_classes=7)");
}

#[test]
fn creation_needs_its_type_and_shape() {
    check_local(
        "",
        "%y f64[4,3] = aten.zeros.default([4, 3], dtype=f64)",
        "a 0..2",
        "aten.zeros.default([2, 3], dtype=f64)",
    );
    let op = "%y f64[4,3] = aten.new_full.default(%x, [4, 3], 1)";
    check_local("x f64[9]", op, "b 1..3", "aten.full.default([4, 2], 1, dtype=f64)");
    let op = "%y f64[2] = aten.type_as.default(%x, %z)";
    check_local("x f32[2]; z f64[5,6]", op, "", "aten.to.dtype(%0, f64)");
}

#[test]
fn random_numbers_are_keyed() {
    let (inputs, op) = ("x f32[2,3]", "%y f32[2,3] = aten.bernoulli.p(%x, 0.25)");
    check_local(inputs, op, "", "sw.draw(\"bernoulli\", [2, 3], 0.25, f32, 0, 7)");
    let op = "%y f32[2,3] = aten.rand_like.default(%x)";
    check_local(inputs, op, "", "sw.draw(\"uniform\", [2, 3], 0, f32, 0, 7)");
}

#[test]
fn experts_know_where_their_part_begins() {
    let inputs = "x f32[6,8]; w f32[4,5,8]; i i64[6]";
    let op = "%y f32[6,5] = shardwright.expert_linear.default(%x, %w, %i, False)";
    check_local(inputs, op, "e 2..4", "sw.expert_linear(%0, %1, %2, 2, 4, false)");
    check_local(inputs, op, "s 2..4, k 0..4", "sw.expert_linear(%0, %1, %2, 0, 4, false)");
}

#[test]
fn mixtures_know_which_experts_they_have() {
    let inputs = "x f32[6,8]; i i64[6,2]; p f32[6,2]; u f32[4,10,8]; d f32[4,7,5]";
    let op = "%y f32[6,7] = shardwright.experts.default(%x, %i, %p, %u, %d, \"silu\", True, False, True)";
    let all = |start: i64| format!("sw.experts(%0, %1, %2, %3, %4, {start}, 4, \"silu\", true, false, true)");
    check_local(inputs, op, "e 1..3", &all(1));
    check_local(inputs, op, "t 2..4, n 0..2", &all(0));
}

#[test]
fn registered_functions_are_given_sizes_and_operands_of_the_part() {
    let op = r#"%y f32[2,12] = shardwright.function.default("m:f", [%x, %w], "(T0, S0, T1)", "a (h d), !(h d) -> a (h d)", ["h"], [4])"#;
    let inputs = "x f32[2,12]; w f32[12]";
    let same = r#"shardwright.function.default("m:f", [%0, %1], "(T0, S0, T1)", "a (h d), !(h d) -> a (h d)", ["h"], [2])"#;
    check_local(inputs, op, "h 0..2", same);
    check_local(inputs, op, "a 1..2", &same.replace("[2])", "[4])"));
}

#[test]
fn rows_for_experts_are_of_the_part_that_has_them() {
    let inputs = "r f32[4,6,4]; u f32[4,10,8]; d f32[4,7,5]";
    let op = "%m f32[4,6,4] = sw.expert_rows(%r, %u, %d, \"silu\", True, False)";
    check_local(inputs, op, "e 1..3, t 0..2", "sw.expert_rows(%0, %1, %2, \"silu\", true, false)");
    let op = "%r f32[4,6,4] = sw.dispatch(%x, %i, 4, True)";
    check_local("x f32[6,8]; i i64[6,2]", op, "t 2..4", "sw.dispatch(%0, %1, 4, true)");
}

#[test]
fn parts_of_modules_are_told_the_sizes_of_what_they_give() {
    let op = r#"%y f32[2,12] = shardwright.module.default("m", ["w"], [%w], [%x], "(T0) -> float32[S0,12]", [], True, None, "a b^ -> a b^", ["a"], [2])"#;
    let part = r#"shardwright.module.default("m", ["w"], [%0], [%1], "(T0) -> float32[S0,12]", [], true, None, "a b^ -> a b^", ["a"], [1])"#;
    check_local("w f32[3]; x f32[2,12]", op, "a 1..2", part);
}
