//! Values that are the same everywhere, of which a part may lie anywhere: what is done with such a part says where it lies.

use crate::support::{faults, graph, proof};

fn breaks(model: &str, text: &str, old: &str, new: &str, code: &str) {
    assert!(text.contains(old), "{old}");
    let found = faults(&graph(model), &text.replacen(old, new, 1));
    assert_eq!(found.first().map(|fault| fault.code), Some(code), "{old:?} to {new:?}: {found:?}");
}

const ROWS: &str = "param %w f64[4] \"w\"
op %e f64[4,4] = aten.ones.default([4, 4]) in \"\" at \"m.py:1\"
op %y f64[4,4] = aten.mul.Tensor(%e, %w) in \"\" at \"m.py:2\"
output %y
";

/// The output leaves whole, and each rank computes the backward of two of its rows.
const HALVES: &str = "group 0,1
ranks 0,1
constant lo 0 2
constant hi 2 4
shard w %w :
call 0 w -> y : e = aten.ones.default([4, 4]) ; y = aten.mul.Tensor(e, w)
call 1 w -> p : f = aten.ones.default([2, 4]) ; p = aten.mul.Tensor(f, w)
output y
seed dy
slice dy -> dp : [4, 4] lo..hi, 0..4
grad 1 dp ->
reduce_gradients g0 w
";

/// Else twice the gradient of two rows would pass for that of four.
#[test]
fn rows_lie_where_their_gradient_does() {
    proof(&graph(ROWS), HALVES);
    let twice = HALVES.replace("constant hi 2 4", "constant hi 2 2");
    breaks(ROWS, &twice, "constant lo 0 2", "constant lo 0 0", "SW0508");
}

const VIEWED: &str = "param %w f64[1,1] \"w\"
op %e f64[2,2] = aten.expand.default(%w, [2, 2]) in \"\" at \"m.py:1\"
op %v f64[4] = aten.view.default(%e, [4]) in \"\" at \"m.py:2\"
op %y f64[4] = aten.mul.Tensor(%v, 2.0) in \"\" at \"m.py:3\"
output %y
";

/// Each rank has a row of the square, which is one half of it.
const SQUARE: &str = "group 0,1
ranks 0,1
constant lo 0 1
constant hi 1 2
shard w %w
call 0 w -> e : e = aten.expand.default(w, [2, 2])
call 1 e -> y : v = aten.view.default(e, [4]) ; y = aten.mul.Tensor(v, 2.0)
slice e -> f : [2, 2] lo..hi, 0..2
call 2 f -> p : g = aten.reshape.default(f, [2]) ; p = aten.mul.Tensor(g, 2.0)
output y
seed dy
slice dy -> dp : [[2, 2]] lo..hi, 0..2
grad 2 dp -> df
all_gather g0 df -> de : [2, 2] 0 [1, 1]
grad 0 de ->
";

/// A gradient of as many elements, which are a column: what it would become is a row.
#[test]
fn a_gradient_has_the_shape_of_the_part_that_was_computed() {
    proof(&graph(VIEWED), SQUARE);
    let turned = SQUARE.replace("[[2, 2]] lo..hi, 0..2", "[[2, 2]] 0..2, lo..hi");
    breaks(VIEWED, &turned, "[2, 2] 0 [1, 1]", "[2, 2] 1 [1, 1]", "SW0509");
}

/// A gradient that is nothing is so wherever it lies.
#[test]
fn nothing_lies_anywhere() {
    let text = "table 1 %v sum
to 0 0..2,0..1
ranks 0
shard w %w
call 0 w -> e : e = aten.expand.default(w, [2, 2])
call 1 e -> y : v = aten.view.default(e, [4]) ; y = aten.mul.Tensor(v, 2.0)
slice e -> f : [2, 2] 0..1, 0..2
call 2 f -> g : g = aten.reshape.default(f, [2])
output y
seed dy
exchange 1 -> n
grad 2 n -> _
grad 1 dy -> de
grad 0 de ->
";
    proof(&graph(VIEWED), text);
    breaks(VIEWED, text, "to 0 0..2,0..1", "to 0 0..2,0..2", "SW0509");
}

const EXPANDED: &str = "input %x f64[4,1] 0
op %e f64[4,4] = aten.expand.default(%x, [4, 4]) in \"\" at \"m.py:1\"
op %s f64[] = aten.sum.default(%e) in \"\" at \"m.py:2\"
output %s
";

/// Two ranks divide the first rows by three to one, the others theirs by two to two.
const UNEVEN: &str = "group 0,1,2,3
ranks 0,1,2,3
constant n 3 1 2 2
input x %x 0..2 | 0..2 | 2..4 | 2..4
call 0 x -> s : e = aten.expand.default(x, [2, n]) ; s = aten.sum.default(e)
all_reduce g0 sum s -> t
output t
";

#[test]
fn parts_of_some_rows_find_their_places_whatever_those_of_others_are() {
    proof(&graph(EXPANDED), UNEVEN);
    breaks(EXPANDED, UNEVEN, "n 3 1 2 2", "n 3 1 2 3", "SW0508");
    breaks(EXPANDED, UNEVEN, "n 3 1 2 2", "n 3 1 2 1", "SW0512");
}

const SCALED: &str = "input %x f64[4,1] 0
param %w f64[] \"w\"
op %e f64[4,4] = aten.expand.default(%x, [4, 4]) in \"\" at \"m.py:1\"
op %y f64[4,4] = aten.mul.Tensor(%e, %w) in \"\" at \"m.py:2\"
op %s f64[] = aten.sum.default(%y) in \"\" at \"m.py:3\"
output %s
";

/// The same, where a parameter's gradient is a sum over all of them.
const UNEVEN_GRADIENTS: &str = "group 0,1,2,3
ranks 0,1,2,3
constant n 3 1 2 2
shard w %w
input x %x 0..2 | 0..2 | 2..4 | 2..4
call 0 x, w -> s : e = aten.expand.default(x, [2, n]) ; y = aten.mul.Tensor(e, w) ; s = aten.sum.default(y)
all_reduce g0 sum s -> t
output t
seed ds
grad 0 ds ->
reduce_gradients g0 w
";

#[test]
fn gradients_of_some_rows_lie_beside_each_other_and_not_beside_those_of_others() {
    proof(&graph(SCALED), UNEVEN_GRADIENTS);
    breaks(SCALED, UNEVEN_GRADIENTS, "reduce_gradients g0 w\n", "", "SW0511");
}

const SQUARES: &str = "op %e f64[16] = aten.ones.default([16]) in \"\" at \"m.py:1\"
op %v f64[4,4] = aten.view.default(%e, [4, 4]) in \"\" at \"m.py:2\"
op %s f64[] = aten.sum.default(%v) in \"\" at \"m.py:3\"
output %s
";

/// Three rows and one.
const ROWS_OF_A_SQUARE: &str = "group 0,1
ranks 0,1
constant n 12 4
constant rows 3 1
call 0 -> s : e = aten.ones.default([n]) ; v = aten.reshape.default(e, [rows, 4]) ; s = aten.sum.default(v)
all_reduce g0 sum s -> t
output t
";

/// How many elements a part has says how it is divided, and what is executed says over which of several factors.
#[test]
fn a_part_is_divided_as_what_reads_it() {
    proof(&graph(SQUARES), ROWS_OF_A_SQUARE);
    let columns = ROWS_OF_A_SQUARE.replace("[rows, 4]", "[4, rows]");
    proof(&graph(SQUARES), &columns);
    breaks(SQUARES, &columns, "rows 3 1", "rows 3 2", "SW0504");
}

const PAIRS: &str = "input %x f64[3,1] 0
op %e f64[3,4] = aten.expand.default(%x, [3, 4]) in \"\" at \"m.py:1\"
op %v f64[3,2,2] = aten.view.default(%e, [3, 2, 2]) in \"\" at \"m.py:2\"
op %u f64[3,4] = aten.view.default(%v, [3, 4]) in \"\" at \"m.py:3\"
op %s f64[3] = aten.sum.dim_IntList(%u, [1]) in \"\" at \"m.py:4\"
output %s
";

/// One rank has the first pair, whole, the other one half of both.
const TWO_WAYS: &str = "group 0,1
ranks 0
input x %x :
call 0 x -> u : e = aten.expand.default(x, [3, 4]) ; v = aten.view.default(e, [3, 2, 2]) ; u = aten.view.default(v, [3, 4])
slice u -> p : [3, [2, 2]] 0..3, 0..1, 0..2
call 1 p -> s : s = aten.sum.dim_IntList(p, [1])
all_reduce g0 sum s -> t
output t
ranks 1
input x %x :
call 0 x -> s : e = aten.expand.default(x, [3, 2]) ; v = aten.reshape.default(e, [3, 2, 1]) ; u = aten.reshape.default(v, [3, 2]) ; s = aten.sum.dim_IntList(u, [1])
all_reduce g0 sum s -> t
output t
";

#[test]
fn equal_elements_are_counted_over_all_factors_of_a_dim() {
    proof(&graph(PAIRS), TWO_WAYS);
    breaks(PAIRS, TWO_WAYS, "0..3, 0..1, 0..2", "0..3, 0..1, 0..1", "SW0512");
}

const COUNTED: &str = "op %a i64[8] = aten.arange.default(8) in \"\" at \"m.py:1\"
op %s i64[] = aten.sum.default(%a) in \"\" at \"m.py:2\"
output %s
";

const THIRDS: &str = "group 0,1,2
ranks 0,1,2
constant lo 0 3 6
constant hi 3 6 8
call 0 -> s : a = aten.arange.start_step(lo, hi, 1, dtype=i64) ; s = aten.sum.default(a)
all_reduce g0 sum s -> t
output t
";

/// What a rank counts beside the numbers of the model is no part of them.
#[test]
fn numbers_that_are_counted_are_those_of_the_model() {
    proof(&graph(COUNTED), THIRDS);
    let split_backward = |lo: i64, hi: i64| {
        THIRDS.replace("lo 0 3 6", &format!("lo 0 4 {lo}")).replace("hi 3 6 8", &format!("hi 4 8 {hi}"))
    };
    for (lo, hi) in [(-2, 0), (8, 10), (7, 9), (-1, 1), (5, 3)] {
        let found = faults(&graph(COUNTED), &split_backward(lo, hi));
        assert_eq!(found.first().map(|fault| fault.code), Some("SW0504"), "{lo} {hi}: {found:?}");
    }
    breaks(COUNTED, THIRDS, "start_step(lo, hi, 1,", "start_step(lo, hi,", "SW0504");
    breaks(COUNTED, THIRDS, "start_step(lo, hi, 1,", "start_step(lo, hi, 1, 1,", "SW0504");
    breaks(ROWS, HALVES, "ones.default([2, 4])", "ones.default([2])", "SW0504");
    breaks(ROWS, HALVES, "ones.default([2, 4])", "ones.default([2, 4], 1)", "SW0504");
}

const ROWS_COUNTED: &str = "op %a i64[8] = aten.arange.default(8) in \"\" at \"m.py:1\"
op %v i64[2,4] = aten.view.default(%a, [2, 4]) in \"\" at \"m.py:2\"
op %s i64[] = aten.sum.default(%v) in \"\" at \"m.py:3\"
output %s
";

/// Each rank counts the numbers of its row.
#[test]
fn numbers_are_counted_in_rows() {
    let text = "group 0,1
ranks 0,1
constant lo 0 4
constant hi 4 8
call 0 -> s : a = aten.arange.start_step(lo, hi, 1, dtype=i64) ; v = aten.reshape.default(a, [1, 4]) ; s = aten.sum.default(v)
all_reduce g0 sum s -> t
output t
";
    proof(&graph(ROWS_COUNTED), text);
    breaks(ROWS_COUNTED, text, "constant hi 4 8", "constant hi 4 7", "SW0504");
}

const JOINED: &str = "input %x f64[2] 0
op %e f64[2,2] = aten.expand.default(%x, [2, 2]) in \"\" at \"m.py:1\"
op %v f64[4] = aten.view.default(%e, [4]) in \"\" at \"m.py:2\"
op %s f64[] = aten.sum.default(%v) in \"\" at \"m.py:3\"
output %s
";

/// Of the sum's dim one factor is the same all along, the other is not: each rank has an element of both.
const QUARTERS: &str = "group 0,1,2,3
ranks 0,1,2,3
input x %x 0..1 | 0..1 | 1..2 | 1..2
call 0 x -> s : e = aten.expand.default(x, [1, 1]) ; v = aten.reshape.default(e, [1]) ; s = aten.sum.default(v)
all_reduce g0 sum s -> t
output t
";

/// As many elements are no proof where they differ.
#[test]
fn elements_are_counted_only_along_factors_that_are_the_same() {
    proof(&graph(JOINED), QUARTERS);
    breaks(JOINED, QUARTERS, "1..2 | 1..2", "0..1 | 1..2", "SW0508");
    breaks(JOINED, QUARTERS, "0..1 | 0..1 | 1..2 | 1..2", "0..1 | 0..1 | 0..1 | 0..1", "SW0508");
}

const BIASED: &str = "param %b f64[6] \"b\"
op %f f64[4,8] = aten.full.default([4, 8], 0.5, dtype=f64) in \"\" at \"m.py:1\"
op %g f64[8,6] = aten.full.default([8, 6], 0.25, dtype=f64) in \"\" at \"m.py:2\"
op %y f64[4,6] = aten.addmm.default(%b, %f, %g) in \"\" at \"m.py:3\"
op %s f64[] = aten.sum.default(%y) in \"\" at \"m.py:4\"
output %s
";

/// A product of equal terms in three parts, each with the bias or without.
fn biased(with: [bool; 3]) -> String {
    let part = |(at, (size, with)): (usize, (i64, bool))| {
        let (shard, read) = if with { ("shard b %b :\n", "b") } else { ("", "") };
        let product = if with { "aten.addmm.default(b, f, g)" } else { "aten.mm.default(f, g)" };
        format!(
            "ranks {at}
{shard}call 0 {read} -> y : f = aten.full.default([4, {size}], 0.5, dtype=f64) ; \
             g = aten.full.default([{size}, 6], 0.25, dtype=f64) ; y = {product}
all_reduce g0 sum y -> t
call 1 t -> s : s = aten.sum.default(t)
output s
seed ds
grad 1 ds -> dt
grad 0 dt ->
"
        )
    };
    let parts: String = [3, 3, 2].into_iter().zip(with).enumerate().map(part).collect();
    format!("group 0,1,2\n{parts}")
}

/// It is added by one part, which is the first, wherever the others lie.
#[test]
fn a_bias_is_added_to_equal_terms_once() {
    for at in 0..3 {
        proof(&graph(BIASED), &biased([at == 0, at == 1, at == 2]));
    }
    for (with, code) in [([false; 3], "SW0512"), ([true, true, false], "SW0508"), ([true; 3], "SW0508")] {
        let found = faults(&graph(BIASED), &biased(with));
        assert_eq!(found.first().map(|fault| fault.code), Some(code), "{with:?}: {found:?}");
    }
}

const SQUARED: &str = "param %t f64[4,4] \"t\"
param %w f64[4,4] \"w\"
op %y f64[4,4] = aten.addmm.default(%t, %t, %w) in \"\" at \"m.py:1\"
output %y
";

/// What is added is what is multiplied, too: by its place it is the one or the other.
#[test]
fn an_operand_that_is_read_twice_is_told_by_its_place() {
    let columns = "group 0,1
ranks 0,1
shard t %t :,:
leaf p t :,0..2 | :,2..4
shard w %w :,0..2 | :,2..4
call 0 p, t, w -> y : y = aten.addmm.default(p, t, w)
all_gather g0 y -> z : [4, 4] 1 [2, 2]
output z
";
    proof(&graph(SQUARED), columns);
    let role = |rank: usize, part: &str, product: &str| {
        format!(
            "ranks {rank}\nshard t %t :,:\nleaf p t :,{part}\nshard w %w {part},:\n\
             call 0 p, t, w -> y : y = {product}\nall_reduce g0 sum y -> z\noutput z\n"
        )
    };
    let first = role(0, "0..2", "aten.addmm.default(t, p, w)");
    let second = role(1, "2..4", "aten.mm.default(p, w)").replace("p, t, w ->", "p, w ->");
    proof(&graph(SQUARED), &format!("group 0,1\n{first}{second}"));
}

/// What only says how large something becomes is not read, and all else keeps its place.
#[test]
fn an_operand_that_tells_a_shape_is_not_read() {
    let model = "input %x f64[1,4] 0
input %o f64[4,4] 1
op %y f64[4,4] = aten.expand_as.default(%x, %o) in \"\" at \"m.py:1\"
output %y
";
    let text = "ranks 0,1
input x %x :
call 0 x -> y : y = aten.expand.default(x, [2, 4])
output y local 0..2,: | 2..4,:
";
    proof(&graph(model), text);
}

/// Each rank computes a row and gives it as a column: of what is the same everywhere, two elements are two elements.
#[test]
fn a_row_is_a_column_of_what_is_the_same_everywhere() {
    let text = "ranks 0,1
constant lo 0 1
constant hi 1 2
shard w %w
call 0 w -> e : e = aten.expand.default(w, [2, 2])
call 1 e -> v : v = aten.view.default(e, [4])
slice v -> p : [[2, 2]] lo..hi, 0..2
call 2 p -> y : y = aten.mul.Tensor(p, 2.0)
output y local :,0..1 | :,1..2
";
    proof(&graph(VIEWED), text);
    breaks(VIEWED, text, "lo..hi, 0..2", "lo..hi, 0..1", "SW0512");
}

/// All of it on each rank, and not as many elements as the slice says.
#[test]
fn a_slice_names_as_many_elements_as_there_are() {
    let with = |extents: &str| {
        let unused = format!("slice v -> unused : [{extents}] 0..1, 0..2\noutput y");
        SQUARE.replace("-> y : v =", "-> y, v : v =").replacen("output y", &unused, 1)
    };
    proof(&graph(VIEWED), &with("[2, 2]"));
    breaks(VIEWED, &with("[2, 2]"), "unused : [[2, 2]]", "unused : [[1, 2]]", "SW0507");
}

const NUMBERED: &str = "op %a i64[8] = aten.arange.default(8) in \"\" at \"m.py:1\"
op %v i64[2,4] = aten.view.default(%a, [2, 4]) in \"\" at \"m.py:2\"
output %a
";

const DRAWN: &str = "op %e f64[8] = aten.ones.default([8]) in \"\" at \"m.py:1\"
op %a f64[8] = aten.dropout.default(%e, 0.5, True) in \"\" at \"m.py:2\"
op %v f64[2,4] = aten.view.default(%a, [2, 4]) in \"\" at \"m.py:3\"
output %a
";

const ADDED: &str = "op %e f64[8] = aten.ones.default([8]) in \"\" at \"m.py:1\"
op %a f64[8] = aten.cumsum.default(%e, 0) in \"\" at \"m.py:2\"
op %v f64[2,4] = aten.view.default(%a, [2, 4]) in \"\" at \"m.py:3\"
output %a
";

/// Numbers that are counted, drawn or added up have two factors, and are not the same along any of them.
#[test]
fn halves_of_numbers_are_not_the_same() {
    let text = |call: &str| {
        format!(
            "ranks 0,1
constant lo 0 1
constant hi 1 2
{call}
slice a -> p : [[2, 4]] lo..hi, 0..4
output p local 0..1,: | 1..2,:
"
        )
    };
    let counted = text("call 0 -> a : a = aten.arange.default(8)");
    let drawn = text("random 1 :,:\ncall 0 -> a : e = aten.ones.default([8]) ; a = sw.dropout(e, 0.5, 1, 0)");
    let added = text("call 0 -> a : e = aten.ones.default([8]) ; a = aten.cumsum.default(e, 0)");
    for (model, text) in [(NUMBERED, counted), (DRAWN, drawn), (ADDED, added)] {
        proof(&graph(model), &text);
        breaks(model, &text, "lo 0 1\nconstant hi 1 2", "lo 0 0\nconstant hi 1 1", "SW0512");
    }
}

const READ_TWICE: &str = "input %a f64[4] 0
input %c f64[4] 1
param %w f64[1] \"w\"
op %e f64[4] = aten.expand.default(%w, [4]) in \"\" at \"m.py:1\"
op %y f64[4] = aten.mul.Tensor(%e, %a) in \"\" at \"m.py:2\"
op %z f64[4] = aten.mul.Tensor(%e, %c) in \"\" at \"m.py:3\"
op %s f64[] = aten.sum.default(%e) in \"\" at \"m.py:4\"
output %y
output %z
output %s
";

/// Outputs are whole, and each rank computes the backward of two elements.
const ELEMENTS: &str = "group 0,1
ranks 0,1
constant lo 0 2
constant hi 2 4
constant from 0 2
constant to 2 4
shard w %w
input a %a :
input c %c :
call 0 w, a, c -> y, z, s : e = aten.expand.default(w, [4]) ; y = aten.mul.Tensor(e, a) ; z = aten.mul.Tensor(e, c) ; s = aten.sum.default(e)
slice a -> b : [4] lo..hi
slice c -> d : [4] from..to
call 1 w -> f : f = aten.expand.default(w, [2])
call 2 f -> p : p = aten.sum.default(f)
call 3 f, b, d -> q, r : q = aten.mul.Tensor(f, b) ; r = aten.mul.Tensor(f, d)
output y
output z
output s
seed dy
seed dz
seed ds
slice dy -> dq : [4] lo..hi
slice dz -> dr : [4] from..to
grad 2 ds -> d1
grad 3 dq, dr -> d2
add d1, d2 -> df
grad 1 df ->
reduce_gradients g0 w
";

/// That of a sum of equal elements is the same for any of them, and lies where that of a product with others does.
#[test]
fn gradients_that_may_lie_anywhere_lie_where_others_do() {
    proof(&graph(READ_TWICE), ELEMENTS);
    let twice = ELEMENTS.replace("from 0 2", "from 0 0").replace("to 2 4", "to 2 2");
    breaks(READ_TWICE, &twice.replace("hi 2 4", "hi 2 2"), "lo 0 2", "lo 0 0", "SW0508");
}

/// As long, and of other elements.
#[test]
fn gradients_of_different_elements_are_not_added() {
    let turned = ELEMENTS.replace("to 2 4", "to 4 2");
    breaks(READ_TWICE, &turned, "from 0 2", "from 2 0", "SW0509");
}

const SPREAD: &str = "input %x f64[8] 0
op %p f64[] = aten.sum.default(%x) in \"\" at \"m.py:1\"
op %e f64[2,2] = aten.expand.default(%p, [2, 2]) in \"\" at \"m.py:2\"
op %v f64[4] = aten.view.default(%e, [4]) in \"\" at \"m.py:3\"
op %y f64[4] = aten.mul.Tensor(%v, 2.0) in \"\" at \"m.py:4\"
output %y
";

/// Two equal elements are a row on the one rank and a column on the other, and the same.
#[test]
fn equal_elements_are_added_however_they_are_divided() {
    let text = "group 0,1
ranks 0,1
constant n 1 2
constant m 2 1
input x %x 0..4 | 4..8
call 0 x -> q : p = aten.sum.default(x) ; e = aten.expand.default(p, [n, m]) ; q = aten.reshape.default(e, [2])
all_reduce g0 sum q -> t
all_gather g0 t -> v : [[2, 2]] 1 [1, 1]
call 1 v -> y : y = aten.mul.Tensor(v, 2.0)
output y
";
    proof(&graph(SPREAD), text);
    breaks(SPREAD, text, "0..4 | 4..8", "0..4 | 0..4", "SW0508");
}

/// Each rank has the gradient of a row.
const GRADIENTS: &str = "group 0,1
ranks 0,1
constant lo 0 1
constant hi 1 2
shard w %w
call 0 w -> y : e = aten.expand.default(w, [2, 2]) ; v = aten.view.default(e, [4]) ; y = aten.mul.Tensor(v, 2.0)
output y
seed dy
slice dy -> dp : [[2, 2]] lo..hi, 0..2
all_gather g0 dp -> dz : [[2, 2]] 0 [1, 1]
grad 0 dz ->
";

/// Of equal values the gradients differ.
#[test]
fn rows_of_a_gradient_are_no_columns() {
    proof(&graph(VIEWED), GRADIENTS);
    breaks(VIEWED, GRADIENTS, "[[2, 2]] 0 [1, 1]", "[[2, 2]] 1 [1, 1]", "SW0507");
}

const BOTH: &str = "param %w f64[1,1] \"w\"
op %e f64[2,2] = aten.expand.default(%w, [2, 2]) in \"\" at \"m.py:1\"
op %v f64[4] = aten.view.default(%e, [4]) in \"\" at \"m.py:2\"
op %y f64[4] = aten.mul.Tensor(%v, 2.0) in \"\" at \"m.py:3\"
op %z f64[4] = aten.mul.Tensor(%v, 3.0) in \"\" at \"m.py:4\"
output %y
output %z
";

const TWO_GRADIENTS: &str = "group 0,1
ranks 0,1
constant lo 0 1
constant hi 1 2
shard w %w
call 0 w -> v : e = aten.expand.default(w, [2, 2]) ; v = aten.view.default(e, [4])
call 1 v -> y : y = aten.mul.Tensor(v, 2.0)
call 2 v -> z : z = aten.mul.Tensor(v, 3.0)
output y
output z
seed dy
seed dz
grad 1 dy -> d1
grad 2 dz -> d2
slice d1 -> a : [[2, 2]] lo..hi, 0..2
slice d2 -> b : [[2, 2]] lo..hi, 0..2
add a, b -> c
all_gather g0 c -> dv : [[2, 2]] 0 [1, 1]
grad 0 dv ->
";

#[test]
fn a_row_of_a_gradient_is_not_added_to_a_column() {
    proof(&graph(BOTH), TWO_GRADIENTS);
    let column = ("b : [[2, 2]] lo..hi, 0..2", "b : [[2, 2]] 0..2, lo..hi");
    breaks(BOTH, TWO_GRADIENTS, column.0, column.1, "SW0507");
    // Nor is it one, however they are joined.
    let columns = TWO_GRADIENTS.replace("[[2, 2]] 0 [1, 1]", "[[2, 2]] 1 [1, 1]");
    breaks(BOTH, &columns, column.0, column.1, "SW0507");
}

const SPREAD_ONE: &str = "input %x f64[1] 0
op %e f64[4] = aten.expand.default(%x, [4]) in \"\" at \"m.py:1\"
op %y f64[4] = aten.mul.Tensor(%e, 2.0) in \"\" at \"m.py:2\"
output %y
";

/// The first rank's piece lies somewhere, the second one's anywhere after it.
#[test]
fn what_may_lie_anywhere_lies_in_its_tensor() {
    let text = "group 0,1
ranks 0
input x %x
call 0 x -> e : e = aten.expand.default(x, [4])
slice e -> p : [4] 0..2
all_gather g0 p -> f : [4] 0 [2, 2]
call 1 f -> y : y = aten.mul.Tensor(f, 2.0)
output y
ranks 1
input x %x
call 0 x -> p : p = aten.expand.default(x, [2])
all_gather g0 p -> f : [4] 0 [2, 2]
call 1 f -> y : y = aten.mul.Tensor(f, 2.0)
output y
";
    proof(&graph(SPREAD_ONE), text);
    breaks(SPREAD_ONE, text, "[4] 0..2", "[4] 2..4", "SW0507");
}

const DROPPED: &str = "op %e f64[4,4] = aten.ones.default([4, 4]) in \"\" at \"m.py:1\"
op %d f64[4,4] = aten.dropout.default(%e, 0.5, True) in \"\" at \"m.py:2\"
output %d
";

/// Which of the equal rows are dropped in part the table says.
#[test]
fn what_is_drawn_lies_where_the_table_says() {
    let text = "group 0,1
ranks 0,1
random 1 0..2,: | 2..4,:
call 0 -> p : e = aten.ones.default([2, 4]) ; p = sw.dropout(e, 0.5, 1, 0)
all_gather g0 p -> d : [4, 4] 0 [2, 2]
output d
";
    proof(&graph(DROPPED), text);
    breaks(DROPPED, text, "0..2,: | 2..4,:", "2..4,: | 0..2,:", "SW0507");
}

const REPEATED: &str = "input %x f64[8] 0
op %p f64[] = aten.sum.default(%x) in \"\" at \"m.py:1\"
op %e f64[4] = aten.expand.default(%p, [4]) in \"\" at \"m.py:2\"
op %y f64[4] = aten.mul.Tensor(%e, 2.0) in \"\" at \"m.py:3\"
output %y
";

/// Of a half of the sum two equal elements each: first those of the one rank, then those of the other, and in turn.
const IN_TURN: &str = "group 0,1
ranks 0,1
input x %x :
constant a 0 4
constant b 4 8
constant c 4 0
constant d 8 4
slice x -> f : [8] a..b
slice x -> g : [8] c..d
call 0 f, g -> q, r : o = aten.sum.default(f) ; q = aten.expand.default(o, [2]) ; p = aten.sum.default(g) ; r = aten.expand.default(p, [2])
all_gather g0 q -> s : [4] 0 [2, 2]
all_gather g0 r -> t : [4] 0 [2, 2]
call 1 x -> u : v = aten.sum.default(x) ; u = aten.expand.default(v, [4])
add s, t -> e
call 2 e -> y : y = aten.mul.Tensor(e, 2.0)
output y
";

/// Equal elements of which some are a share and others another one are not equal: each lies where it was put.
#[test]
fn shares_of_equal_elements_lie_where_they_were_put() {
    proof(&graph(REPEATED), IN_TURN);
    breaks(REPEATED, IN_TURN, "add s, t -> e", "add s, s -> e", "SW0508");
    breaks(REPEATED, IN_TURN, "add s, t -> e", "add s, u -> e", "SW0508");
    breaks(REPEATED, IN_TURN, "add s, t -> e", "add s, t, u -> e", "SW0508");
    breaks(REPEATED, IN_TURN, "add s, t -> e", "add s -> e", "SW0505");
}

/// Two of four, of which nobody knows where they lie.
#[test]
fn shares_of_equal_elements_lie_somewhere() {
    let text = IN_TURN.replace("[2]", "[1]").replace("[4] 0 [2, 2]", "[2] 0 [1, 1]");
    let text = text.replace("(v, [4])", "(v, [2])").replace("add s, t -> e", "add s, u -> e");
    let found = faults(&graph(REPEATED), &text);
    assert_eq!(found.first().map(|fault| fault.code), Some("SW0507"), "{found:?}");
}

/// One element each, then two of which it is not known where they lie, then all four.
#[test]
fn equal_elements_are_joined_wherever_they_lie() {
    let text = "group 0,1 2,3
group 0,2 1,3
ranks 0,1,2,3
input x %x
call 0 x -> p : p = aten.expand.default(x, [1])
all_gather g0 p -> q : [2] 0 [1, 1]
all_gather g1 q -> e : [4] 0 [2, 2]
call 1 e -> y : y = aten.mul.Tensor(e, 2.0)
output y
";
    proof(&graph(SPREAD_ONE), text);
    breaks(SPREAD_ONE, text, "g1 q -> e : [4] 0 [2, 2]", "g1 q -> e : [4] 0 [1, 3]", "SW0507");
}
