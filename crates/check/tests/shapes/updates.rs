//! New values of buffers, and of parameters that forward writes.

use super::*;

pub const NORM: &str = "input %x f64[4,8] 0
buffer %m f64[8] \"mean\"
op %c f64[8] = aten.mean.dim(%x, [0]) in \"\" at \"m.py:1\" nograd
op %o f64[8] = aten.mul.Tensor(%m, 0.9) in \"\" at \"m.py:2\" nograd
op %n f64[8] = aten.add.Tensor(%o, %c) in \"\" at \"m.py:3\" nograd
op %y f64[4,8] = aten.sub.Tensor(%x, %m) in \"\" at \"m.py:4\"
output %y
update \"mean\" %n
";

pub const TRACKED: &str = "group 0,1
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
