//! Small models, each with a program that is right, and what the check says of it once one thing in it is wrong.

use crate::support::{LINEARS, faults, graph, proof};

/// Right as it is; once `old` becomes `new` something is found that has this code and says this.
fn refused(model: &str, text: &str, (old, new): (&str, &str), code: &str, words: &str) {
    let model = graph(model);
    proof(&model, text);
    assert!(text.contains(old), "{old}");
    says(&faults(&model, &text.replacen(old, new, 1)), code, words);
}

fn says(found: &[check::Fault], code: &str, words: &str) {
    let said = |fault: &check::Fault| fault.code == code && fault.what.contains(words);
    assert!(found.iter().any(said), "{code} {words}: {found:?}");
}

const LAYER: &str = include_str!("programs/layer.graph");
const TENSOR: &str = include_str!("programs/layer_tensor.txt");
const SEQUENCE: &str = include_str!("programs/layer_sequence.txt");
const LATE: &str = include_str!("programs/layer_late.txt");
const MLP: &str = include_str!("programs/mlp.graph");
const DATA: &str = include_str!("programs/data.txt");

#[test]
fn a_backward_is_given_and_gives_a_gradient_for_each_value() {
    let given = "gets a different number of gradients than it has results";
    refused(LAYER, TENSOR, ("grad 1 dy ->", "grad 1 dy, dy ->"), "SW0509", given);
    refused(LAYER, TENSOR, ("grad 1 dy ->", "grad 1 ->"), "SW0509", given);
    let gives = "gives a different number of gradients than it has inputs";
    refused(LAYER, TENSOR, ("grad 0 dn ->", "grad 0 dn -> dx"), "SW0509", gives);
    // Of the same shape, and of another tensor.
    let other = "gets the gradient of something else";
    refused(LAYER, TENSOR, ("grad 1 dy ->", "grad 1 dn1 ->"), "SW0509", other);
}

#[test]
fn slices_lie_in_what_they_slice() {
    let fits = "a slice does not fit what it slices";
    for other in [
        "[5, 8] 0..4, lo..hi",
        "[4, 9] 0..4, lo..hi",
        "[4, 8] 0..4",
        "[4] 0..4",
        "[4, 8] 0..5, lo..hi",
        "[4, 8] -1..4, lo..hi",
        "[4, 8] 3..2, lo..hi",
        "[4, 8] 0..4, hi..lo",
    ] {
        refused(LAYER, LATE, ("[4, 8] 0..4, lo..hi", other), "SW0507", fits);
    }
}

#[test]
fn pieces_are_all_of_what_is_cut() {
    let cut = "a tensor is cut into pieces that do not fit it";
    let scatter = "reduce_scatter g0 y -> yp : [4, 8] 0 [2, 2]";
    for sizes in ["[2, 1]", "[2, 3]", "[2, 2, 0]", "[4]", "[5, -1]"] {
        let other = scatter.replace("[2, 2]", sizes);
        refused(LAYER, SEQUENCE, (scatter, &other), "SW0507", cut);
    }
    let joined = "the pieces that are joined are not consecutive";
    let gather = "all_gather g0 n -> nf : [4, 8] 0 [2, 2]";
    for sizes in ["[2, 1]", "[2, 3]", "[2, 2, 0]", "[4]", "[5, -1]", "[3, 1]"] {
        let other = gather.replace("[2, 2]", sizes);
        refused(LAYER, SEQUENCE, (gather, &other), "SW0507", joined);
    }
    for extents in ["[4, 8] 1 [2, 2]", "[2, 8] 0 [2, 2]", "[4, 8] 2 [2, 2]"] {
        refused(LAYER, SEQUENCE, ("[4, 8] 0 [2, 2]", extents), "SW0507", joined);
    }
}

const RAISED: &str = "input %x f64[4,8] 0
param %w f64[8] \"w\"
op %y f64[4,8] = aten.mul.Tensor(%x, %w) in \"\" at \"m.py:1\"
op %m f64[4,1] = aten.amax.default(%y, [1], True) in \"\" at \"m.py:2\"
op %e f64[4,1] = aten.exp.default(%m) in \"\" at \"m.py:3\"
op %s f64[] = aten.sum.default(%e) in \"\" at \"m.py:4\"
output %s
";

/// Whole on all ranks, so that a gradient flows.
const WHOLE: &str = "ranks 0
shard w %w :
input x %x :,:
call 0 x, w -> s : y = aten.mul.Tensor(x, w) ; m = aten.amax.default(y, [1], True) ; e = aten.exp.default(m) ; s = aten.sum.default(e)
output s
seed ds
grad 0 ds ->
";

/// Half of the columns each.
fn columns(calls: &str, back: &str) -> String {
    format!(
        "group 0,1
ranks 0,1
shard w %w 0..4 | 4..8
input x %x :,0..4 | :,4..8
{calls}
output s
seed ds
{back}"
    )
}

#[test]
fn gradients_do_not_flow_through_shares_of_a_maximum() {
    proof(&graph(RAISED), WHOLE);
    let split = columns(
        "call 0 x, w -> m : y = aten.mul.Tensor(x, w) ; m = aten.amax.default(y, [1], True)
         all_reduce g0 max m -> k
         call 1 k -> s : e = aten.exp.default(k) ; s = aten.sum.default(e)",
        "grad 1 ds -> dk\ngrad 0 dk ->",
    );
    says(&faults(&graph(RAISED), &split), "SW0504", "which its rule forbids");
    let passed = columns(
        "call 0 x, w -> m : y = aten.mul.Tensor(x, w) ; m = aten.amax.default(y, [1], True)
         call 1 m -> e : e = aten.exp.default(m)
         all_reduce g0 max e -> k
         call 2 k -> s : s = aten.sum.default(k)",
        "grad 2 ds -> de\ngrad 1 de -> dm\ngrad 0 dm ->",
    );
    says(&faults(&graph(RAISED), &passed), "SW0504", "which its rule forbids");
}

#[test]
fn an_operator_has_as_many_results_as_in_the_model() {
    let words = "has a different number of outputs than its operator";
    refused(MLP, DATA, ("a = aten.relu", "a, more = aten.relu"), "SW0504", words);
}

/// A parameter that nothing reads is held all the same.
#[test]
fn every_parameter_is_held_by_some_rank() {
    let model = MLP.replacen("param %w1", "param %u f64[4] \"unused\"\nparam %w1", 1);
    says(&faults(&graph(&model), DATA), "SW0514", "some elements of");
    let half = DATA.replace("shard w1", "hold u %u 0..2\nshard w1");
    says(&faults(&graph(&model), &half), "SW0514", "some elements of");
    proof(&graph(&model), &half.replace("%u 0..2", "%u 0..2 | 2..4"));
}

const SOFTMAX: &str = "input %x f64[4,8] 0
param %w f64[8] \"w\"
op %y f64[4,8] = aten.mul.Tensor(%x, %w) in \"\" at \"m.py:1\"
op %c f64[4,8] = aten.cumsum.default(%y, 1) in \"\" at \"m.py:2\"
op %s f64[] = aten.sum.default(%c) in \"\" at \"m.py:3\"
output %s
";

#[test]
fn an_operator_is_not_split_where_its_rule_forbids() {
    let split = columns(
        "call 0 x, w -> s : y = aten.mul.Tensor(x, w) ; c = aten.cumsum.default(y, 1) ; s = aten.sum.default(c)
         all_reduce g0 sum s -> t",
        "grad 0 ds ->",
    );
    let split = split.replace("output s", "output t");
    says(&faults(&graph(SOFTMAX), &split), "SW0504", "which its rule forbids");
}

/// Values that are the same everywhere, of which an operator's place in them matters.
#[test]
fn what_may_lie_anywhere_does_not_lie_just_somewhere() {
    let model = "input %x f64[4,4] 0
param %w f64[4] \"w\"
op %f f64[4,4] = aten.full.default([4, 4], 0.5, dtype=f64) in \"\" at \"m.py:1\"
op %t f64[4,4] = aten.triu.default(%f) in \"\" at \"m.py:2\"
op %y f64[4,4] = aten.mul.Tensor(%x, %t) in \"\" at \"m.py:3\"
op %z f64[4,4] = aten.mul.Tensor(%y, %w) in \"\" at \"m.py:4\"
op %s f64[] = aten.sum.default(%z) in \"\" at \"m.py:5\"
output %s
";
    let rows = "group 0,1
ranks 0,1
shard w %w :
input x %x 0..2,: | 2..4,:
call 0 x, w -> s : f = aten.full.default([2, 4], 0.5, dtype=f64) ; t = aten.triu.default(f) ; y = aten.mul.Tensor(x, t) ; z = aten.mul.Tensor(y, w) ; s = aten.sum.default(z)
all_reduce g0 sum s -> u
output u
seed ds
grad 0 ds ->
reduce_gradients g0 w
";
    assert!(!faults(&graph(model), rows).is_empty());
    let bias = "input %x f64[4,6] 0
param %b f64[6] \"b\"
op %f f64[4,8] = aten.full.default([4, 8], 0.5, dtype=f64) in \"\" at \"m.py:1\"
op %g f64[8,6] = aten.full.default([8, 6], 0.25, dtype=f64) in \"\" at \"m.py:2\"
op %y f64[4,6] = aten.addmm.default(%b, %f, %g) in \"\" at \"m.py:3\"
op %z f64[4,6] = aten.mul.Tensor(%x, %y) in \"\" at \"m.py:4\"
op %s f64[] = aten.sum.default(%z) in \"\" at \"m.py:5\"
output %s
";
    let half =
        "f = aten.full.default([4, 4], 0.5, dtype=f64) ; g = aten.full.default([4, 6], 0.25, dtype=f64)";
    let split_backward = format!(
        "group 0,1
ranks 0,1
shard b %b :
input x %x :,:
call 0 -> y : {half} ; y = aten.mm.default(f, g)
all_reduce g0 sum y -> t
call 1 x, t -> s : z = aten.mul.Tensor(x, t) ; s = aten.sum.default(z)
output s
seed ds
grad 1 ds -> dt
grad 0 dt ->
"
    );
    // Of terms that are the same, who adds the bias is the first part; nobody does, or two do.
    let biased = split_backward
        .replace("call 0 ->", "call 0 b ->")
        .replace("aten.mm.default(f, g)", "aten.addmm.default(b, f, g)");
    assert!(!faults(&graph(bias), &split_backward).is_empty());
    assert!(!faults(&graph(bias), &biased).is_empty());
}

/// Each rank has the whole gradient, and takes its part of it.
const TAKEN: &str = "group 0,1
ranks 0,1
hold w_part %w 0..4,: | 4..8,:
hold v_part %v 0..4,: | 4..8,:
copy w w_part 0 2 :,:
copy v v_part 0 2 :,:
input x %x :,:
gather g0 w, v
call 0 x, w -> y : y = aten.linear.default(x, w)
call 1 y, v -> s : z = aten.linear.default(y, v) ; s = aten.sum.default(z)
release w, v
output s
seed ds
gather g0 w, v
grad 1 ds -> dy
grad 0 dy ->
release w, v
part w, v
";

#[test]
fn each_rank_takes_its_part_of_a_whole_gradient_once() {
    let incomplete = "does not reach its shards";
    refused(LINEARS, TAKEN, ("part w, v", "part w"), "SW0511", incomplete);
    refused(LINEARS, TAKEN, ("part w, v", "part w, v, w"), "SW0508", "reaches its shards twice");
    refused(LINEARS, TAKEN, ("part w, v", "scatter g0 w, v"), "SW0508", "is summed twice");
    let late = ("grad 0 dy ->\nrelease w, v\npart w, v", "part w, v\ngrad 0 dy ->\nrelease w, v");
    refused(LINEARS, TAKEN, late, "SW0510", "before its last contribution");
}

/// Where gradients are off and nothing needs one it does not matter.
#[test]
fn gradients_are_off_where_that_matters() {
    let model = "input %x f64[4,8] 0
param %w f64[8] \"w\"
op %r f64[4,8] = aten.relu.default(%x) in \"\" at \"m.py:1\" nograd
op %y f64[4,8] = aten.mul.Tensor(%r, %w) in \"\" at \"m.py:2\"
op %s f64[] = aten.sum.default(%y) in \"\" at \"m.py:3\"
output %s
";
    let text = "ranks 0
shard w %w :
input x %x :,:
call 0 x, w -> s : r = aten.relu.default(x) ; y = aten.mul.Tensor(r, w) ; s = aten.sum.default(y)
output s
seed ds
grad 0 ds ->
";
    proof(&graph(model), text);
    let off = ("y = aten.mul.Tensor(r, w)", "y = aten.mul.Tensor(r, w) nograd");
    refused(model, text, off, "SW0504", "gradients are on where the model has them off");
}

/// Heads in one dim with what each of them has: a dim of three factors.
#[test]
fn a_slice_of_a_dim_is_one_of_a_factor() {
    let model = "input %x f64[2,4] 0
param %w f64[24,4] \"w\"
op %f f64[2,24] = aten.linear.default(%x, %w) in \"\" at \"m.py:1\"
op %g f64[2,3,4,2] = aten.view.default(%f, [2, 3, 4, 2]) in \"\" at \"m.py:2\"
op %s f64[] = aten.sum.default(%g) in \"\" at \"m.py:3\"
output %s
";
    let text = "ranks 0
shard w %w :,:,:,:
input x %x :,:
call 0 x, w -> f : f = aten.linear.default(x, w)
slice f -> p : [2, 24] 0..2, 0..8
call 1 f -> s : g = aten.view.default(f, [2, 3, 4, 2]) ; s = aten.sum.default(g)
output s
seed ds
grad 1 ds -> df
grad 0 df ->
";
    for lies in ["8..16", "8..24", "0..24"] {
        proof(&graph(model), &text.replace("0..8", lies));
    }
    for split in ["0..4", "0..12", "4..8", "4..24", "8..12", "0..1", "23..24", "2..4", "6..18"] {
        refused(model, text, ("0..8", split), "SW0507", "a slice does not fit what it slices");
    }
}

const TRACKED: &str = "input %x f64[4,8] 0
param %w f64[8] \"w\"
buffer %m f64[8] \"mean\"
op %n f64[8] = aten.sum.dim_IntList(%x, [0]) in \"\" at \"m.py:1\" nograd
op %y f64[4,8] = aten.mul.Tensor(%x, %w) in \"\" at \"m.py:2\"
op %s f64[] = aten.sum.default(%y) in \"\" at \"m.py:3\"
output %s
update \"mean\" %n
";

/// Rows on two ranks, and the buffer on both; or columns, and each has a part of it.
fn tracked(divided: bool) -> String {
    let (part, rows) = if divided { ("0..4 | 4..8", ":,0..4 | :,4..8") } else { (":", "0..2,: | 2..4,:") };
    format!(
        "group 0,1
ranks 0,1
shard w %w {part}
shard m %m {part}
input x %x {rows}
call 0 x, w -> s, n : n = aten.sum.dim_IntList(x, [0]) nograd ; y = aten.mul.Tensor(x, w) ; s = aten.sum.default(y)
{}
all_reduce g0 sum s -> t
update m k
output t
seed ds
grad 0 ds ->
{}",
        if divided { "slice n -> k : [4] 0..4" } else { "all_reduce g0 sum n -> k" },
        if divided { "" } else { "reduce_gradients g0 w" },
    )
}

#[test]
fn a_buffer_gets_all_of_its_new_value() {
    let words = "is updated with something else than its new value";
    refused(TRACKED, &tracked(false), ("update m k", "update m n"), "SW0513", words);
    refused(TRACKED, &tracked(true), ("%m 0..4 | 4..8", "%m 4..8 | 0..4"), "SW0513", words);
    refused(TRACKED, &tracked(true), ("%m 0..4 | 4..8", "%m :"), "SW0513", words);
    refused(TRACKED, &tracked(false), ("%m :", "%m 0..4 | 4..8"), "SW0513", words);
    refused(TRACKED, &tracked(false), ("update m k\n", ""), "SW0513", "is not updated");
    refused(TRACKED, &tracked(false), ("update m k", "update m k\nupdate m k"), "SW0513", "is updated twice");
    refused(TRACKED, &tracked(false), ("update m k", "update w k"), "SW0513", "does not update");
}

/// Two draws are not one, and none is split that has no key.
#[test]
fn what_is_drawn_without_a_key_is_drawn_as_often_as_in_the_model() {
    let model = "input %x f64[4,8] 0
param %w f64[8] \"w\"
op %a f64[4,8] = aten.rand.default([4, 8], dtype=f64) in \"\" at \"m.py:1\"
op %b f64[4,8] = aten.rand.default([4, 8], dtype=f64) in \"\" at \"m.py:2\"
op %y f64[4,8] = aten.mul.Tensor(%x, %w) in \"\" at \"m.py:3\"
op %z f64[4,8] = aten.mul.Tensor(%y, %a) in \"\" at \"m.py:4\"
op %q f64[4,8] = aten.mul.Tensor(%z, %b) in \"\" at \"m.py:5\"
op %s f64[] = aten.sum.default(%q) in \"\" at \"m.py:6\"
output %s
";
    let draws = "a = aten.rand.default([4, 8], dtype=f64) ; b = aten.rand.default([4, 8], dtype=f64)";
    let text = format!(
        "ranks 0
shard w %w :
input x %x :,:
call 0 x, w -> s : {draws} ; y = aten.mul.Tensor(x, w) ; z = aten.mul.Tensor(y, a) ; q = aten.mul.Tensor(z, b) ; s = aten.sum.default(q)
output s
seed ds
grad 0 ds ->
"
    );
    assert!(!faults(&graph(model), &text.replace("(z, b)", "(z, a)")).is_empty());
}

const MEGATRON: &str = include_str!("programs/megatron.txt");

/// Of the same tensor, but a part of its sum.
#[test]
fn what_is_given_again_is_what_was_forgotten() {
    let kept = MEGATRON
        .replace("call 2 y2", "keep 0 y2\nforget 2 y2")
        .replace("grad 2 ds -> dy", "take 0 -> y3\ngrad 2 ds -> dy : y3");
    let model = graph(MLP);
    proof(&model, &kept);
    let found = faults(&model, &kept.replace("keep 0 y2", "keep 0 y"));
    says(&found, "SW0509", "gets back something else than it dropped");
    let sliced = "slice y2 -> y4 : [4, 8] 0..2, 0..8\nkeep 0 y4";
    let found = faults(&model, &kept.replace("keep 0 y2", sliced));
    says(&found, "SW0509", "gets back something else than it dropped");
}
