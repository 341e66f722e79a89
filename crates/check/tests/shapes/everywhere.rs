//! What is the same on all ranks, in whichever parts.

use super::*;

pub const POSITIONS: &str = "input %x f64[4,8] 0
param %p f64[1,8] \"p\"
op %e f64[4,8] = aten.expand.default(%p, [4, 8]) in \"\" at \"m.py:1\"
op %r f64[4,8] = aten.relu.default(%e) in \"\" at \"m.py:2\"
op %i i64[8] = aten.arange.default(8) in \"\" at \"m.py:3\"
op %a f64[4,8] = aten.add.Tensor(%x, %r) in \"\" at \"m.py:4\"
op %b f64[4,8] = aten.mul.Tensor(%a, %i) in \"\" at \"m.py:5\"
op %s f64[] = aten.sum.default(%b) in \"\" at \"m.py:6\"
output %s
";

pub const SPREAD: &str = "group 0,2 1,3
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
