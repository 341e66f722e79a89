//! Values that are partial, the same everywhere, random, or laid out in factors.

mod support;

use program::{Body, Pass};
use support::{faults, graph, proof};

fn refused(graph_text: &str, program: &str, code: &str) {
    let found = faults(&graph(graph_text), program);
    assert_eq!(found.first().map(|fault| fault.code), Some(code), "{found:?}");
}

/// `old` becomes `new`, which must be refused.
fn breaks(graph_text: &str, program: &str, old: &str, new: &str, code: &str) {
    assert!(program.contains(old), "{old}");
    refused(graph_text, &program.replace(old, new), code);
}

const SUM: &str = "input %x f64[4,8] 0
param %w f64[6,8] \"w\"
param %v f64[6] \"v\"
op %y f64[4,6] = aten.linear.default(%x, %w) in \"\" at \"m.py:1\"
op %z f64[4,6] = aten.mul.Tensor(%y, %v) in \"\" at \"m.py:2\"
op %s f64[] = aten.sum.default(%z) in \"\" at \"m.py:3\"
output %s
";

const PARTIAL: &str = "group 0,1
ranks 0,1
shard w %w :,0..4 | :,4..8
shard v %v :
input x %x :,0..4 | :,4..8
call 0 x, w, v -> s : y = aten.linear.default(x, w) ; z = aten.mul.Tensor(y, v) ; s = aten.sum.default(z)
all_reduce g0 sum s -> t
output t
seed ds
grad 0 ds ->
reduce_gradients g0 v
";

#[test]
fn linear_operators_take_partial_operands() {
    proof(&graph(SUM), PARTIAL);
    // The gradient of v is a product with the partial y: it must be summed.
    breaks(SUM, PARTIAL, "reduce_gradients g0 v\n", "", "SW0511");
    breaks(SUM, PARTIAL, "reduce_gradients g0 v\n", "reduce_gradients g0 w\n", "SW0508");
    breaks(SUM, PARTIAL, ":,0..4 | :,4..8\ncall", ":,0..4 | :,0..4\ncall", "SW0504");
}

const POSITIONS: &str = "input %x f64[4,8] 0
param %p f64[1,8] \"p\"
op %e f64[4,8] = aten.expand.default(%p, [4, 8]) in \"\" at \"m.py:1\"
op %r f64[4,8] = aten.relu.default(%e) in \"\" at \"m.py:2\"
op %i i64[8] = aten.arange.default(8) in \"\" at \"m.py:3\"
op %a f64[4,8] = aten.add.Tensor(%x, %r) in \"\" at \"m.py:4\"
op %b f64[4,8] = aten.mul.Tensor(%a, %i) in \"\" at \"m.py:5\"
op %s f64[] = aten.sum.default(%b) in \"\" at \"m.py:6\"
output %s
";

const SPREAD: &str = "group 0,2 1,3
group 0,1,2,3
ranks 0,1,2,3
constant lo 0 5 0 5
constant hi 5 8 5 8
constant n 5 3 5 3
shard p %p 0..5 | 5..8 | 0..5 | 5..8
input x %x 0..2,0..5 | 0..2,5..8 | 2..4,0..5 | 2..4,5..8
call 0 x, p -> s : e = aten.expand.default(p, [2, n]) ; r = aten.relu.default(e) ; i = aten.arange.start_step(lo, hi, 1, dtype=i64) ; a = aten.add.Tensor(x, r) ; b = aten.mul.Tensor(a, i) ; s = aten.sum.default(b)
all_reduce g1 sum s -> t
output t
seed ds
grad 0 ds ->
reduce_gradients g0 p
";

#[test]
fn what_is_the_same_everywhere_lies_where_it_is_used() {
    proof(&graph(POSITIONS), SPREAD);
    breaks(POSITIONS, SPREAD, "constant lo 0 5 0 5", "constant lo 0 4 0 4", "SW0504");
    breaks(POSITIONS, SPREAD, "[2, n]", "[3, n]", "SW0504");
    breaks(POSITIONS, SPREAD, "reduce_gradients g0 p\n", "", "SW0511");
    breaks(POSITIONS, SPREAD, "group 0,2 1,3", "group 0,1 2,3", "SW0508");
}

const REPEATED: &str = "param %p f64[1,8] \"p\"
op %e f64[4,8] = aten.expand.default(%p, [4, 8]) in \"\" at \"m.py:1\"
op %s f64[] = aten.sum.default(%e) in \"\" at \"m.py:2\"
output %s
";

const MIXED: &str = "group 0,1
ranks 0
shard p %p :
call 0 p -> e : e = aten.expand.default(p, [3, 8])
all_gather g0 e -> w : [4, 8] 0 [3, 1]
call 2 w -> s : s = aten.sum.default(w)
output s
ranks 1
shard p %p :
call 0 p -> e : e = aten.expand.default(p, [4, 8])
slice e -> f : [4, 8] 3..4, 0..8
all_gather g0 f -> w : [4, 8] 0 [3, 1]
call 2 w -> s : s = aten.sum.default(w)
output s
";

#[test]
fn what_is_the_same_everywhere_is_joined_where_there_is_room() {
    proof(&graph(REPEATED), MIXED);
    // One row before the last is not the row that is missing.
    breaks(REPEATED, MIXED, "3..4, 0..8", "2..3, 0..8", "SW0507");
    breaks(REPEATED, MIXED, "aten.expand.default(p, [3, 8])", "aten.expand.default(p, [2, 8])", "SW0507");
}

const LARGEST: &str = "param %p f64[2,6] \"p\"
op %f f64[2,6] = aten.full.default([2, 6], 0.5, dtype=f64) in \"\" at \"m.py:1\"
op %m f64[2,1] = aten.amax.default(%f, [1], True) in \"\" at \"m.py:2\"
op %a f64[2,6] = aten.mul.Tensor(%p, %m) in \"\" at \"m.py:3\"
op %s f64[] = aten.sum.default(%a) in \"\" at \"m.py:4\"
output %s
";

const OF_PARTS: &str = "group 0,1
ranks 0,1
constant n 4 2
shard p %p :,:
call 0 -> m : f = aten.full.default([2, n], 0.5, dtype=f64) ; m = aten.amax.default(f, [1], True)
all_reduce g0 max m -> t
call 2 p, t -> s : a = aten.mul.Tensor(p, t) ; s = aten.sum.default(a)
output s
";

#[test]
fn the_largest_of_what_is_the_same_everywhere_is_that_of_parts_wherever_they_are() {
    proof(&graph(LARGEST), OF_PARTS);
    breaks(LARGEST, OF_PARTS, "all_reduce g0 max m -> t", "all_reduce g0 sum m -> t", "SW0508");
    proof(&graph(LARGEST), &OF_PARTS.replace("constant n 4 2", "constant n 4 1"));
    breaks(LARGEST, OF_PARTS, "constant n 4 2", "constant n 0 0", "SW0505");
}

const FLUID: &str = "param %p f64[2,5] \"p\"
op %v f64[10] = aten.view.default(%p, [10]) in \"\" at \"m.py:1\"
op %f f64[10] = aten.full.default([10], 0.5, dtype=f64) in \"\" at \"m.py:2\"
op %e f64[10] = aten.exp.default(%f) in \"\" at \"m.py:3\"
op %a f64[10] = aten.mul.Tensor(%e, %v) in \"\" at \"m.py:4\"
op %s f64[] = aten.sum.default(%a) in \"\" at \"m.py:5\"
output %s
";

const DIVIDED: &str = "group 0,1,2,3
ranks 0,1,2,3
constant n 3 2 3 2
shard p %p 0..1,0..3 | 0..1,3..5 | 1..2,0..3 | 1..2,3..5
call 0 p -> s : v = aten.reshape.default(p, [n]) ; f = aten.full.default([n], 0.5, dtype=f64) ; e = aten.exp.default(f) ; a = aten.mul.Tensor(e, v) ; s = aten.sum.default(a)
all_reduce g0 sum s -> t
output t
seed ds
grad 0 ds ->
";

#[test]
fn a_dim_that_is_the_same_everywhere_is_divided_over_any_of_its_factors() {
    proof(&graph(FLUID), DIVIDED);
    let longer = "f = aten.full.default([4], 0.5, dtype=f64)";
    breaks(FLUID, DIVIDED, "f = aten.full.default([n], 0.5, dtype=f64)", longer, "SW0504");
    // What is divided over all factors of the parameter is not the same everywhere.
    breaks(FLUID, DIVIDED, "0..1,0..3 | 0..1,3..5", "0..1,0..3 | 0..1,0..2", "SW0508");
}

const COPIES: &str = "param %p f64[2,5] \"p\"
op %r f64[8,5] = aten.repeat.default(%p, [4, 1]) in \"\" at \"m.py:1\"
op %v f64[2,2,2,5] = aten.reshape.default(%r, [2, 2, 2, 5]) in \"\" at \"m.py:2\"
op %s f64[] = aten.sum.default(%v) in \"\" at \"m.py:3\"
output %s
";

const HALVED: &str = "group 0,1
ranks 0,1
shard p %p :,:
call 0 p -> r : r = aten.repeat.default(p, [2, 1])
all_gather g0 r -> w : [[2, 2, 2], 5] 1 [1, 1]
call 2 w -> s : v = aten.reshape.default(w, [2, 2, 2, 5]) ; s = aten.sum.default(v)
output s
";

#[test]
fn copies_are_divided_over_any_of_their_factors() {
    proof(&graph(COPIES), HALVED);
    let outer = HALVED.replace("] 1 [1, 1]", "] 0 [1, 1]");
    proof(&graph(COPIES), &outer);
    // The innermost factor is the rows that are repeated: they are not the same everywhere.
    breaks(COPIES, HALVED, "] 1 [1, 1]", "] 2 [1, 1]", "SW0507");
    breaks(COPIES, HALVED, "(p, [2, 1])", "(p, [3, 1])", "SW0504");
}

const ROWS: &str = "input %i i64[4] 0
op %w f64[6,3] = aten.full.default([6, 3], 0.5, dtype=f64) in \"\" at \"m.py:1\"
op %e f64[4,3] = aten.embedding.default(%w, %i) in \"\" at \"m.py:2\"
op %s f64[] = aten.sum.default(%e) in \"\" at \"m.py:3\"
output %s
";

const PLACED: &str = "group 0,1
ranks 0,1
constant lo 0 4
constant n 4 2
input i %i :
call 0 i -> s : w = aten.full.default([n, 3], 0.5, dtype=f64) ; e = sw.embedding_shard(w, i, lo, -1, 6) ; s = aten.sum.default(e)
all_reduce g0 sum s -> t
output t
";

#[test]
fn where_a_part_of_what_is_the_same_everywhere_lies_is_told_by_its_arguments() {
    proof(&graph(ROWS), PLACED);
    breaks(ROWS, PLACED, "constant lo 0 4", "constant lo 0 3", "SW0508");
    // Beyond the table, or before it, there is nothing.
    breaks(ROWS, PLACED, "constant lo 0 4", "constant lo 0 5", "SW0504");
    breaks(ROWS, PLACED, "constant lo 0 4", "constant lo 0 -1", "SW0504");
}

const HEADS: &str = "input %x f64[2,4] 0
param %w f64[24,4] \"w\"
op %f f64[2,24] = aten.linear.default(%x, %w) in \"\" at \"m.py:1\"
op %g f64[2,3,4,2] = aten.view.default(%f, [2, 3, 4, 2]) in \"\" at \"m.py:2\"
op %q f64[2,4,2], %k f64[2,4,2], %v f64[2,4,2] = aten.unbind.int(%g, 1) in \"\" at \"m.py:3\"
op %a f64[2,4,2] = aten.mul.Tensor(%q, %k) in \"\" at \"m.py:4\"
op %b f64[2,4,2] = aten.mul.Tensor(%a, %v) in \"\" at \"m.py:5\"
op %s f64[] = aten.sum.default(%b) in \"\" at \"m.py:6\"
output %s
";

const FUSED: &str = "group 0,1
ranks 0,1
shard w %w :,0..2,:,: | :,2..4,:,:
input x %x :,:
call 0 x, w -> s : f = aten.linear.default(x, w) ; g = aten.reshape.default(f, [2, 3, 2, 2]) ; q, k, v = aten.unbind.int(g, 1) ; a = aten.mul.Tensor(q, k) ; b = aten.mul.Tensor(a, v) ; s = aten.sum.default(b)
all_reduce g0 sum s -> t
output t
seed ds
grad 0 ds ->
";

#[test]
fn a_fused_projection_is_split_by_heads() {
    proof(&graph(HEADS), FUSED);
    breaks(HEADS, FUSED, "a = aten.mul.Tensor(q, k)", "a = aten.mul.Tensor(k, v)", "SW0504");
}

const GATHERED: &str = "group 0,1
ranks 0,1
constant lo 0 2
constant hi 2 4
shard w %w :,0..2,:,: | :,2..4,:,:
input x %x :,:
call 0 x, w -> f : f = aten.linear.default(x, w)
all_gather g0 f -> h : [2, [3, 4, 2]] 2 [2, 2]
call 2 h -> s : g = aten.reshape.default(h, [2, 3, 4, 2]) ; q, k, v = aten.unbind.int(g, 1) ; a = aten.mul.Tensor(q, k) ; b = aten.mul.Tensor(a, v) ; s = aten.sum.default(b)
output s
seed ds
grad 2 ds -> dh
slice dh -> df : [2, [3, 4, 2]] 0..2, 0..3, lo..hi, 0..2
grad 0 df ->
";

#[test]
fn a_cut_inside_a_dim_is_one_of_its_factors() {
    proof(&graph(HEADS), GATHERED);
    breaks(HEADS, GATHERED, "h : [2, [3, 4, 2]] 2", "h : [2, [2, 4, 3]] 2", "SW0507");
    breaks(HEADS, GATHERED, "h : [2, [3, 4, 2]] 2 [2, 2]", "h : [2, 24] 1 [12, 12]", "SW0507");
    breaks(HEADS, GATHERED, "lo..hi, 0..2\n", "0..2, 0..2\n", "SW0509");
}

const DROPOUT: &str = "input %x f64[4,8] 0
param %w f64[8] \"w\"
op %y f64[4,8] = aten.mul.Tensor(%x, %w) in \"\" at \"m.py:1\"
op %d f64[4,8] = aten.dropout.default(%y, 0.5, True) in \"\" at \"m.py:2\"
op %e f64[4,8] = aten.dropout.default(%y, 0.5, True) in \"\" at \"m.py:3\"
op %z f64[4,8] = aten.add.Tensor(%d, %e) in \"\" at \"m.py:4\"
op %s f64[] = aten.sum.default(%z) in \"\" at \"m.py:5\"
output %s
";

const DROPPED: &str = "group 0,1
ranks 0,1
shard w %w :
input x %x 0..2,: | 2..4,:
random 1 0..2,: | 2..4,:
random 2 0..2,: | 2..4,:
keep 0 x
recompute 0 x, w -> s : y = aten.mul.Tensor(x, w) ; d = sw.dropout(y, 0.5, 1, 0) ; e = sw.dropout(y, 0.5, 2, 0) ; z = aten.add.Tensor(d, e) ; s = aten.sum.default(z)
all_reduce g0 sum s -> t
output t
seed ds
take 0 -> x2
call 1 x2, w -> s2 : y2 = aten.mul.Tensor(x2, w) ; d2 = sw.dropout(y2, 0.5, 1, 0) ; e2 = sw.dropout(y2, 0.5, 2, 0) ; z2 = aten.add.Tensor(d2, e2) ; s2 = aten.sum.default(z2)
grad 1 ds ->
reduce_gradients g0 w
";

#[test]
fn random_operators_draw_for_their_own_region() {
    let proof = proof(&graph(DROPOUT), DROPPED);
    assert!(proof.functions.contains("sw.dropout"));
    breaks(DROPOUT, DROPPED, "random 1 0..2,: | 2..4,:", "random 1 0..2,: | 0..2,:", "SW0515");
    breaks(DROPOUT, DROPPED, "random 2 0..2,: | 2..4,:\n", "", "SW0515");
    breaks(DROPOUT, DROPPED, "e = sw.dropout(y, 0.5, 2, 0)", "e = sw.dropout(y, 0.5, 1, 0)", "SW0504");
    // Computed again, with the masks of the other operator, or of another part.
    breaks(DROPOUT, DROPPED, "e2 = sw.dropout(y2, 0.5, 2, 0)", "e2 = sw.dropout(y2, 0.5, 1, 0)", "SW0504");
    breaks(DROPOUT, DROPPED, "e2 = sw.dropout(y2, 0.5, 2, 0)", "e2 = sw.dropout(y2, 0.5, 2, 1)", "SW0515");
    let overlapping = DROPPED
        .replace("0..2,: | 2..4,:", "0..2,: | 0..4,:")
        .replace("all_reduce g0 sum s -> t\noutput t", "output s");
    let found = faults(&graph(DROPOUT), &overlapping.replace("reduce_gradients g0 w\n", ""));
    assert!(found.iter().any(|fault| fault.what.contains("overlap")), "{found:?}");
}

const NORM: &str = "input %x f64[4,8] 0
buffer %m f64[8] \"mean\"
op %c f64[8] = aten.mean.dim(%x, [0]) in \"\" at \"m.py:1\" nograd
op %o f64[8] = aten.mul.Tensor(%m, 0.9) in \"\" at \"m.py:2\" nograd
op %n f64[8] = aten.add.Tensor(%o, %c) in \"\" at \"m.py:3\" nograd
op %y f64[4,8] = aten.sub.Tensor(%x, %m) in \"\" at \"m.py:4\"
output %y
update \"mean\" %n
";

const TRACKED: &str = "group 0,1
ranks 0,1
shard m %m :
input x %x 0..2,: | 2..4,:
call 0 x -> c : c = sw.mean(x, [0], False, 4, None) nograd
all_reduce g0 sum c -> d
call 2 x, m, d -> y, n : o = aten.mul.Tensor(m, 0.9) nograd ; n = aten.add.Tensor(o, d) nograd ; y = aten.sub.Tensor(x, m)
all_gather g0 y -> z : [4, 8] 0 [2, 2]
update m n
output z
";

#[test]
fn buffers_get_their_new_value_once() {
    let proof = proof(&graph(NORM), TRACKED);
    assert!(!proof.backward);
    breaks(NORM, TRACKED, "update m n\n", "", "SW0513");
    breaks(NORM, TRACKED, "update m n\n", "update m n\nupdate m n\n", "SW0513");
    breaks(NORM, TRACKED, "update m n\n", "update m d\n", "SW0513");
    breaks(NORM, TRACKED, "[0], False, 4, None", "[0], False, 2, None", "SW0504");
    breaks(
        NORM,
        TRACKED,
        "all_gather g0 y -> z : [4, 8] 0 [2, 2]",
        "all_gather g0 y -> z : [4, 8] 0 [2, 1]",
        "SW0507",
    );
}

const FOLLOWING: &str = "input %x f64[4,8] 0
param %w f64[8] \"w\"
param %k f64[8] \"k\" frozen
op %o f64[8] = aten.mul.Tensor(%k, 0.9) in \"\" at \"m.py:1\" nograd
op %n f64[8] = aten.add.Tensor(%o, %w) in \"\" at \"m.py:2\" nograd
op %y f64[4,8] = aten.mul.Tensor(%x, %w) in \"\" at \"m.py:3\"
op %z f64[4,8] = aten.mul.Tensor(%y, %n) in \"\" at \"m.py:4\"
op %s f64[] = aten.sum.default(%z) in \"\" at \"m.py:5\"
output %s
update \"k\" %n
";

/// Each rank has a half of both parameters, and all of the batch.
const FOLLOWED: &str = "group 0,1
ranks 0,1
shard w %w 0..4 | 4..8
shard k %k 0..4 | 4..8
input x %x :,0..4 | :,4..8
call 0 w, k -> n : o = aten.mul.Tensor(k, 0.9) nograd ; n = aten.add.Tensor(o, w) nograd
call 1 x, w, n -> s : y = aten.mul.Tensor(x, w) ; z = aten.mul.Tensor(y, n) ; s = aten.sum.default(z)
all_reduce g0 sum s -> t
update k n
output t
seed ds
grad 1 ds ->
";

#[test]
fn parameters_that_forward_writes_get_their_new_value_once() {
    proof(&graph(FOLLOWING), FOLLOWED);
    let broken = |from: &str, to: &str, code: &str| breaks(FOLLOWING, FOLLOWED, from, to, code);
    // Not, twice, with the value before the last, the other parameter's, and before it is there.
    broken("update k n\n", "", "SW0513");
    broken("update k n\n", "update k n\nupdate k n\n", "SW0513");
    let before = FOLLOWED.replace("k -> n :", "k -> n, o :").replace("update k n", "update k o");
    assert!(faults(&graph(FOLLOWING), &before).iter().any(|fault| fault.code == "SW0513"));
    broken("update k n\n", "update k w\n", "SW0513");
    broken("update k n\n", "update w n\n", "SW0513");
    // Of another region; the new value of an old one; what is read is the old value, or the new one twice.
    broken("shard k %k 0..4 | 4..8", "shard k %k 0..4 | 0..4", "SW0504");
    broken("z = aten.mul.Tensor(y, n)", "z = aten.mul.Tensor(y, w)", "SW0504");
    let late = FOLLOWED.replace("call 1", "update k n\ncall 1").replacen("update k n\noutput", "output", 1);
    proof(&graph(FOLLOWING), &late);
    let read = late.replace("x, w, n -> s :", "x, w, n, k -> s : o3 = aten.mul.Tensor(k, 0.9) nograd ;");
    assert!(
        faults(&graph(FOLLOWING), &read).iter().any(|fault| fault.what.contains("read after its update"))
    );
}

const TIED: &str = "input %i i64[4] 0
param %w f64[9,6] \"wte\" \"head\"
op %x f64[4,6] = aten.embedding.default(%w, %i) in \"\" at \"m.py:1\"
op %y f64[4,9] = aten.linear.default(%x, %w) in \"\" at \"m.py:2\"
op %s f64[] = aten.sum.default(%y) in \"\" at \"m.py:3\"
output %s
";

const VOCABULARY: &str = "group 0,1
ranks 0,1
constant start 0 5
shard w %w 0..5,: | 5..9,:
input i %i :
call 0 w, i -> x : x = sw.embedding_shard(w, i, start, -1, 9)
all_reduce g0 sum x -> x2
call 2 x2, w -> s : y = aten.linear.default(x2, w) ; s = aten.sum.default(y)
all_reduce g0 sum s -> t
output t
seed ds
grad 2 ds -> dx
all_reduce g0 sum dx -> dx2
grad 0 dx2 ->
";

#[test]
fn tied_and_uneven() {
    proof(&graph(TIED), VOCABULARY);
    breaks(TIED, VOCABULARY, "all_reduce g0 sum dx -> dx2\ngrad 0 dx2", "grad 0 dx", "SW0511");
    breaks(TIED, VOCABULARY, "constant start 0 5", "constant start 0 4", "SW0504");
    breaks(TIED, VOCABULARY, "grad 0 dx2 ->\n", "", "SW0511");
    // Two leaves of one shard add up.
    let two = VOCABULARY
        .replace("shard w %w 0..5,: | 5..9,:", "shard w %w 0..5,: | 5..9,:\nleaf v w 0..5,: | 5..9,:")
        .replace("call 2 x2, w", "call 2 x2, v")
        .replace("default(x2, w)", "default(x2, v)");
    proof(&graph(TIED), &two);
}

const STAGES: &str = "input %x f64[4,8] 0
param %w f64[8,8] \"w\"
param %v f64[8,8] \"v\"
op %a f64[4,8] = aten.linear.default(%x, %w) in \"0\" at \"m.py:1\"
op %r f64[4,8] = aten.relu.default(%a) in \"0\" at \"m.py:1\"
op %b f64[4,8] = aten.linear.default(%r, %v) in \"1\" at \"m.py:2\"
op %s f64[] = aten.sum.default(%b) in \"1\" at \"m.py:3\"
output %s
";

const PIPELINE: &str = "ranks 0
shard w %w :,:
input x %x :,:
call 0 x, w -> r : a = aten.linear.default(x, w) ; r = aten.relu.default(a)
exchange 1 r ->
exchange 3 -> s
output s
seed ds
exchange 4 -> dr
grad 0 dr ->
ranks 1
shard v %v :,:
exchange 1 -> r
call 2 r, v -> s : b = aten.linear.default(r, v) ; s = aten.sum.default(b)
exchange 3 s ->
output s
seed ds
grad 2 ds -> dr
exchange 4 dr ->
table 1 %r sum
from 0 :,:
to 1 :,:
piece 0 0 :,:
table 3 %s sum
from 1
to 0
piece 0 0
table 4 %r sum
from 1 :,:
to 0 :,:
piece 0 0 :,:
";

#[test]
fn a_pipeline_sends_and_receives() {
    proof(&graph(STAGES), PIPELINE);
    breaks(STAGES, PIPELINE, "exchange 4 dr ->\ntable", "table", "SW0506");
    breaks(STAGES, PIPELINE, "table 1 %r", "table 1 %a", "SW0507");
    breaks(STAGES, PIPELINE, "piece 0 0 :,:\ntable 3", "piece 0 0 :,0..4\ntable 3", "SW0505");
    breaks(STAGES, PIPELINE, "exchange 4 -> dr\ngrad 0 dr ->", "grad 0 _ ->", "SW0506");
}

const SWAP: &str = "input %x f64[4,8] 0
param %w f64[4,8] \"w\"
op %y f64[4,8] = aten.mul.Tensor(%x, %w) in \"\" at \"m.py:1\"
op %p f64[4,8] = aten.softmax.int(%y, 1) in \"\" at \"m.py:2\"
op %s f64[] = aten.sum.default(%p) in \"\" at \"m.py:3\"
output %s
";

const SWAPPED: &str = "group 0,1
ranks 0,1
constant wide 5 3
constant rows 2 2
shard w %w :,0..5 | :,5..8
input x %x :,0..5 | :,5..8
call 0 x, w -> y : y = aten.mul.Tensor(x, w)
all_to_all g0 y -> z : [4, wide] 0 [2, 2] : [rows, 8] 1 [5, 3]
call 2 z -> s : p = aten.softmax.int(z, 1) ; s = aten.sum.default(p)
all_reduce g0 sum s -> t
output t
seed ds
grad 2 ds -> dz
all_to_all g0 dz -> dy : [rows, 8] 1 [5, 3] : [4, wide] 0 [2, 2]
grad 0 dy ->
";

#[test]
fn a_cut_moves_from_one_dim_to_another() {
    proof(&graph(SWAP), SWAPPED);
    breaks(SWAP, SWAPPED, "[rows, 8] 1 [5, 3]\ncall", "[rows, 8] 1 [3, 5]\ncall", "SW0507");
    breaks(SWAP, SWAPPED, "[4, wide] 0 [2, 2] : [rows", "[4, wide] 0 [3, 1] : [rows", "SW0507");
    breaks(SWAP, SWAPPED, "constant wide 5 3", "constant wide 4 4", "SW0507");
}

const AGAIN: &str = "input %x f64[4,8] 0
param %w f64[8] \"w\"
buffer %m f64[8] \"mean\"
op %n f64[8] = aten.mul.Tensor(%m, 0.9) in \"\" at \"m.py:1\" nograd
op %y f64[4,8] = aten.mul.Tensor(%x, %w) in \"\" at \"m.py:2\"
op %z f64[4,8] = aten.mul.Tensor(%y, %m) in \"\" at \"m.py:3\"
op %s f64[] = aten.sum.default(%z) in \"\" at \"m.py:4\"
output %s
update \"mean\" %n
";

const RECOMPUTED: &str = "ranks 0
shard w %w :
shard m %m :
input x %x :,:
keep 0 x
recompute 0 x, w -> y : y = aten.mul.Tensor(x, w)
call 1 y, m -> s, n : n = aten.mul.Tensor(m, 0.9) nograd ; z = aten.mul.Tensor(y, m) ; s = aten.sum.default(z)
update m n
output s
seed ds
grad 1 ds -> dy
take 0 -> x2
call 2 x2, w -> y2 : y2 = aten.mul.Tensor(x2, w)
grad 2 dy ->
";

#[test]
fn what_is_not_kept_is_computed_again() {
    proof(&graph(AGAIN), RECOMPUTED);
    let broken = |from: &str, to: &str, code: &str| breaks(AGAIN, RECOMPUTED, from, to, code);
    // Backward of what kept nothing, twice, before it, or with values that are gone.
    broken("grad 2 dy ->", "grad 0 dy ->", "SW0509");
    broken("call 2", "recompute 2", "SW0509");
    broken("grad 2 dy ->", "grad 2 dy ->\ngrad 2 dy ->", "SW0509");
    broken("call 2 x2, w -> y2 : y2 = aten.mul.Tensor(x2, w)\ngrad 2 dy ->", "grad 2 dy ->", "SW0509");
    broken(
        "call 2 x2, w -> y2 : y2 = aten.mul.Tensor(x2, w)",
        "call 2 x, w -> y2 : y2 = aten.mul.Tensor(x, w)",
        "SW0503",
    );
    // Not kept, not taken, taken twice, another number, another value.
    broken("keep 0 x\n", "", "SW0503");
    broken("take 0 -> x2\n", "", "SW0503");
    broken("take 0 -> x2\n", "take 0 -> x2\ntake 0 -> x3\n", "SW0503");
    broken("take 0 -> x2\n", "take 0 -> x2, x3\n", "SW0503");
    broken("keep 0 x\n", "keep 1 x\n", "SW0503");
    broken("keep 0 x\n", "keep 0 w\n", "SW0504");
    // Computed again, of something else.
    broken("y2 = aten.mul.Tensor(x2, w)", "y2 = aten.mul.Tensor(x2, x2)", "SW0504");
    broken("y2 = aten.mul.Tensor(x2, w)", "y2 = aten.mul.Tensor(x2, m)", "SW0503");
}

const GIVEN_AGAIN: &str = "ranks 0
shard w %w :
shard m %m :
input x %x :,:
keep 0 x
recompute 0 x, w -> y : y = aten.mul.Tensor(x, w)
forget 1 y, m -> s, n : n = aten.mul.Tensor(m, 0.9) nograd ; z = aten.mul.Tensor(y, m) ; s = aten.sum.default(z)
update m n
output s
seed ds
take 0 -> x2
call 2 x2, w -> y2 : y2 = aten.mul.Tensor(x2, w)
grad 1 ds -> dy : y2
grad 2 dy ->
";

#[test]
fn what_a_call_forgets_its_backward_is_given_again() {
    proof(&graph(AGAIN), GIVEN_AGAIN);
    let broken = |from: &str, to: &str, code: &str| breaks(AGAIN, GIVEN_AGAIN, from, to, code);
    // Not given, given though it is there, of another number, before it is there, and something else.
    broken("grad 1 ds -> dy : y2", "grad 1 ds -> dy", "SW0509");
    broken("forget 1", "call 1", "SW0509");
    broken("grad 1 ds -> dy : y2", "grad 1 ds -> dy : y2, y2", "SW0509");
    broken("grad 1 ds -> dy : y2", "grad 1 ds -> dy : y", "SW0503");
    broken("grad 1 ds -> dy : y2", "grad 1 ds -> dy : x2", "SW0509");
    broken("grad 1 ds -> dy : y2", "grad 1 ds -> dy : ds", "SW0509");
}

const ON_THE_HOST: &str = "ranks 0
shard w %w :
shard m %m :
input x %x :,:
offload 0 x, w -> y : y = aten.mul.Tensor(x, w)
offload 1 y, m -> s, n : n = aten.mul.Tensor(m, 0.9) nograd ; z = aten.mul.Tensor(y, m) ; s = aten.sum.default(z)
update m n
output s
seed ds
fetch 1
fetch 0
grad 1 ds -> dy
grad 0 dy ->
";

#[test]
fn what_is_sent_to_the_host_is_back_when_it_is_needed() {
    proof(&graph(AGAIN), ON_THE_HOST);
    let broken = |from: &str, to: &str| breaks(AGAIN, ON_THE_HOST, from, to, "SW0526");
    // Never brought back; too late; another's; twice; of what was not sent; and in forward.
    broken("fetch 0\n", "");
    broken("grad 0 dy ->\n", "");
    broken("fetch 0\ngrad 1 ds -> dy\ngrad 0 dy ->", "grad 1 ds -> dy\ngrad 0 dy ->\nfetch 0");
    broken("fetch 0\n", "fetch 1\n");
    broken("fetch 0\n", "fetch 0\nfetch 0\n");
    broken("offload 0", "call 0");
    broken("fetch 0\n", "fetch 7\n");
    broken("fetch 0\n", "fetch_kept 0\n");
    // Where forward brings back what it sent, and where backward sends something.
    let refused = |plant: &dyn Fn(&mut Body)| {
        let mut made = support::program(&graph(AGAIN), ON_THE_HOST);
        plant(&mut made.roles[0].body);
        let found = check::check(&graph(AGAIN), &made).expect_err("it is elsewhere");
        assert!(found.iter().any(|fault| fault.code == "SW0526"), "{found:?}");
    };
    refused(&|body| {
        let fetch = body.code_mut(0, Pass::Backward).instrs.remove(0);
        body.code_mut(0, Pass::Forward).instrs.push(fetch);
    });
    let again = RECOMPUTED.replace("call 2 x2", "offload 2 x2").replace("grad 2 dy", "fetch 2\ngrad 2 dy");
    assert!(faults(&graph(AGAIN), &again).iter().any(|fault| fault.code == "SW0526"));
}

#[test]
fn values_on_the_host_are_back_when_they_are_taken() {
    let offloaded = GIVEN_AGAIN
        .replace("keep 0 x", "keep_away 0 x")
        .replace("take 0 -> x2", "fetch_kept 0\ntake 0 -> x2");
    proof(&graph(AGAIN), &offloaded);
    let broken = |from: &str, to: &str| breaks(AGAIN, &offloaded, from, to, "SW0526");
    broken("fetch_kept 0\n", "");
    broken("fetch_kept 0\n", "fetch_kept 0\nfetch_kept 0\n");
    broken("fetch_kept 0\n", "fetch 0\n");
    broken("fetch_kept 0\ntake 0 -> x2\n", "take 0 -> x2\nfetch_kept 0\n");
    broken("keep_away 0 x", "keep 0 x");
    // Backward needs at once what it makes again.
    broken("call 2 x2", "offload 2 x2");
}

#[test]
fn what_is_computed_again_does_not_see_updates() {
    let wider = RECOMPUTED
        .replace("recompute 0 x, w -> y : y = aten.mul.Tensor(x, w)\n", "")
        .replace("call 1 y, m -> s, n :", "recompute 1 x, w, m -> s, n : y = aten.mul.Tensor(x, w) ;")
        .replace("grad 1 ds -> dy\n", "")
        .replace(
            "call 2 x2, w -> y2 : y2 = aten.mul.Tensor(x2, w)\ngrad 2 dy ->",
            "call 2 x2, w, m -> s2 : y2 = aten.mul.Tensor(x2, w) ; z2 = aten.mul.Tensor(y2, m) ; \
             s2 = aten.sum.default(z2)\ngrad 2 ds ->",
        );
    assert!(faults(&graph(AGAIN), &wider).iter().any(|fault| fault.code == "SW0513"));
    let twice = RECOMPUTED
        .replace("update m n\n", "keep 1 n\nupdate m n\n")
        .replace("grad 2 dy ->", "take 1 -> n2\nupdate m n2\ngrad 2 dy ->");
    assert!(faults(&graph(AGAIN), &twice).iter().any(|fault| fault.what.contains("updated twice")));
}

const TWINS: &str = "input %x f64[4,8] 0
param %w f64[8] \"w\"
op %a f64[4,8] = aten.mul.Tensor(%x, %w) in \"\" at \"m.py:1\"
op %b f64[4,8] = aten.mul.Tensor(%x, %w) in \"\" at \"m.py:2\"
op %c f64[4,8] = aten.relu.default(%a) in \"\" at \"m.py:3\"
op %d f64[4,8] = aten.tanh.default(%b) in \"\" at \"m.py:4\"
op %z f64[4,8] = aten.add.Tensor(%c, %d) in \"\" at \"m.py:5\"
op %s f64[] = aten.sum.default(%z) in \"\" at \"m.py:6\"
output %s
";

#[test]
fn equal_computations_are_one() {
    let program = |ops: &str| {
        format!(
            "ranks 0\nshard w %w :\ninput x %x :,:\ncall 0 x, w -> s : {ops} ; z = aten.add.Tensor(c, d) ; \
             s = aten.sum.default(z)\noutput s\nseed ds\ngrad 0 ds ->\n"
        )
    };
    let twice = "a = aten.mul.Tensor(x, w) ; b = aten.mul.Tensor(x, w) ; c = aten.relu.default(a) ; d = aten.tanh.default(b)";
    proof(&graph(TWINS), &program(twice));
    let once = "a = aten.mul.Tensor(x, w) ; c = aten.relu.default(a) ; d = aten.tanh.default(a)";
    proof(&graph(TWINS), &program(once));
}

/// Without any one of its instructions, a program is not proved.
#[test]
fn every_instruction_matters() {
    const WORDS: [&str; 15] = [
        "keep",
        "take",
        "call",
        "recompute",
        "forget",
        "all_reduce",
        "all_gather",
        "reduce_scatter",
        "all_to_all",
        "exchange",
        "slice",
        "add",
        "update",
        "grad",
        "piece",
    ];
    let mlp = include_str!("programs/mlp.graph");
    let layer = include_str!("programs/layer.graph");
    let programs = [
        (SUM, PARTIAL),
        (POSITIONS, SPREAD),
        (HEADS, FUSED),
        (HEADS, GATHERED),
        (DROPOUT, DROPPED),
        (NORM, TRACKED),
        (TIED, VOCABULARY),
        (STAGES, PIPELINE),
        (SWAP, SWAPPED),
        (AGAIN, RECOMPUTED),
        (mlp, include_str!("programs/megatron.txt")),
        (mlp, include_str!("programs/data.txt")),
        (mlp, include_str!("programs/exchanged.txt")),
        (layer, include_str!("programs/layer_tensor.txt")),
        (layer, include_str!("programs/layer_sequence.txt")),
        (layer, include_str!("programs/layer_late.txt")),
    ];
    for (graph_text, program) in programs {
        let lines: Vec<&str> = program.lines().collect();
        for (at, line) in lines.iter().enumerate() {
            let word = line.split(' ').next().unwrap_or_default();
            if WORDS.contains(&word) || word.ends_with("_gradients") {
                let without: Vec<&str> = [&lines[..at], &lines[at + 1..]].concat();
                let found = faults(&graph(graph_text), &without.join("\n"));
                assert!(!found.is_empty(), "{line} is not missed");
            }
        }
    }
}
