//! What ranks hold of sums: which shares are one whole, what passes them on, and what is in them twice.

use crate::support::{faults, graph, proof};

fn code(model: &str, text: &str) -> Option<&'static str> {
    faults(&graph(model), text).first().map(|fault| fault.code)
}

fn breaks(model: &str, text: &str, changes: &[(&str, &str)], code: &str) {
    let mut other = text.to_owned();
    for (old, new) in changes {
        assert!(other.contains(old), "{old}");
        other = other.replace(old, new);
    }
    let found = faults(&graph(model), &other);
    assert_eq!(found.first().map(|fault| fault.code), Some(code), "{changes:?}: {found:?}");
}

const NINE: &str = "input %x f64[1,1] 0
op %e f64[3,3] = aten.expand.default(%x, [3, 3]) in \"\" at \"m.py:1\"
op %s f64[] = aten.sum.default(%e) in \"\" at \"m.py:2\"
output %s
";

const SQUARES: &str = "group 0,1,2
ranks 0,1,2
constant n 2 2 1
input x %x
call 0 x -> s : e = aten.expand.default(x, [n, n]) ; s = aten.sum.default(e)
all_reduce g0 sum s -> t
output t
";

/// Four, four and one of nine equal elements: no squares of two, two and one fill that of three.
#[test]
fn equal_elements_are_counted_wherever_they_lie() {
    proof(&graph(NINE), SQUARES);
    breaks(NINE, SQUARES, &[("n 2 2 1", "n 2 2 2")], "SW0508");
    breaks(NINE, SQUARES, &[("n 2 2 1", "n 2 1 1")], "SW0512");
}

const FOUR: &str = "input %x f64[1] 0
op %e f64[2,2] = aten.expand.default(%x, [2, 2]) in \"\" at \"m.py:1\"
op %v f64[4] = aten.view.default(%e, [4]) in \"\" at \"m.py:2\"
op %s f64[] = aten.sum.default(%v) in \"\" at \"m.py:3\"
output %s
";

/// Each rank has the first element of a row that may be any.
const FIRST: &str = "group 0,1,2,3
ranks 0,1,2,3
input x %x
call 0 x -> e : e = aten.expand.default(x, [1, 2])
slice e -> f : [1, 2] 0..1, 0..1
call 1 f -> s : v = aten.reshape.default(f, [1]) ; s = aten.sum.default(v)
all_reduce g0 sum s -> t
output t
";

#[test]
fn equal_elements_of_one_dim_are_counted_over_all_of_its_factors() {
    proof(&graph(FOUR), FIRST);
    breaks(FOUR, FIRST, &[("0,1,2,3", "0,1,2")], "SW0512");
    breaks(FOUR, FIRST, &[("0,1,2,3", "0,1,2,3,4")], "SW0508");
}

const TWICE: &str = "input %x f64[4,8] 0
op %p f64[4,1] = aten.sum.dim_IntList(%x, [1], True) in \"\" at \"m.py:1\"
op %e f64[4,2] = aten.expand.default(%p, [4, 2]) in \"\" at \"m.py:2\"
op %y f64[4] = aten.sum.dim_IntList(%e, [1]) in \"\" at \"m.py:3\"
output %y
";

/// Two ranks have the one half of the sum that is taken twice, two the other.
const HALVES: &str = "group 0,1,2,3
ranks 0,1,2,3
input x %x :,0..4 | :,0..4 | :,4..8 | :,4..8
call 0 x -> q : p = aten.sum.dim_IntList(x, [1], True) ; e = aten.expand.default(p, [4, 1]) ; q = aten.sum.dim_IntList(e, [1])
all_reduce g0 sum q -> y
output y
";

/// So many equal elements are no whole where each is a part of another sum.
#[test]
fn elements_that_are_shares_are_not_counted() {
    proof(&graph(TWICE), HALVES);
    let two =
        HALVES.replace("0,1,2,3", "0,1").replace(":,0..4 | :,0..4 | :,4..8 | :,4..8", ":,0..4 | :,4..8");
    assert_eq!(code(TWICE, &two), Some("SW0512"));
    breaks(TWICE, HALVES, &[(":,4..8 | :,4..8", ":,0..4 | :,4..8")], "SW0508");
}

/// Some terms lie everywhere, and the same ones in the last rows, too: these have all of the sum then.
#[test]
fn shares_of_equal_elements_are_whole_in_any_order() {
    let half = |name: &str, rows: usize| {
        format!(
            "p_{name} = aten.sum.dim_IntList({name}, [1], True) ; e_{name} = aten.expand.default(p_{name}, [{rows}, 1]) ; q_{name} = aten.sum.dim_IntList(e_{name}, [1])"
        )
    };
    let text = format!(
        "table 1 %y sum
from 0 2..4
from 0 2..4
to 0 :
piece 0 0 2..4
piece 1 0 2..4
ranks 0
input x %x :,:
slice x -> a : [4, 8] 0..4, 0..4
slice x -> b : [4, 8] 0..4, 4..8
slice x -> c : [4, 8] 2..4, 0..4
slice x -> d : [4, 8] 2..4, 4..8
call 0 a, b, c, d -> q_a, q_b, q_c, q_d : {} ; {} ; {} ; {}
exchange 1 q_c, q_d -> h
add q_a, q_b, h -> t
slice t -> y : [4] 2..4
output y local 2..4
ranks 1
input x %x 0..2,:
call 0 x -> y : p = aten.sum.dim_IntList(x, [1], True) ; e = aten.expand.default(p, [2, 2]) ; y = aten.sum.dim_IntList(e, [1])
output y local 0..2
",
        half("a", 4),
        half("b", 4),
        half("c", 2),
        half("d", 2)
    );
    proof(&graph(TWICE), &text);
}

const ANY: &str = "input %x f64[4,1] 0
op %b bool[4,1] = aten.gt.Scalar(%x, 0.0) in \"\" at \"m.py:1\"
op %e bool[4,4] = aten.expand.default(%b, [4, 4]) in \"\" at \"m.py:2\"
op %y bool[4] = aten.any.dim(%e, 1) in \"\" at \"m.py:3\"
output %y
";

/// Of what is the same everywhere any part says what all says; and none is beside the others.
#[test]
fn whether_any_is_may_be_said_of_overlapping_parts() {
    let text = "group 0,1,2
ranks 0,1,2
constant n 3 3 0
input x %x 0..4
call 0 x -> q : b = aten.gt.Scalar(x, 0.0) ; e = aten.expand.default(b, [4, n]) ; q = aten.any.dim(e, 1)
all_reduce g0 any q -> y
output y
";
    proof(&graph(ANY), text);
}

const ZEROS: &str = "input %x f64[4,8] 0
param %w f64[4] \"w\"
op %a f64[4] = aten.sum.dim_IntList(%x, [1]) in \"\" at \"m.py:1\"
op %n f64[4] = aten.neg.default(%a) in \"\" at \"m.py:2\"
op %y f64[4] = aten.mul.Tensor(%n, %w) in \"\" at \"m.py:3\"
output %y
";

/// The second rank gets nothing of the sum, and makes nothing of it.
const NOTHING: &str = "group 0,1
table 1 %a sum
from 0 :
to 0 :
to 1 :
piece 0 0 :
ranks 0
shard w %w :
input x %x :,:
call 0 x -> a : a = aten.sum.dim_IntList(x, [1])
exchange 1 a -> b
call 1 b, w -> c : n = aten.neg.default(b) ; c = aten.mul.Tensor(n, w)
all_reduce g0 sum c -> y
output y
seed dy
grad 1 dy ->
reduce_gradients g0 w
ranks 1
shard w %w :
input x %x :,:
exchange 1 -> b
call 1 b, w -> c : n = aten.neg.default(b) ; c = aten.mul.Tensor(n, w)
all_reduce g0 sum c -> y
output y
seed dy
grad 1 dy ->
reduce_gradients g0 w
";

#[test]
fn what_is_linear_makes_nothing_of_nothing() {
    proof(&graph(ZEROS), NOTHING);
    breaks(ZEROS, NOTHING, &[("piece 0 0 :\n", "piece 0 0 :\npiece 0 1 :\n")], "SW0508");
}

const ADDED: &str = "input %x f64[4,8] 0
input %z f64[4,8] 1
op %a f64[4] = aten.sum.dim_IntList(%x, [1]) in \"\" at \"m.py:1\"
op %b f64[4] = aten.sum.dim_IntList(%z, [1]) in \"\" at \"m.py:2\"
op %y f64[4] = aten.add.Tensor(%a, %b) in \"\" at \"m.py:3\"
output %y
";

/// A sum of two sums is whole if both are.
#[test]
fn a_share_is_whole_if_all_that_it_is_partial_in_is() {
    let text = "group 0,1
ranks 0,1
input x %x :,0..4 | :,4..8
input z %z :,0..4 | :,4..8
call 0 x, z -> q : a = aten.sum.dim_IntList(x, [1]) ; b = aten.sum.dim_IntList(z, [1]) ; q = aten.add.Tensor(a, b)
all_reduce g0 sum q -> y
output y
";
    proof(&graph(ADDED), text);
    breaks(ADDED, text, &[("%z :,0..4 | :,4..8", "%z :,0..4 | :,4..7")], "SW0512");
    breaks(ADDED, text, &[("%x :,0..4 | :,4..8", "%x :,0..4 | :,4..7")], "SW0512");
}

const RELU: &str = "input %x f64[4] 0
op %y f64[4] = aten.relu.default(%x) in \"\" at \"m.py:1\"
output %y
";

/// The first rows are missing, the last ones come twice.
#[test]
fn what_is_there_twice_is_found_beside_what_is_missing() {
    let text = "table 1 %y sum
from 0 0..2
from 0 2..4
to 0 :
piece 0 0 0..2
piece 1 0 2..4
ranks 0
input x %x :
slice x -> a : [4] 0..2
slice x -> b : [4] 2..4
call 0 a, b -> p, q : p = aten.relu.default(a) ; q = aten.relu.default(b)
exchange 1 p, q -> y
output y
";
    proof(&graph(RELU), text);
    let last = [("from 0 0..2", "from 0 2..4"), ("0 0 0..2", "0 0 2..4"), ("[4] 0..2", "[4] 2..4")];
    breaks(RELU, text, &last, "SW0508");
}

const THREE: &str = "input %x f64[4,1] 0
op %e f64[4,3] = aten.expand.default(%x, [4, 3]) in \"\" at \"m.py:1\"
op %y f64[4] = aten.sum.dim_IntList(%e, [1]) in \"\" at \"m.py:2\"
output %y
";

/// One of three equal columns, in two halves, and two of them.
const COLUMNS: &str = "table 1 %y sum
from 0 0..2
from 0 2..4
to 0 :
piece 0 0 0..2
piece 1 0 2..4
ranks 0
input x %x :
slice x -> a : [4, 1] 0..2, 0..1
slice x -> b : [4, 1] 2..4, 0..1
call 0 a, b -> p, q : e = aten.expand.default(a, [2, 1]) ; p = aten.sum.dim_IntList(e, [1]) ; f = aten.expand.default(b, [2, 1]) ; q = aten.sum.dim_IntList(f, [1])
exchange 1 p, q -> h
call 1 x -> r : g = aten.expand.default(x, [4, 2]) ; r = aten.sum.dim_IntList(g, [1])
add h, r -> y
output y
";

/// Two equal parts in one half are as large as one part in both.
#[test]
fn equal_parts_in_one_half_are_not_one_part_in_both() {
    proof(&graph(THREE), COLUMNS);
    let first = [("from 0 2..4", "from 0 0..2"), ("1 0 2..4", "1 0 0..2"), ("2..4, 0..1", "0..2, 0..1")];
    breaks(THREE, COLUMNS, &first, "SW0508");
}

const DETACHED: &str = "input %x f64[4] 0
param %u f64[4] \"u\"
param %w f64[4] \"w\"
op %d f64[4] = aten.detach.default(%u) in \"\" at \"m.py:1\"
op %y f64[4] = aten.mul.Tensor(%x, %w) in \"\" at \"m.py:2\"
op %z f64[4] = aten.mul.Tensor(%y, %d) in \"\" at \"m.py:3\"
output %z
";

/// What nothing reads needs no gradient, which says nothing of what is read.
#[test]
fn nothing_is_a_whole_of_nothing_only() {
    let text = "group 0,1
ranks 0,1
shard u %u :
shard w %w :
input x %x :
call 0 x, u, w -> z : d = aten.detach.default(u) ; y = aten.mul.Tensor(x, w) ; z = aten.mul.Tensor(y, d)
output z
seed dz
reduce_gradients g0 u
grad 0 dz ->
";
    proof(&graph(DETACHED), text);
    breaks(DETACHED, text, &[("grad 0 dz ->", "grad 0 _ ->")], "SW0511");
}

const EMPTY: &str = "input %x f64[4] 0
param %u f64[4] \"u\"
param %w f64[4] \"w\"
op %y f64[4] = aten.mul.Tensor(%x, %w) in \"\" at \"m.py:1\"
op %e f64[0,4] = aten.expand.default(%w, [0, 4]) in \"\" at \"m.py:2\"
op %f f64[0,4] = aten.mul.Tensor(%e, %u) in \"\" at \"m.py:3\"
op %s f64[] = aten.sum.default(%f) in \"\" at \"m.py:4\"
output %y
output %s
";

/// Zeros lack nothing, and may be added as often as anybody likes.
#[test]
fn a_gradient_of_zeros_is_always_whole() {
    let text = "group 0,1
ranks 0,1
shard u %u :
shard w %w :
input x %x :
call 0 x, u, w -> y, s : y = aten.mul.Tensor(x, w) ; e = aten.expand.default(w, [0, 4]) ; f = aten.mul.Tensor(e, u) ; s = aten.sum.default(f)
output y
output s
seed dy
seed ds
grad 0 dy, ds ->
reduce_gradients g0 u
reduce_gradients g0 u
";
    proof(&graph(EMPTY), text);
    breaks(EMPTY, text, &[("reduce_gradients g0 u\n", "reduce_gradients g0 w\n")], "SW0508");
}

const READ: &str = "input %x f64[4,8] 0
param %w f64[8] \"w\"
op %h f64[4,8] = aten.mul.Tensor(%x, %w) in \"\" at \"m.py:1\"
op %y f64[4] = aten.sum.dim_IntList(%h, [1]) in \"\" at \"m.py:2\"
op %e f64[0,4] = aten.expand.default(%y, [0, 4]) in \"\" at \"m.py:3\"
op %s f64[] = aten.sum.default(%e) in \"\" at \"m.py:4\"
op %d f64[4] = aten.detach.default(%y) in \"\" at \"m.py:5\"
output %s
output %d
";

#[test]
fn a_value_whose_gradient_is_zero_is_none() {
    let text = "group 0,1
ranks 0,1
shard w %w 0..4 | 4..8
input x %x :,0..4 | :,4..8
call 0 x, w -> q : h = aten.mul.Tensor(x, w) ; q = aten.sum.dim_IntList(h, [1])
all_reduce g0 sum q -> y
call 1 y -> s, d : e = aten.expand.default(y, [0, 4]) ; s = aten.sum.default(e) ; d = aten.detach.default(y)
output s
output d
seed ds
grad 1 ds -> dy
grad 0 dy ->
";
    proof(&graph(READ), text);
    breaks(READ, text, &[("all_reduce g0 sum q -> y", "add q -> y")], "SW0512");
}

const USED: &str = "input %x f64[4,8] 0
input %z f64[4,8] 1
param %w f64[8] \"w\"
op %y f64[4,8] = aten.mul.Tensor(%x, %w) in \"\" at \"m.py:1\"
op %k f64[4,8] = aten.mul.Tensor(%z, %w) in \"\" at \"m.py:2\"
output %y
output %k
";

/// Outputs are whole everywhere, and each rank computes the backward of its own rows.
const OWN_ROWS: &str = "group 0,1
ranks 0,1
constant lo 0 2
constant hi 2 4
shard w %w :
input x %x :,:
input z %z :,:
call 0 x, z, w -> y, k : y = aten.mul.Tensor(x, w) ; k = aten.mul.Tensor(z, w)
slice x -> xp : [4, 8] lo..hi, 0..8
slice z -> zp : [4, 8] lo..hi, 0..8
call 1 xp, w -> yp : yp = aten.mul.Tensor(xp, w)
call 2 zp, w -> kp : kp = aten.mul.Tensor(zp, w)
output y
output k
seed dy
seed dk
slice dy -> dyp : [4, 8] lo..hi, 0..8
slice dk -> dkp : [4, 8] lo..hi, 0..8
grad 1 dyp ->
grad 2 dkp ->
reduce_gradients g0 w
";

#[test]
fn a_use_that_is_missing_hides_none_that_is_there_twice() {
    proof(&graph(USED), OWN_ROWS);
    let twice = [("lo 0 2", "lo 0 0"), ("hi 2 4", "hi 2 2")];
    breaks(USED, OWN_ROWS, &twice, "SW0508");
    breaks(USED, OWN_ROWS, &[&twice[..], &[("grad 1 dyp ->\n", "")]].concat(), "SW0508");
    breaks(USED, OWN_ROWS, &[&twice[..], &[("grad 2 dkp ->\n", "")]].concat(), "SW0508");
    breaks(USED, OWN_ROWS, &[("grad 2 dkp ->\n", "")], "SW0511");
}

/// One rank has all of it, the other a part.
#[test]
fn all_and_a_part_are_too_much() {
    let more = [("lo 0 2", "lo 0 0"), ("hi 2 4", "hi 4 2")];
    breaks(USED, OWN_ROWS, &more, "SW0508");
    // Of the one use only, so that the first rank has not all of the gradient.
    breaks(USED, OWN_ROWS, &[&more[..], &[("grad 2 dkp ->\n", "")]].concat(), "SW0508");
}

const ONE_USE: &str = "input %x f64[4] 0
param %w f64[4] \"w\"
op %y f64[4] = aten.mul.Tensor(%x, %w) in \"\" at \"m.py:1\"
output %y
";

#[test]
fn who_is_given_no_gradient_gives_none() {
    let rank = |rank: usize, given: &str| {
        format!(
            "ranks {rank}
shard w %w :
input x %x :
call 0 x, w -> y : y = aten.mul.Tensor(x, w)
output y
seed dy
grad 0 {given} ->
reduce_gradients g0 w
"
        )
    };
    let both = |one: &str, two: &str| format!("group 0,1\n{}{}", rank(0, one), rank(1, two));
    proof(&graph(ONE_USE), &both("dy", "_"));
    proof(&graph(ONE_USE), &both("_", "dy"));
    assert_eq!(code(ONE_USE, &both("dy", "dy")), Some("SW0508"));
    assert_eq!(code(ONE_USE, &both("_", "_")), Some("SW0511"));
}

const SCALED: &str = "input %x f64[4,8] 0
param %w f64[4] \"w\"
op %p f64[4] = aten.sum.dim_IntList(%x, [1]) in \"\" at \"m.py:1\"
op %y f64[4] = aten.mul.Tensor(%w, %p) in \"\" at \"m.py:2\"
op %k f64[4] = aten.mul.Tensor(%y, 2.0) in \"\" at \"m.py:3\"
op %l f64[4] = aten.mul.Tensor(%y, 3.0) in \"\" at \"m.py:4\"
output %k
output %l
";

/// The second operand is a share on each rank, and so is the gradient of the first.
const SHARES: &str = "group 0,1
ranks 0,1
shard w %w :
input x %x :,0..4 | :,4..8
call 0 x, w -> q : p = aten.sum.dim_IntList(x, [1]) ; q = aten.mul.Tensor(w, p)
all_reduce g0 sum q -> y
call 1 y -> k : k = aten.mul.Tensor(y, 2.0)
call 2 y -> l : l = aten.mul.Tensor(y, 3.0)
output k
output l
seed dk
seed dl
grad 1 dk -> d1
grad 2 dl -> d2
add d1, d2 -> dy
grad 0 dy ->
reduce_gradients g0 w
";

/// A product of a share of the one and a share of the other is no share of the product.
#[test]
fn a_share_is_multiplied_with_all_of_a_gradient() {
    proof(&graph(SCALED), SHARES);
    breaks(SCALED, SHARES, &[("grad 0 dy ->", "grad 0 d1 ->")], "SW0509");
}
