//! Dims that are cut inside, along one of their factors.

use super::*;

pub const HEADS: &str = "input %x f64[2,4] 0
param %w f64[24,4] \"w\"
op %f f64[2,24] = aten.linear.default(%x, %w) in \"\" at \"m.py:1\"
op %g f64[2,3,4,2] = aten.view.default(%f, [2, 3, 4, 2]) in \"\" at \"m.py:2\"
op %q f64[2,4,2], %k f64[2,4,2], %v f64[2,4,2] = aten.unbind.int(%g, 1) in \"\" at \"m.py:3\"
op %a f64[2,4,2] = aten.mul.Tensor(%q, %k) in \"\" at \"m.py:4\"
op %b f64[2,4,2] = aten.mul.Tensor(%a, %v) in \"\" at \"m.py:5\"
op %s f64[] = aten.sum.default(%b) in \"\" at \"m.py:6\"
output %s
";

pub const FUSED: &str = "group 0,1
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

pub const GATHERED: &str = "group 0,1
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
