//! Where gradients go: to the caller, to parts of parameters, and nowhere.

use program::*;

use crate::support::{LINEARS, graph, program, proof};

/// Once something is planted, a fault that has this code and says this is found.
fn refused(model: &str, text: &str, code: &str, words: &str, plant: impl Fn(&mut Program)) {
    let mut made = program(&graph(model), text);
    plant(&mut made);
    let found = check::check(&graph(model), &made).expect_err(words);
    let said = |fault: &check::Fault| fault.code == code && fault.what.contains(words);
    assert!(found.iter().any(said), "{code} {words}: {found:?}");
}

const PRODUCT: &str = "input %x f64[4] 0 grad
input %z f64[4] 1 grad
op %y f64[4] = aten.mul.Tensor(%x, %z) in \"\" at \"m.py:1\"
output %y
";

#[test]
fn the_caller_gets_gradients_in_the_order_of_its_inputs() {
    let text = "ranks 0
input x %x :
input z %z :
call 0 x, z -> y : y = aten.mul.Tensor(x, z)
output y
seed dy
grad 0 dy -> dx, dz
";
    proof(&graph(PRODUCT), &format!("{text}gradient dx %x\ngradient dz %z"));
    let swapped = format!("{text}gradient dz %z\ngradient dx %x");
    refused(PRODUCT, &swapped, "SW0511", "not given in the order of the inputs", |_| ());
}

/// Nobody reads what is made of the second input.
#[test]
fn an_input_that_no_output_depends_on_has_no_gradient() {
    let model = "input %x f64[4] 0 grad
input %z f64[4] 1 grad
op %y f64[4] = aten.neg.default(%x) in \"\" at \"m.py:1\"
op %k f64[4] = aten.neg.default(%z) in \"\" at \"m.py:2\"
output %y
";
    let text = "ranks 0
input x %x :
input z %z :
call 0 x -> y : y = aten.neg.default(x)
call 1 z -> k : k = aten.neg.default(z)
output y
seed dy
grad 0 dy -> dx
";
    proof(&graph(model), &format!("{text}gradient dx %x"));
    let both = format!("{text}gradient dx %x\ngradient dx %z");
    refused(model, &both, "SW0511", "given the wrong number of times", |_| ());
}

/// What is only a label has no gradient, and nor has what that is made of.
#[test]
fn nothing_is_expected_of_what_a_loss_asks_no_gradient_of() {
    let model = "input %x f64[4] 0
param %w f64[4] \"w\"
param %v f64[4] \"v\"
op %a f64[4] = aten.mul.Tensor(%x, %w) in \"\" at \"m.py:1\"
op %b f64[4] = aten.mul.Tensor(%x, %v) in \"\" at \"m.py:2\"
op %s f64[] = aten.hinge_embedding_loss.default(%a, %b, 1.0, 2) in \"\" at \"m.py:3\"
output %s
";
    let text = "ranks 0
shard w %w :
shard v %v :
input x %x :
call 0 x, v -> b : b = aten.mul.Tensor(x, v)
call 1 x, w, b -> s : a = aten.mul.Tensor(x, w) ; s = aten.hinge_embedding_loss.default(a, b, 1.0, 2)
output s
seed ds
grad 1 ds ->
";
    assert!(proof(&graph(model), text).backward);
}

/// What is a label here, and an output besides, has the gradient of the output.
#[test]
fn a_label_has_the_gradient_of_its_other_uses() {
    let model = "input %x f64[4] 0
param %w f64[4] \"w\"
param %v f64[4] \"v\"
op %a f64[4] = aten.mul.Tensor(%x, %w) in \"\" at \"m.py:1\"
op %b f64[4] = aten.mul.Tensor(%x, %v) in \"\" at \"m.py:2\"
op %s f64[] = aten.hinge_embedding_loss.default(%a, %b, 1.0, 2) in \"\" at \"m.py:3\"
output %s
output %b
";
    let text = "ranks 0
shard w %w :
shard v %v :
input x %x :
call 0 x, v -> b : b = aten.mul.Tensor(x, v)
call 1 x, w, b -> s : a = aten.mul.Tensor(x, w) ; s = aten.hinge_embedding_loss.default(a, b, 1.0, 2)
output s
output b
seed ds
seed db
grad 1 ds -> _
grad 0 db ->
";
    proof(&graph(model), text);
    refused(model, &text.replace("grad 0 db", "grad 0 _"), "SW0511", "", |_| ());
}

/// One rank holds nothing of a parameter, and needs no gradient of it.
#[test]
fn a_part_of_nothing_has_its_gradient() {
    let text = "ranks 0
shard none %w 0..0,:
shard w %w :,:
shard v %v :,:
input x %x :,:
call 0 x, w, v -> s : y = aten.linear.default(x, w) ; z = aten.linear.default(y, v) ; s = aten.sum.default(z)
output s
seed ds
grad 0 ds ->
";
    assert!(proof(&graph(LINEARS), text).backward);
}

/// Divided inside of a node, copied between two of them.
const DIVIDED: &str = "group 0,1 2,3
group 0,2 1,3
group 0,1,2,3
ranks 0,1,2,3
hold w_part %w 0..8,: | 8..16,: | 0..8,: | 8..16,:
shard v %v :,:
copy w w_part 0 2 :,:
input x %x 0..1,: | 1..2,: | 2..3,: | 3..4,:
gather g0 w
call 0 x, w -> y : y = aten.linear.default(x, w)
call 1 y, v -> s : z = aten.linear.default(y, v) ; s = aten.sum.default(z)
release w
all_reduce g2 sum s -> t
output t
seed ds
gather g0 w
grad 1 ds -> dy
grad 0 dy ->
release w
scatter g0 w
reduce_gradients g2 v
reduce_shards g1 w_part
";

/// A first linear with sixteen features, of which a half is as large as all that the second one gives.
fn wide() -> String {
    LINEARS
        .replace("param %w f64[8,8]", "param %w f64[16,8]")
        .replace("op %y f64[4,8]", "op %y f64[4,16]")
        .replace("param %v f64[8,8]", "param %v f64[8,16]")
}

/// The runtime gives a call the whole of what was gathered.
#[test]
fn a_leaf_is_all_of_the_copy() {
    proof(&graph(&wide()), DIVIDED);
    refused(&wide(), DIVIDED, "SW0502", "is not a part of a shard of it", |made| {
        let leaves = &mut made.roles[0].table.leaves;
        let (_, region) = leaves.iter_mut().find(|(of, _)| matches!(of, Of::Copy(_))).expect("a copy");
        let mut half = region.get(0).clone();
        half.0[0].hi /= 2;
        *region = PerRank::Same(half);
    });
}

#[test]
fn shards_that_are_reduced_are_the_same_part() {
    let crossed = DIVIDED.replacen("group 0,2 1,3", "group 0,3 1,2", 1);
    refused(&wide(), &crossed, "SW0508", "gradients of different things are reduced", |_| ());
}
