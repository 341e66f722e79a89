//! Backwards in two halves.

use super::*;

/// What a call was given again is there until the second half of its backward.
#[test]
fn the_second_half_has_what_was_given_again() {
    let text = GIVEN_AGAIN.replace("grad 2 dy", "grad 1 ->\ngrad 2 dy");
    has(&of(AGAIN, &text)[0], "most activations 512, end activations 0, end gradients 576");
}

/// The gradient of a parameter waits with those of views of it.
#[test]
fn gradients_of_views_wait_too() {
    let model = "input %x f64[4,8] 0
param %k f64[8,8] \"k\"
param %w f64[8,8] \"w\"
op %y f64[4,8] = aten.linear.default(%x, %k) in \"a\" at \"m.py:1\"
op %t f64[8,8] = aten.transpose.int(%w, 0, 1) in \"b\" at \"m.py:2\"
op %z f64[4,8] = aten.mm.default(%y, %t) in \"b\" at \"m.py:3\"
op %s f64[] = aten.sum.default(%z) in \"\" at \"m.py:4\"
output %s
";
    let text = "ranks 0
shard k %k :,:
shard w %w :,:
input x %x :,:
call 0 x, k -> y : y = aten.linear.default(x, k)
call 1 y, w -> s : t = aten.transpose.int(w, 0, 1) ; z = aten.mm.default(y, t) ; s = aten.sum.default(z)
output s
seed ds
grad 1 ds -> dy
grad 1 ->
grad 0 dy ->
";
    has(&of(model, text)[0], "peak 2576, end gradients 1024, end working 8, end activations 0");
}

/// A first linear, of which the input gets no gradient, is no view of its parameter.
#[test]
fn what_is_computed_of_a_parameter_alone_is_no_view_of_it() {
    let model = ONE
        .replace("aten.sum.default(%h)", "aten.sum.default(%r)")
        .replace("op %s", "op %r f64[4,8] = aten.relu.default(%h) in \"\" at \"m.py:3\"\nop %s");
    let text = "ranks 0
shard w %w :,:
input x %x :,:
call 0 x, w -> s : h = aten.linear.default(x, w) ; r = aten.relu.default(h) ; s = aten.sum.default(r)
output s
seed ds
grad 0 ds ->
grad 0 ->
";
    has(&of(&model, text)[0], "most activations 256, end gradients 512");
}

/// Its gradients are computed in the first half, and are one.
#[test]
fn what_is_read_in_several_ways_does_not_wait() {
    let model = "input %x f64[8,8] 0
param %w f64[8,8] \"w\"
op %y f64[8,8] = aten.linear.default(%x, %w) in \"a\" at \"m.py:1\"
op %z f64[8,8] = aten.linear.default(%y, %w) in \"a\" at \"m.py:2\"
op %r f64[8,8] = aten.linear.default(%z, %w) in \"a\" at \"m.py:3\"
op %s f64[] = aten.sum.default(%r) in \"\" at \"m.py:4\"
output %s
";
    let text = "ranks 0
shard w %w :,:
input x %x :,:
call 0 x, w -> s : y = aten.linear.default(x, w) ; z = aten.linear.default(y, w) ; r = aten.linear.default(z, w) ; s = aten.sum.default(r)
output s
seed ds
grad 0 ds ->
grad 0 ->
";
    has(&of(model, text)[0], "most activations 1024, end gradients 512, end activations 0");
}

/// One of two operators that are the same is read by nobody, and its parameter's gradient is none.
#[test]
fn where_no_gradient_arrives_none_is_made_later() {
    let model = "input %x f64[4,2] 0
param %w f64[8,2] \"w\"
param %v f64[1,8] \"v\"
op %y f64[4,8] = aten.linear.default(%x, %w) in \"a\" at \"m.py:1\"
op %z f64[4,1] = aten.linear.default(%y, %v) in \"b\" at \"m.py:2\"
op %r f64[4,8] = aten.relu.default(%y) in \"\" at \"m.py:3\"
op %a f64[] = aten.sum.default(%z) in \"\" at \"m.py:4\"
op %b f64[] = aten.sum.default(%r) in \"\" at \"m.py:5\"
op %s f64[] = aten.add.Tensor(%a, %b) in \"\" at \"m.py:6\"
output %s
";
    let text = "ranks 0
shard w %w :,:
shard v %v :
input x %x :,:
call 0 x, w -> y : y = aten.linear.default(x, w)
call 1 y, v -> r : r = aten.relu.default(y) ; d = aten.linear.default(y, v)
call 2 y, v -> a : z = aten.linear.default(y, v) ; a = aten.sum.default(z)
call 3 r -> b : b = aten.sum.default(r)
call 4 a, b -> s : s = aten.add.Tensor(a, b)
output s
seed ds
grad 4 ds -> da, db
grad 3 db -> dr
grad 1 dr -> dy1
grad 2 da -> dy2
grad 1 ->
add dy1, dy2 -> dy
grad 0 dy ->
";
    has(&of(model, text)[0], "peak 1104, end gradients 192, end activations 0");
}

/// Two that are read by nobody are kept as long as the first half, whose peak they make.
const UNREAD: &str = "ranks 0
shard k %k :,:
shard w %w :
input x %x :,:
call 0 x, k -> f, g : y = aten.linear.default(x, k) ; f = aten.exp.default(y) ; g = aten.relu.default(f)
call 1 f, g, w -> s : d = aten.relu.default(f) ; b = aten.relu.default(f) ; t = aten.transpose.int(w, 0, 1) ; z = aten.mm.default(g, t) ; s = aten.sum.default(z)
output s
seed ds
grad 1 ds -> _, dg
grad 1 ->
grad 0 _, dg ->
";

#[test]
fn a_view_whose_gradient_waits_needs_nothing_in_the_first_half() {
    let model = "input %x f64[4,2] 0
param %k f64[8,2] \"k\"
param %w f64[1,8] \"w\"
op %y f64[4,8] = aten.linear.default(%x, %k) in \"a\" at \"m.py:1\"
op %f f64[4,8] = aten.exp.default(%y) in \"\" at \"m.py:2\"
op %g f64[4,8] = aten.relu.default(%f) in \"\" at \"m.py:3\"
op %t f64[8,1] = aten.transpose.int(%w, 0, 1) in \"b\" at \"m.py:4\"
op %z f64[4,1] = aten.mm.default(%g, %t) in \"b\" at \"m.py:5\"
op %s f64[] = aten.sum.default(%z) in \"\" at \"m.py:6\"
output %s
";
    has(&of(model, UNREAD)[0], "peak 1552, end gradients 192, end activations 0");
}

/// Each rank has half of the table, and rows of zeros for the other half.
#[test]
fn rows_whose_gradient_waits_need_nothing_in_the_first_half() {
    let model = "input %x f64[4,2] 0
input %i i64[2] 1
param %k f64[8,2] \"k\"
param %w f64[4,8] \"w\"
op %y f64[4,8] = aten.linear.default(%x, %k) in \"a\" at \"m.py:1\"
op %f f64[4,8] = aten.exp.default(%y) in \"\" at \"m.py:2\"
op %g f64[4,8] = aten.relu.default(%f) in \"\" at \"m.py:3\"
op %t f64[2,8] = aten.embedding.default(%w, %i) in \"b\" at \"m.py:4\"
op %z f64[4,2] = aten.linear.default(%g, %t) in \"b\" at \"m.py:5\"
op %s f64[] = aten.sum.default(%z) in \"\" at \"m.py:6\"
output %s
";
    let text = UNREAD
        .replace("ranks 0", "group 0,1\nranks 0,1\nconstant start 0 2")
        .replace("shard w %w :\n", "shard w %w 0..2,: | 2..4,:\n")
        .replace("input x %x :,:\n", "input x %x :,:\ninput i %i :\n")
        .replace("call 1 f, g, w -> s", "call 1 f, g, w, i -> p")
        .replace("aten.transpose.int(w, 0, 1)", "sw.embedding_shard(w, i, start, -1, 4)")
        .replace("aten.mm.default(g, t) ; s =", "aten.linear.default(g, t) ; p =")
        .replace("output s", "all_reduce g0 sum p -> s\noutput s")
        .replace("grad 1 ds -> _, dg", "grad 1 ds -> _, dgp")
        .replace("grad 0 _", "all_reduce g0 sum dgp -> dg\ngrad 0 _");
    has(&of(model, &text)[0], "peak 1778, end gradients 256, end activations 0");
}

/// Parameters that are gathered for a linear with a bias, and given up between the halves.
#[test]
fn what_needs_no_values_waits_beside_what_is_given_up() {
    let model = "input %x f64[4,8] 0
param %g f64[8] \"g\"
param %w f64[8,8] \"w\"
param %b f64[8] \"b\"
op %y f64[4,8] = aten.mul.Tensor(%x, %g) in \"a\" at \"m.py:1\"
op %z f64[4,8] = aten.linear.default(%y, %w, %b) in \"b\" at \"m.py:2\"
op %s f64[] = aten.sum.default(%z) in \"\" at \"m.py:3\"
output %s
";
    let text = "group 0,1
ranks 0,1
shard g %g :
hold w_part %w 0..4,: | 4..8,:
hold b_part %b 0..4 | 4..8
copy w w_part 0 2 :,:
copy b b_part 0 2 :
input x %x 0..2,: | 2..4,:
gather g0 w
gather g0 b
call 0 x, g -> y : y = aten.mul.Tensor(x, g)
call 1 y, w, b -> p : z = aten.linear.default(y, w, b) ; p = aten.sum.default(z)
release w, b
all_reduce g0 sum p -> s
output s
seed ds
gather g0 w
gather g0 b
grad 1 ds -> dy
release w, b
grad 1 ->
grad 0 dy ->
scatter g0 w
scatter g0 b
reduce_gradients g0 g
";
    has(&of(model, text)[0], "most activations 128, end gradients 352, end activations 0");
}

/// Each factor is read for the gradient of the other, and both are given up.
#[test]
fn what_needs_a_parameter_that_is_given_up_does_not_wait() {
    let model = "input %x f64[4,8] 0
param %a f64[4,8] \"a\"
param %w f64[8,8] \"w\"
op %z f64[4,8] = aten.linear.default(%a, %w) in \"a\" at \"m.py:1\"
op %q f64[4,8] = aten.mul.Tensor(%z, %x) in \"\" at \"m.py:2\"
op %s f64[] = aten.sum.default(%q) in \"\" at \"m.py:3\"
output %s
";
    let text = "group 0
ranks 0
hold a_part %a :,:
hold w_part %w :,:
copy a a_part 0 1 :,:
copy w w_part 0 1 :,:
input x %x :,:
gather g0 a, w
call 0 a, w, x -> s : z = aten.linear.default(a, w) ; q = aten.mul.Tensor(z, x) ; s = aten.sum.default(q)
release a, w
output s
seed ds
gather g0 a, w
grad 0 ds ->
release a, w
grad 0 ->
part a, w
";
    has(&of(model, text)[0], "most activations 768, end gradients 768, end activations 0");
}

const CONVOLVED: &str = "input %x f64[2,3,4,4] 0
param %w f64[4,3,4,4] \"w\"
op %y f64[2,4,1,1] = aten.conv2d.default(%x, %w) in \"a\" at \"m.py:1\"
op %s f64[] = aten.sum.default(%y) in \"\" at \"m.py:2\"
output %s
";

/// The operator of its backward is handed the weight, of which nothing but the shape is needed.
#[test]
fn something_stands_in_for_a_weight_that_is_given_up() {
    let plain = "ranks 0
shard w %w :,:,:,:
input x %x :,:,:,:
call 0 x, w -> s : y = aten.conv2d.default(x, w) ; s = aten.sum.default(y)
output s
seed ds
grad 0 ds ->
grad 0 ->
";
    has(&of(CONVOLVED, plain)[0], "most working 1544, end gradients 1536");
    let gathered = "group 0\n".to_string()
        + &plain
            .replace("shard w %w :,:,:,:", "hold w_part %w :,:,:,:\ncopy w w_part 0 1 :,:,:,:")
            .replace("call 0", "gather g0 w\ncall 0")
            .replace("output s", "release w\noutput s")
            .replace("grad 0 ds ->\n", "gather g0 w\ngrad 0 ds ->\nrelease w\n")
        + "part w\n";
    has(&of(CONVOLVED, &gathered)[0], "most working 3080, end gradients 1536, end gathered 0");
    // A call that forgets what it reads still knows of the weight.
    let forgotten = gathered
        .replace("gather g0 w\ncall 0", "keep 0 x\ngather g0 w\nforget 0")
        .replace("gather g0 w\ngrad 0 ds ->\n", "take 0 -> x2\ngather g0 w\ngrad 0 ds -> : x2\n");
    has(&of(CONVOLVED, &forgotten)[0], "most working 3080, end gradients 1536, end gathered 0");
}

/// A convolution that nobody reads has no gradient, for which nothing stands in.
#[test]
fn nothing_stands_in_where_no_gradient_arrives() {
    let text = "group 0
ranks 0
hold w_part %w :,:,:,:
copy w w_part 0 1 :,:,:,:
input x %x :,:,:,:
gather g0 w
call 0 x, w -> : d = aten.conv2d.default(x, w)
call 1 x, w -> s : y = aten.conv2d.default(x, w) ; s = aten.sum.default(y)
release w
output s
seed ds
gather g0 w
grad 1 ds ->
grad 0 ->
grad 0 ->
release w
part w
";
    has(&of(CONVOLVED, text)[0], "peak 5392, end gradients 1536, end activations 0");
}

#[test]
fn gradients_that_do_not_wait_are_of_all_leaves() {
    let model = "input %x f64[4,8] 0
param %g f64[8] \"g\"
param %h f64[8] \"h\"
op %a f64[4,8] = aten.mul.Tensor(%x, %g) in \"\" at \"m.py:1\"
op %b f64[4,8] = aten.mul.Tensor(%a, %h) in \"\" at \"m.py:2\"
op %s f64[] = aten.sum.default(%b) in \"\" at \"m.py:3\"
output %s
";
    let text = "ranks 0
shard g %g :
shard h %h :
input x %x :,:
call 0 x, g, h -> s : a = aten.mul.Tensor(x, g) ; b = aten.mul.Tensor(a, h) ; s = aten.sum.default(b)
output s
seed ds
grad 0 ds ->
grad 0 ->
";
    has(&of(model, text)[0], "end gradients 128, end activations 0");
}
