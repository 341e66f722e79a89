//! What is computed again in backward, or is on the host meanwhile.

use program::{Body, Pass};

use super::*;
use crate::support::program;

pub const AGAIN: &str = "input %x f64[4,8] 0
param %w f64[8] \"w\"
buffer %m f64[8] \"mean\"
op %n f64[8] = aten.mul.Tensor(%m, 0.9) in \"\" at \"m.py:1\" nograd
op %y f64[4,8] = aten.mul.Tensor(%x, %w) in \"\" at \"m.py:2\"
op %z f64[4,8] = aten.mul.Tensor(%y, %m) in \"\" at \"m.py:3\"
op %s f64[] = aten.sum.default(%z) in \"\" at \"m.py:4\"
output %s
update \"mean\" %n
";

pub const RECOMPUTED: &str = "ranks 0
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
        let mut made = program(&graph(AGAIN), ON_THE_HOST);
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
