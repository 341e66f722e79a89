//! Shares that lie in some of a region only: where they do, they stay, and neither get lost nor count elsewhere.

use crate::support::{faults, graph, proof};

fn refused(model: &str, text: &str, code: &str, words: &str) {
    let found = faults(&graph(model), text);
    let said = |fault: &check::Fault| fault.code == code && fault.what.contains(words);
    assert!(found.first().is_some_and(said), "{code} {words}: {found:?}");
}

/// The same with something else in the place of some of it.
fn with(text: &str, old: &str, new: &str) -> String {
    assert!(text.contains(old), "{old}");
    text.replacen(old, new, 1)
}

const SUMS: &str = "input %x f64[4,8] 0
op %p f64[4] = aten.sum.dim_IntList(%x, [1]) in \"\" at \"m.py:1\"
op %y f64[4] = aten.mul.Tensor(%p, 2.0) in \"\" at \"m.py:2\"
output %y
";

/// Each rank has a half of one element's sum, and the other half for a second time. Two elements are joined, and then four.
const JOINED_TWICE: &str = "group 0,1 2,3
group 0,2 1,3
ranks 0,1,2,3
constant lo 0 1 2 3
constant hi 1 2 3 4
constant a 0 4 0 4
constant b 4 8 4 8
constant c 4 0 4 0
constant d 8 4 8 4
input x %x :,:
slice x -> f : [4, 8] lo..hi, a..b
slice x -> g : [4, 8] lo..hi, c..d
call 0 f, g -> q1, r1 : q1 = aten.sum.dim_IntList(f, [1]) ; r1 = aten.sum.dim_IntList(g, [1])
all_gather g0 q1 -> q2 : [2] 0 [1, 1]
all_gather g1 q2 -> q4 : [4] 0 [2, 2]
all_gather g0 r1 -> r2 : [2] 0 [1, 1]
all_gather g1 r2 -> r4 : [4] 0 [2, 2]
add q4, r4 -> p
call 1 p -> y : y = aten.mul.Tensor(p, 2.0)
output y
";

#[test]
fn what_lies_in_some_of_a_region_is_joined_with_more_of_it() {
    proof(&graph(SUMS), JOINED_TWICE);
    refused(SUMS, &with(JOINED_TWICE, "add q4, r4", "add q4, q4"), "SW0508", "");
    refused(SUMS, &with(JOINED_TWICE, "add q4, r4 -> p", "add q4 -> p"), "SW0505", "");
}

/// Four equal columns.
const EQUAL: &str = "input %x f64[4,8] 0
op %p f64[4,1] = aten.sum.dim_IntList(%x, [1], True) in \"\" at \"m.py:1\"
op %e f64[4,4] = aten.expand.default(%p, [4, 4]) in \"\" at \"m.py:2\"
op %y f64[4,4] = aten.mul.Tensor(%e, 2.0) in \"\" at \"m.py:3\"
output %y
";

/// Of two of the columns, wherever they lie, `s` has the one half of the sum in the first rows and the other one in the last,
/// and `t` what is missing. `v` has two columns whole, and in their place.
const COLUMNS: &str = "group 0,1
table 1 %e sum
from 0 :,0..2
from 1 :,2..4
to 0 :,0..2
to 1 :,2..4
piece 0 0 :,0..2
piece 1 1 :,2..4
ranks 0,1
constant lo 0 2
constant hi 2 4
constant a 0 4
constant b 4 8
constant c 4 0
constant d 8 4
input x %x :,:
slice x -> f : [4, 8] lo..hi, a..b
slice x -> g : [4, 8] lo..hi, c..d
call 0 f, g -> q, r : o = aten.sum.dim_IntList(f, [1], True) ; q = aten.expand.default(o, [2, 2]) ; p = aten.sum.dim_IntList(g, [1], True) ; r = aten.expand.default(p, [2, 2])
call 1 x -> u : w = aten.sum.dim_IntList(x, [1], True) ; u = aten.expand.default(w, [4, 4])
slice u -> v : [4, 4] 0..4, lo..hi
all_gather g0 q -> s : [4, 2] 0 [2, 2]
all_gather g0 r -> t : [4, 2] 0 [2, 2]
add s, t -> e
exchange 1 e -> h
all_gather g0 h -> k : [4, 4] 1 [2, 2]
call 2 k -> y : y = aten.mul.Tensor(k, 2.0)
output y
";

/// Rows of columns that may be any are joined, as the columns are the same ones in all rows.
#[test]
fn rows_of_columns_that_may_lie_anywhere_are_joined() {
    proof(&graph(EQUAL), COLUMNS);
    refused(EQUAL, &with(COLUMNS, "add s, t", "add s, s"), "SW0508", "");
}

/// What is all there is no proof that there is not more: the half that is in `s` is there besides.
#[test]
fn what_lies_somewhere_lies_nowhere_else() {
    let whole = with(COLUMNS, "add s, t -> e\nexchange 1 e -> h", "add v -> h");
    proof(&graph(EQUAL), &whole);
    let added = with(&whole, "add v -> h", "add s, v -> h");
    refused(EQUAL, &added, "SW0507", "different things are added");
    let sent = with(&whole, "add v -> h", "exchange 1 s -> j\nadd j, v -> h");
    refused(EQUAL, &sent, "SW0507", "something else than its table says");
    let joined = with(
        &whole,
        "all_gather g0 h -> k",
        "all_gather g0 s -> j : [4, 4] 1 [2, 2]\nadd j, u -> k\nall_gather g0 h -> n",
    );
    refused(EQUAL, &joined, "SW0507", "different shares are joined of what may lie anywhere");
}

/// The same columns, of which two times two are one dim.
const DIVIDED: &str = "input %x f64[4,8] 0
op %p f64[4,1] = aten.sum.dim_IntList(%x, [1], True) in \"\" at \"m.py:1\"
op %q f64[4,1,1] = aten.view.default(%p, [4, 1, 1]) in \"\" at \"m.py:2\"
op %e f64[4,2,2] = aten.expand.default(%q, [4, 2, 2]) in \"\" at \"m.py:3\"
op %v f64[4,4] = aten.view.default(%e, [4, 4]) in \"\" at \"m.py:4\"
op %y f64[4,4] = aten.mul.Tensor(%v, 2.0) in \"\" at \"m.py:5\"
output %y
";

/// What is whole may be divided otherwise, since all of it is the same. Of what is not, nobody may.
#[test]
fn what_lies_somewhere_is_not_divided_otherwise() {
    let half = |from: &str, made: &str| {
        format!(
            "p_{made} = aten.sum.dim_IntList({from}, [1], True) ; q_{made} = aten.reshape.default(p_{made}, [2, 1, 1]) ; \
             e_{made} = aten.expand.default(q_{made}, [2, 2, 1]) ; {made} = aten.reshape.default(e_{made}, [2, 2])"
        )
    };
    let all = |made: &str, n: usize| {
        format!(
            "p_{made} = aten.sum.dim_IntList(x, [1], True) ; q_{made} = aten.view.default(p_{made}, [4, 1, 1]) ; \
             e_{made} = aten.expand.default(q_{made}, [4, 2, {n}]) ; {made} = aten.reshape.default(e_{made}, [4, {}])",
            2 * n
        )
    };
    let text = format!(
        "group 0,1
ranks 0,1
constant lo 0 2
constant hi 2 4
constant a 0 4
constant b 4 8
constant c 4 0
constant d 8 4
input x %x :,:
slice x -> f : [4, 8] lo..hi, a..b
slice x -> g : [4, 8] lo..hi, c..d
call 0 f, g -> q, r : {} ; {}
call 1 x -> u : {}
all_gather g0 q -> s : [4, [2, 1]] 0 [2, 2]
all_gather g0 r -> t : [4, [2, 1]] 0 [2, 2]
slice s -> i : [4, [1, 2]] 0..4, 0..1, 0..1
slice t -> j : [4, [1, 2]] 0..4, 0..1, 0..1
slice u -> k : [4, [2, 1]] 0..4, 0..1, 0..1
add i, j -> h
call 2 x -> y : {} ; y = aten.mul.Tensor(v, 2.0)
output y
",
        half("f", "q"),
        half("g", "r"),
        all("u", 1),
        all("v", 2),
    );
    proof(&graph(DIVIDED), &text);
    refused(DIVIDED, &with(&text, "add i, j -> h", "add i, k -> h"), "SW0508", "");
}

const TWO_USES: &str = "input %x f64[4,4] 0
param %w f64[4] \"w\"
op %t f64[4] = aten.relu.default(%w) in \"\" at \"m.py:1\"
op %y f64[4,4] = aten.mul.Tensor(%t, %x) in \"\" at \"m.py:2\"
op %z f64[4] = aten.mul.Tensor(%t, 2.0) in \"\" at \"m.py:3\"
output %y
output %z
";

/// The gradient by the first use: of two elements at once, and of the others row by row. By the second use it arises in the
/// call that makes the value.
const PIECES: &str = "table 1 %t sum
from 0 0..2
from 0 2..4
from 0 2..4
to 0 :
piece 0 0 0..2
piece 1 0 2..4
piece 2 0 2..4
ranks 0
shard w %w :
input x %x :,:
call 0 w -> t, z : t = aten.relu.default(w) ; z = aten.mul.Tensor(t, 2.0)
call 1 t, x -> y : y = aten.mul.Tensor(t, x)
slice t -> t1 : [4] 0..2
slice t -> t2 : [4] 2..4
slice x -> x1 : [4, 4] 0..4, 0..2
slice x -> x2 : [4, 4] 0..2, 2..4
slice x -> x3 : [4, 4] 2..4, 2..4
call 2 t1, x1 -> y1 : y1 = aten.mul.Tensor(t1, x1)
call 3 t2, x2 -> y2 : y2 = aten.mul.Tensor(t2, x2)
call 4 t2, x3 -> y3 : y3 = aten.mul.Tensor(t2, x3)
output y
output z
seed dy
seed dz
slice dy -> d1 : [4, 4] 0..4, 0..2
slice dy -> d2 : [4, 4] 0..2, 2..4
slice dy -> d3 : [4, 4] 2..4, 2..4
grad 2 d1 -> e1
grad 3 d2 -> e2
grad 4 d3 -> e3
exchange 1 e1, e2, e3 -> dt
grad 0 dt, dz ->
";

#[test]
fn a_gradient_in_pieces_is_added_to_one_that_a_call_makes() {
    proof(&graph(TWO_USES), PIECES);
    let text = with(PIECES, "piece 2 0 2..4\n", "");
    refused(TWO_USES, &text, "SW0509", "does not cover its whole region");
}

const SUMMED: &str = "param %w f64[4,1] \"w\"
input %a f64[4,4] 0
op %e f64[4,4] = aten.expand.default(%w, [4, 4]) in \"\" at \"m.py:1\"
op %s f64[4] = aten.sum.dim_IntList(%e, [1]) in \"\" at \"m.py:2\"
op %y f64[4,4] = aten.mul.Tensor(%e, %a) in \"\" at \"m.py:3\"
output %s
output %y
";

/// Outputs are whole, and each rank computes the backward of two columns, by both uses in one call: `given` besides, which is
/// the gradient by the first use in the first two rows.
fn columns(given: &str) -> String {
    let rank = |rank: usize, columns: &str, own: &str| {
        format!(
            "ranks {rank}
shard w %w :
input a %a :,:
call 0 w, a -> s, y : e = aten.expand.default(w, [4, 4]) ; s = aten.sum.dim_IntList(e, [1]) ; y = aten.mul.Tensor(e, a)
slice a -> b : [4, 4] 0..4, {columns}
call 1 w, b -> f, p, q : f = aten.expand.default(w, [4, 2]) ; p = aten.sum.dim_IntList(f, [1]) ; q = aten.mul.Tensor(f, b)
call 2 w -> g : g = aten.expand.default(w, [4, 2])
slice g -> h : [4, 2] {rows}, 0..2
call 3 h -> o : o = aten.sum.dim_IntList(h, [1])
output s
output y
seed ds
seed dy
slice ds -> do : [4] {rows}
slice dy -> dq : [4, 4] 0..4, {columns}
grad 3 {own} -> dh
all_gather g0 dh -> df : [4, 2] 0 [2, 2]
grad 1 {given}, ds, dq ->
reduce_gradients g0 w
",
            rows = ["0..2", "2..4"][rank],
        )
    };
    format!("group 0,1\n{}{}", rank(0, "0..2", "do"), rank(1, "2..4", "_"))
}

/// Equal columns lie where those of the product with others do.
#[test]
fn gradients_that_may_lie_anywhere_are_added_in_one_call() {
    proof(&graph(SUMMED), &columns("_"));
    refused(SUMMED, &columns("df"), "SW0509", "gradients of different parts of %e are added");
}
