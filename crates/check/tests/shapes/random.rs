//! Random operators, each part with the numbers of its own region.

use super::*;

pub const DROPOUT: &str = "input %x f64[4,8] 0
param %w f64[8] \"w\"
op %y f64[4,8] = aten.mul.Tensor(%x, %w) in \"\" at \"m.py:1\"
op %d f64[4,8] = aten.dropout.default(%y, 0.5, True) in \"\" at \"m.py:2\"
op %e f64[4,8] = aten.dropout.default(%y, 0.5, True) in \"\" at \"m.py:3\"
op %z f64[4,8] = aten.add.Tensor(%d, %e) in \"\" at \"m.py:4\"
op %s f64[] = aten.sum.default(%z) in \"\" at \"m.py:5\"
output %s
";

pub const DROPPED: &str = "group 0,1
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
