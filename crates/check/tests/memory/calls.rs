//! What a call keeps for its backward, and what it forgets.

use super::*;
use crate::support::*;

#[test]
fn gradients_that_meet_are_added_in_place() {
    let model = "input %x f64[4,8] 0
param %w f64[8,8] \"w\"
op %h f64[4,8] = aten.linear.default(%x, %w) in \"a\" at \"m.py:1\"
op %y f64[4,8] = aten.relu.default(%h) in \"\" at \"m.py:2\"
op %q f64[4,8] = aten.mul.Tensor(%y, %y) in \"\" at \"m.py:3\"
op %s f64[] = aten.sum.default(%q) in \"\" at \"m.py:4\"
output %s
";
    let text = "ranks 0
shard w %w :,:
input x %x :,:
call 0 x, w -> s : h = aten.linear.default(x, w) ; y = aten.relu.default(h) ; q = aten.mul.Tensor(y, y) ; s = aten.sum.default(q)
output s
seed ds
grad 0 ds ->
";
    has(&of(model, text)[0], "peak 1552, most activations 256");
}

#[test]
fn a_gradient_that_others_hold_is_no_leafs() {
    let model = "input %x f64[4,8] 0
param %w f64[8,8] \"w\"
param %b f64[4,8] \"b\"
op %y f64[4,8] = aten.linear.default(%x, %w) in \"a\" at \"m.py:1\"
op %z f64[4,8] = aten.add.Tensor(%y, %b) in \"\" at \"m.py:2\"
op %r f64[4,8] = aten.relu.default(%z) in \"\" at \"m.py:3\"
op %s f64[] = aten.sum.default(%r) in \"\" at \"m.py:4\"
output %s
";
    let text = "ranks 0
shard w %w :,:
shard b %b :,:
input x %x :,:
call 0 x, w, b -> s : y = aten.linear.default(x, w) ; z = aten.add.Tensor(y, b) ; r = aten.relu.default(z) ; s = aten.sum.default(r)
output s
seed ds
grad 0 ds ->
";
    has(&of(model, text)[0], "peak 2064, end gradients 768");
}

#[test]
fn one_byte_is_kept_of_one_element() {
    let model = "param %w f64[1] \"w\"
op %q f64[1] = aten.fake_quantize_per_tensor_affine.default(%w, 0.1, 0, 0, 255) in \"\" at \"m.py:1\"
op %s f64[] = aten.sum.default(%q) in \"\" at \"m.py:2\"
output %s
";
    let text = "ranks 0
shard w %w
call 0 w -> s : q = aten.fake_quantize_per_tensor_affine.default(w, 0.1, 0, 0, 255) ; s = aten.sum.default(q)
output s
seed ds
grad 0 ds ->
";
    has(&of(model, text)[0], "most activations 1, end activations 0");
}

/// What is computed, and read by nobody, gets no gradient; what is kept for it is there as long as the call's backward.
#[test]
fn what_gets_no_gradient_is_kept_to_the_end_of_its_call() {
    let model = "input %x f64[4,2] 0
param %w f64[8,2] \"w\"
op %y f64[4,8] = aten.linear.default(%x, %w) in \"a\" at \"m.py:1\"
op %e f64[4,8] = aten.exp.default(%y) in \"\" at \"m.py:2\"
op %q f64[4,8] = aten.mul.Tensor(%e, %e) in \"\" at \"m.py:3\"
op %s f64[] = aten.sum.default(%q) in \"\" at \"m.py:4\"
output %s
";
    let text = "ranks 0
shard w %w :,:
input x %x :,:
call 0 x, w -> s : y = aten.linear.default(x, w) ; e = aten.exp.default(y) ; q = aten.mul.Tensor(e, e) ; d = aten.exp.default(y) ; s = aten.sum.default(q)
output s
seed ds
grad 0 ds ->
";
    has(&of(model, text)[0], "peak 1232, most activations 512, end activations 0");
}

#[test]
fn a_call_forgets_what_it_is_given_again_and_nothing_else() {
    // What it makes itself is as long.
    has(&of(AGAIN, GIVEN_AGAIN)[0], "most activations 256, end activations 0");
    // Half of what it is given: all of that is kept.
    let model = "input %x f64[4,8] 0
param %w f64[8] \"w\"
op %y f64[4,8] = aten.mul.Tensor(%x, %w) in \"\" at \"m.py:1\"
op %h f64[4,4] = aten.slice.Tensor(%y, 1, 0, 4) in \"\" at \"m.py:2\"
op %q f64[4,4] = aten.mul.Tensor(%h, %h) in \"\" at \"m.py:3\"
op %s f64[] = aten.sum.default(%q) in \"\" at \"m.py:4\"
output %s
";
    let text = "ranks 0
shard w %w :
input x %x :,:
keep 0 x
recompute 0 x, w -> y : y = aten.mul.Tensor(x, w)
forget 1 y -> s : h = aten.slice.Tensor(y, 1, 0, 4) ; q = aten.mul.Tensor(h, h) ; s = aten.sum.default(q)
output s
seed ds
take 0 -> x2
call 2 x2, w -> y2 : y2 = aten.mul.Tensor(x2, w)
grad 1 ds -> dy : y2
grad 2 dy ->
";
    has(&of(model, text)[0], "most activations 256, end activations 0");
}

#[test]
fn what_is_repeated_is_not_forgotten() {
    let model = "input %x f64[4,1,8] 0
param %w f64[8] \"w\"
param %v f64[8] \"v\"
op %y f64[4,1,8] = aten.mul.Tensor(%x, %w) in \"\" at \"m.py:1\"
op %e f64[4,3,8] = aten.expand.default(%y, [4, 3, 8]) in \"\" at \"m.py:2\"
op %q f64[4,3,8] = aten.mul.Tensor(%e, %v) in \"\" at \"m.py:3\"
op %s f64[] = aten.sum.default(%q) in \"\" at \"m.py:4\"
output %s
";
    let text = "ranks 0
shard w %w :
shard v %v :
input x %x :,:
keep 0 x
recompute 0 x, w -> e : y = aten.mul.Tensor(x, w) ; e = aten.expand.default(y, [4, 3, 8])
forget 1 e, v -> s : q = aten.mul.Tensor(e, v) ; s = aten.sum.default(q)
output s
seed ds
take 0 -> x2
call 2 x2, w -> e2 : y2 = aten.mul.Tensor(x2, w) ; e2 = aten.expand.default(y2, [4, 3, 8])
grad 1 ds -> de : e2
grad 2 de ->
";
    has(&of(model, text)[0], "most activations 256, end activations 0");
}

#[test]
fn what_is_kept_away_is_on_the_host() {
    let text = "ranks 0
shard w %w :,:
shard v %v :,:
input x %x :,:
call 0 x, w -> y : y = aten.linear.default(x, w)
keep_away 0 y
recompute 1 y, v -> s : z = aten.linear.default(y, v) ; s = aten.sum.default(z)
output s
seed ds
fetch_kept 0
take 0 -> y2
call 2 y2, v -> s2 : z2 = aten.linear.default(y2, v) ; s2 = aten.sum.default(z2)
grad 2 ds -> dy
grad 0 dy ->
";
    has(&of(LINEARS, text)[0], "host 256, end activations 0");
}

/// Of two equal values one needs no gradient, and its reader gets one all the same.
#[test]
fn a_gradient_that_nobody_needs_goes_with_its_call() {
    let model = "input %x f64[4,2] 0
param %w f64[8,2] \"w\"
op %h f64[4,8] = aten.linear.default(%x, %w) in \"a\" at \"m.py:1\"
op %a f64[4,8] = aten.relu.default(%h) in \"\" at \"m.py:2\"
op %e f64[4,8] = aten.exp.default(%a) in \"\" at \"m.py:3\"
op %s f64[] = aten.sum.default(%e) in \"\" at \"m.py:4\"
op %b f64[4,8] = aten.relu.default(%h) in \"\" at \"m.py:5\"
output %s
";
    let text = "ranks 0
shard w %w :,:
input x %x :,:
call 0 x, w -> a, b : h = aten.linear.default(x, w) ; a = aten.relu.default(h) ; b = aten.relu.default(h)
call 1 b -> t : f = aten.exp.default(b) ; t = aten.sum.default(f)
call 2 a -> s : e = aten.exp.default(a) ; s = aten.sum.default(e)
output s
seed ds
grad 1 ds ->
grad 2 ds -> da
grad 0 da ->
";
    let model = graph(model);
    let mut made = program(&model, text);
    let buf = made.roles[0].body.bufs.iter_mut().find(|buf| buf.name == "b").expect("a buffer");
    buf.tensor = model.find("b").expect("a tensor");
    has(&told(&model, &made, &Masters::new())[0], "most working 776, end working 8, end gradients 128");
}
