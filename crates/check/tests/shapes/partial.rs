//! Sums of which each rank has a share.

use super::*;

pub const SUM: &str = "input %x f64[4,8] 0
param %w f64[6,8] \"w\"
param %v f64[6] \"v\"
op %y f64[4,6] = aten.linear.default(%x, %w) in \"\" at \"m.py:1\"
op %z f64[4,6] = aten.mul.Tensor(%y, %v) in \"\" at \"m.py:2\"
op %s f64[] = aten.sum.default(%z) in \"\" at \"m.py:3\"
output %s
";

pub const PARTIAL: &str = "group 0,1
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

pub const TIED: &str = "input %i i64[4] 0
param %w f64[9,6] \"wte\" \"head\"
op %x f64[4,6] = aten.embedding.default(%w, %i) in \"\" at \"m.py:1\"
op %y f64[4,9] = aten.linear.default(%x, %w) in \"\" at \"m.py:2\"
op %s f64[] = aten.sum.default(%y) in \"\" at \"m.py:3\"
output %s
";

pub const VOCABULARY: &str = "group 0,1
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
