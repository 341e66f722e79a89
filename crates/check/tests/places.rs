//! Parts of values that are the same everywhere: one that was cut lies where it was cut, and one that was not lies where
//! others do. What only seems to be the same is not.

use crate::support::{faults, graph, proof};

fn breaks(model: &str, text: &str, changes: &[(&str, &str)], code: &str) {
    let mut other = text.to_owned();
    for (old, new) in changes {
        assert!(other.contains(old), "{old}");
        other = other.replacen(old, new, 1);
    }
    let found = faults(&graph(model), &other);
    assert_eq!(found.first().map(|fault| fault.code), Some(code), "{changes:?}: {found:?}");
}

const SCALED: &str = "input %x f64[1] 0
input %a f64[4] 1
op %e f64[4] = aten.expand.default(%x, [4]) in \"\" at \"m.py:1\"
op %y f64[4] = aten.mul.Tensor(%e, %a) in \"\" at \"m.py:2\"
output %y
";

const HALVES: &str = "ranks 0,1
constant lo 0 2
constant hi 2 4
input x %x
input a %a 0..2 | 2..4
call 0 x -> e : e = aten.expand.default(x, [4])
slice e -> f : [4] lo..hi
call 1 f, a -> y : y = aten.mul.Tensor(f, a)
output y local 0..2 | 2..4
";

/// Along one factor: whoever has cut it knows where.
#[test]
fn what_was_cut_lies_where_it_was_cut() {
    proof(&graph(SCALED), HALVES);
    breaks(SCALED, HALVES, &[("[4] lo..hi", "[4] 0..2")], "SW0504");
}

const VIEWED: &str = "input %x f64[1,1] 0
op %e f64[2,2] = aten.expand.default(%x, [2, 2]) in \"\" at \"m.py:1\"
op %v f64[4] = aten.view.default(%e, [4]) in \"\" at \"m.py:2\"
op %y f64[4] = aten.mul.Tensor(%v, 2.0) in \"\" at \"m.py:3\"
output %y
";

/// Of rows that are divided as the program says nothing is forgotten.
#[test]
fn rows_that_were_cut_are_joined_in_their_order() {
    let text = "group 0,1
ranks 0,1
constant lo 0 1
constant hi 1 2
input x %x
call 0 x -> v : e = aten.expand.default(x, [2, 2]) ; v = aten.view.default(e, [4])
slice v -> p : [[2, 2]] lo..hi, 0..2
all_gather g0 p -> q : [[2, 2]] 0 [1, 1]
call 1 q -> y : y = aten.mul.Tensor(q, 2.0)
output y
";
    proof(&graph(VIEWED), text);
    breaks(VIEWED, text, &[("lo 0 1", "lo 1 0"), ("hi 1 2", "hi 2 1")], "SW0507");
}

const CUBES: &str = "input %z f64[1,1,1] 0
input %x f64[2,1,1] 1
op %a f64[2,2,2] = aten.expand.default(%z, [2, 2, 2]) in \"\" at \"m.py:1\"
op %u f64[8] = aten.view.default(%a, [8]) in \"\" at \"m.py:2\"
op %b f64[2,2,2] = aten.expand.default(%x, [2, 2, 2]) in \"\" at \"m.py:3\"
op %v f64[8] = aten.view.default(%b, [8]) in \"\" at \"m.py:4\"
op %y f64[8] = aten.mul.Tensor(%u, %v) in \"\" at \"m.py:5\"
op %s f64[] = aten.sum.default(%y) in \"\" at \"m.py:6\"
output %s
";

/// Four of eight equal elements are the half that the other operand says, of which only so many are the same.
#[test]
fn equal_elements_are_divided_as_what_they_meet() {
    let text = "group 0,1
ranks 0,1
input z %z
input x %x 0..1 | 1..2
call 0 z, x -> p : a = aten.expand.default(z, [1, 2, 2]) ; u = aten.reshape.default(a, [4]) ; b = aten.expand.default(x, [1, 2, 2]) ; v = aten.reshape.default(b, [4]) ; y = aten.mul.Tensor(u, v) ; p = aten.sum.default(y)
all_reduce g0 sum p -> s
output s
";
    proof(&graph(CUBES), text);
    breaks(CUBES, text, &[("| 1..2", "| 0..1")], "SW0508");
}

const COUNTED: &str = "op %a i64[2] = aten.arange.default(2) in \"\" at \"m.py:1\"
op %c i64[2,1] = aten.view.default(%a, [2, 1]) in \"\" at \"m.py:2\"
op %e i64[2,4] = aten.expand.default(%c, [2, 4]) in \"\" at \"m.py:3\"
op %v i64[8] = aten.view.default(%e, [8]) in \"\" at \"m.py:4\"
output %v
";

/// What is counted differs along the dim whose place it tells, though nothing is read.
#[test]
fn four_zeros_are_no_four_ones() {
    let text = "ranks 0,1
constant lo 0 1
constant hi 1 2
call 0 -> v : a = aten.arange.default(2) ; c = aten.view.default(a, [2, 1]) ; e = aten.expand.default(c, [2, 4]) ; v = aten.view.default(e, [8])
slice v -> p : [[2, 4]] lo..hi, 0..4
output p local 0..1,: | 1..2,:
";
    proof(&graph(COUNTED), text);
    breaks(COUNTED, text, &[("lo 0 1", "lo 0 0"), ("hi 1 2", "hi 1 1")], "SW0512");
}

/// What leaves is compared with what should, whatever dims it has.
#[test]
fn a_number_does_not_leave_in_the_place_of_a_list() {
    let model = "input %x f64[4] 0
op %s f64[] = aten.sum.default(%x) in \"\" at \"m.py:1\"
op %y f64[4] = aten.mul.Tensor(%x, 2.0) in \"\" at \"m.py:2\"
output %y
output %s
";
    let text = "ranks 0
input x %x :
call 0 x -> s, y : s = aten.sum.default(x) ; y = aten.mul.Tensor(x, 2.0)
output y
output s
";
    proof(&graph(model), text);
    breaks(model, text, &[("output y", "output s")], "SW0512");
    breaks(model, text, &[("output s", "output y")], "SW0512");
}
