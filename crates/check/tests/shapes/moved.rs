//! Values that go from rank to rank, or from one dim to another.

use super::*;

pub const STAGES: &str = "input %x f64[4,8] 0
param %w f64[8,8] \"w\"
param %v f64[8,8] \"v\"
op %a f64[4,8] = aten.linear.default(%x, %w) in \"0\" at \"m.py:1\"
op %r f64[4,8] = aten.relu.default(%a) in \"0\" at \"m.py:1\"
op %b f64[4,8] = aten.linear.default(%r, %v) in \"1\" at \"m.py:2\"
op %s f64[] = aten.sum.default(%b) in \"1\" at \"m.py:3\"
output %s
";

pub const PIPELINE: &str = "ranks 0
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

pub const SWAP: &str = "input %x f64[4,8] 0
param %w f64[4,8] \"w\"
op %y f64[4,8] = aten.mul.Tensor(%x, %w) in \"\" at \"m.py:1\"
op %p f64[4,8] = aten.softmax.int(%y, 1) in \"\" at \"m.py:2\"
op %s f64[] = aten.sum.default(%p) in \"\" at \"m.py:3\"
output %s
";

pub const SWAPPED: &str = "group 0,1
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
