//! Slices, additions and collectives: what is cut and joined fits together, on each rank.

use crate::support::{LINEARS, faults, graph, proof};

fn breaks(model: &str, text: &str, changes: &[(&str, &str)], code: &str) {
    let mut other = text.to_owned();
    for (old, new) in changes {
        assert!(other.contains(old), "{old}");
        other = other.replace(old, new);
    }
    let found = faults(&graph(model), &other);
    assert_eq!(found.first().map(|fault| fault.code), Some(code), "{changes:?}: {found:?}");
}

const SUM: &str = "input %x f64[4,8] 0
op %p f64[4] = aten.sum.dim_IntList(%x, [1]) in \"\" at \"m.py:1\"
output %p
";

/// A rank alone has nobody to communicate with, and may do so.
#[test]
fn a_group_of_one_has_all() {
    let text = "group 0
ranks 0
input x %x :,:
call 0 x -> p : p = aten.sum.dim_IntList(x, [1])
all_reduce g0 max p -> q
all_reduce g0 sum q -> r
all_gather g0 r -> s : [4] 0 [4]
all_to_all g0 s -> t : [4] 0 [4] : [4] 0 [4]
reduce_scatter g0 t -> u : [4] 0 [4]
output u
";
    proof(&graph(SUM), text);
    let share = "group 0
ranks 0
input x %x :,:
slice x -> a : [4, 8] 0..4, 0..4
slice x -> b : [4, 8] 0..4, 4..8
call 0 a, b -> p, q : p = aten.sum.dim_IntList(a, [1]) ; q = aten.sum.dim_IntList(b, [1])
all_reduce g0 max p -> r
add r, q -> s
output s
";
    proof(&graph(SUM), share);
}

const TWO_USES: &str = "input %x f64[4] 0
param %w f64[4] \"w\"
op %y f64[4] = aten.mul.Tensor(%x, %w) in \"\" at \"m.py:1\"
op %z f64[4] = aten.mul.Tensor(%y, %w) in \"\" at \"m.py:2\"
output %z
";

/// Each use reads a copy of its own, whose gradient is added to that of the one part.
const TWO_COPIES: &str = "group 0
ranks 0
hold w_part %w :
copy w w_part 0 1 :
copy v w_part 0 1 :
input x %x :
gather g0 w, v
call 0 x, w -> y : y = aten.mul.Tensor(x, w)
call 1 y, v -> z : z = aten.mul.Tensor(y, v)
release w, v
output z
seed dz
gather g0 w, v
grad 1 dz -> dy
grad 0 dy ->
release w, v
scatter g0 w, v
reduce_shards g0 w_part
";

#[test]
fn gradients_of_two_copies_are_added() {
    proof(&graph(TWO_USES), TWO_COPIES);
    breaks(TWO_USES, TWO_COPIES, &[("scatter g0 w, v", "scatter g0 w")], "SW0511");
}

const UNEVEN: &str = "input %x f64[2,4] 0
param %w f64[7,4] \"w\"
op %y f64[2,7] = aten.linear.default(%x, %w) in \"\" at \"m.py:1\"
output %y
";

/// A part may have one row more than the other.
#[test]
fn parts_that_are_gathered_may_be_uneven() {
    let text = "group 0,1
ranks 0,1
hold w_part %w 0..4,: | 4..7,:
copy w w_part 0 2 :,:
input x %x :,:
gather g0 w
call 0 x, w -> y : y = aten.linear.default(x, w)
release w
output y
";
    proof(&graph(UNEVEN), text);
    breaks(UNEVEN, text, &[("0..4,: | 4..7,:", "0..3,: | 3..7,:")], "SW0507");
}

const GATHERED: &str = "group 0,1
ranks 0,1
hold w_part %w 0..4,: | 4..8,:
copy w w_part 0 2 :,:
shard v %v :,:
input x %x 0..2,: | 2..4,:
gather g0 w
call 0 x, w, v -> s : y = aten.linear.default(x, w) ; z = aten.linear.default(y, v) ; s = aten.sum.default(z)
release w
all_reduce g0 sum s -> t
output t
";

fn not_its_shards(text: &str) {
    let found = faults(&graph(LINEARS), text);
    let said = |what: &str| what.contains("is not what its shards make up");
    assert!(found.iter().any(|fault| fault.code == "SW0507" && said(&fault.what)), "{found:?}");
}

#[test]
fn a_copy_has_as_many_parts_as_its_group_has_ranks() {
    proof(&graph(LINEARS), GATHERED);
    not_its_shards(&GATHERED.replace("copy w w_part 0 2", "copy w w_part 2 2"));
    let quarters = GATHERED.replace("0..4,: | 4..8,:", "0..2,: | 2..4,:").replace("w_part 0 2", "w_part 0 4");
    not_its_shards(&quarters.replace("copy w", "hold w_rest %w 4..6,: | 6..8,:\ncopy w"));
}

/// What a function returns would be given up before it is read.
#[test]
fn a_parameter_that_was_gathered_is_not_returned() {
    let model = "input %x f64[4] 0
param %w f64[4] \"w\"
op %y f64[4] = aten.mul.Tensor(%x, %w) in \"\" at \"m.py:1\"
output %y
output %w
";
    let text = "group 0,1
ranks 0,1
hold w_part %w 0..2 | 2..4
copy w w_part 0 2 :
input x %x :
gather g0 w
call 0 x, w -> y : y = aten.mul.Tensor(x, w)
release w
output y
output w
";
    let found = faults(&graph(model), text);
    let said = |what: &str| what.contains("returns a parameter that was gathered");
    assert!(found.iter().any(|fault| fault.code == "SW0523" && said(&fault.what)), "{found:?}");
}

const PRODUCTS: &str = "input %x f64[4,8] 0
param %w f64[6,8] \"w\"
param %v f64[6,8] \"v\"
op %a f64[4,6] = aten.linear.default(%x, %w) in \"\" at \"m.py:1\"
op %b f64[4,6] = aten.linear.default(%x, %v) in \"\" at \"m.py:2\"
output %a
output %b
";

/// Two halves of one product, and one of another.
#[test]
fn shares_of_one_value_are_added() {
    let text = "ranks 0
shard w %w :,:
shard v %v :,:
input x %x :,:
slice x -> x0 : [4, 8] 0..4, 0..4
slice x -> x1 : [4, 8] 0..4, 4..8
slice w -> w0 : [6, 8] 0..6, 0..4
slice w -> w1 : [6, 8] 0..6, 4..8
slice v -> v0 : [6, 8] 0..6, 0..4
call 0 x0, w0 -> p : p = aten.linear.default(x0, w0)
call 1 x1, w1 -> q : q = aten.linear.default(x1, w1)
call 2 x0, v0 -> r : r = aten.linear.default(x0, v0)
call 3 x, v -> b : b = aten.linear.default(x, v)
add p, q -> a
output a
output b
";
    proof(&graph(PRODUCTS), text);
    breaks(PRODUCTS, text, &[("add p, q -> a", "add p, q, r -> a")], "SW0507");
    breaks(PRODUCTS, text, &[("add p, q -> a", "add p, q, q -> a")], "SW0508");
}

const RELU: &str = "input %x f64[8,8] 0
op %y f64[8,8] = aten.relu.default(%x) in \"\" at \"m.py:1\"
output %y
";

const ROWS: &str = "group 0,1
ranks 0,1
constant lo 0 4
constant hi 4 8
constant n 8 8
input x %x :,:
slice x -> a : [8, 8] lo..hi, 0..8
call 0 a -> p : p = aten.relu.default(a)
all_gather g0 p -> y : [n, 8] 0 [4, 4]
output y
";

#[test]
fn each_rank_has_the_numbers_that_fit() {
    proof(&graph(RELU), ROWS);
    breaks(RELU, ROWS, &[("n 8 8", "n 8 9")], "SW0507");
    breaks(RELU, ROWS, &[("n 8 8", "n 9 8")], "SW0507");
}

#[test]
fn a_slice_may_be_of_nothing() {
    let uneven = ROWS.replace("lo 0 4", "lo 0 0").replace("hi 4 8", "hi 0 8").replace("[4, 4]", "[0, 8]");
    proof(&graph(RELU), &uneven);
    breaks(RELU, ROWS, &[("lo 0 4", "lo 5 4")], "SW0507");
}

/// Extents may divide a dim that the model does not divide.
#[test]
fn a_slice_may_name_a_part_of_a_factor() {
    let halves = [("lo 0 4", "lo 0 1"), ("hi 4 8", "hi 1 2")];
    let text = halves.iter().fold(ROWS.to_owned(), |text, (old, new)| text.replace(old, new));
    let text = text.replace("[8, 8] lo..hi, 0..8", "[[2, 4], [8]] lo..hi, 0..4, 0..8");
    proof(&graph(RELU), &text);
    breaks(RELU, &text, &[("lo..hi, 0..4", "0..2, 0..4")], "SW0507");
}

const FLAT: &str = "input %x f64[2,4] 0
op %v f64[8] = aten.view.default(%x, [8]) in \"\" at \"m.py:1\"
op %y f64[8] = aten.relu.default(%v) in \"\" at \"m.py:2\"
output %y
";

/// Or leave undivided one that it does.
#[test]
fn pieces_may_be_parts_of_several_factors() {
    let text = "group 0,1
ranks 0,1
input x %x 0..1,: | 1..2,:
call 0 x -> p : v = aten.reshape.default(x, [4]) ; p = aten.relu.default(v)
all_gather g0 p -> y : [8] 0 [4, 4]
output y
";
    proof(&graph(FLAT), text);
    breaks(FLAT, text, &[("0..1,: | 1..2,:", "1..2,: | 0..1,:")], "SW0507");
}

#[test]
fn pieces_lie_beside_each_other_along_one_factor() {
    let text = "group 0,1
ranks 0,1
input x %x 0..4,0..4 | 0..4,4..8
all_gather g0 x -> z : [4, 8] 1 [4, 4]
call 0 z -> p : p = aten.relu.default(z)
output p local 0..4,:
";
    let found = faults(&graph(RELU), text);
    assert_eq!(found.first().map(|fault| fault.code), Some("SW0512"), "only half: {found:?}");
    breaks(RELU, text, &[("0..4,0..4 | 0..4,4..8", "0..4,0..4 | 4..8,4..8")], "SW0507");
}

/// A rank has one half of the sum of the first rows, the other one the other half of that of the last ones.
#[test]
fn shares_are_joined_where_they_lie() {
    let text = "group 0,1
ranks 0,1
constant lo 0 2
constant hi 2 4
constant a 0 4
constant b 4 8
constant c 4 0
constant d 8 4
input x %x :,:
slice x -> e : [4, 8] lo..hi, a..b
slice x -> f : [4, 8] lo..hi, c..d
call 0 e, f -> p, q : p = aten.sum.dim_IntList(e, [1]) ; q = aten.sum.dim_IntList(f, [1])
all_gather g0 p -> r : [4] 0 [2, 2]
all_gather g0 q -> s : [4] 0 [2, 2]
add r, s -> t
output t
";
    proof(&graph(SUM), text);
    breaks(SUM, text, &[("c 4 0", "c 0 0"), ("d 8 4", "d 4 4")], "SW0508");
}

/// The first rank has all of its rows, the second one a part of the sum.
#[test]
fn what_is_joined_is_as_whole_as_each_piece() {
    let text = "group 0,1
ranks 0,1
input x %x 0..2,: | 2..4,:
call 0 x -> p : p = aten.sum.dim_IntList(x, [1])
all_gather g0 p -> y : [4] 0 [2, 2]
output y
";
    proof(&graph(SUM), text);
    breaks(SUM, text, &[("| 2..4,:", "| 2..4,0..4")], "SW0512");
    breaks(SUM, text, &[("0..2,: |", "0..2,0..4 |")], "SW0512");
}

const CUBE: &str = "input %x f64[2,2,2,6] 0
op %p f64[2,2,2] = aten.sum.dim_IntList(%x, [3]) in \"\" at \"m.py:1\"
op %v f64[8] = aten.view.default(%p, [8]) in \"\" at \"m.py:2\"
output %v
";

/// The cut is the same in words, and the numbers of the one rank make it another.
#[test]
fn ranks_cut_along_one_factor_whatever_their_numbers() {
    let text = "group 0,1
ranks 0,1
constant n 2 2
constant m 2 2
input x %x :,:,:,0..3 | :,:,:,3..6
call 0 x -> q : p = aten.sum.dim_IntList(x, [3]) ; q = aten.reshape.default(p, [8])
reduce_scatter g0 q -> r : [[n, 2, m]] 1 [1, 1]
output r local :,0..1,: | :,1..2,:
";
    proof(&graph(CUBE), text);
    breaks(CUBE, text, &[("n 2 2", "n 2 4"), ("m 2 2", "m 2 1")], "SW0506");
    breaks(CUBE, text, &[("n 2 2", "n 4 2"), ("m 2 2", "m 1 2")], "SW0506");
}

/// A view is a view wherever it is, also of a share.
#[test]
fn an_operator_of_the_model_passes_shares_as_it_is() {
    let model = "input %x f64[4,8] 0
op %p f64[4] = aten.sum.dim_IntList(%x, [1]) in \"\" at \"m.py:1\"
op %v f64[2,2] = aten.view.default(%p, [2, 2]) in \"\" at \"m.py:2\"
output %v
";
    let text = "group 0,1
ranks 0,1
input x %x :,:,0..4 | :,:,4..8
call 0 x -> q : p = aten.sum.dim_IntList(x, [1]) ; q = aten.view.default(p, [2, 2])
all_reduce g0 sum q -> v
output v
";
    proof(&graph(model), text);
}

const DROPOUT: &str = "input %x f64[4,8] 0
op %d f64[4,8] = aten.dropout.default(%x, 0.5, True) in \"\" at \"m.py:1\"
output %d
";

/// Ranks would draw other numbers, each its own.
#[test]
fn what_draws_by_a_key_draws_nothing_without() {
    let text = "ranks 0
input x %x :,:
random 0 :,:
call 0 x -> d : d = sw.dropout(x, 0.5, 0, 0)
output d
";
    proof(&graph(DROPOUT), text);
    let plain = ("sw.dropout(x, 0.5, 0, 0)", "aten.dropout.default(x, 0.5, True)");
    breaks(DROPOUT, text, &[plain], "SW0504");
}

#[test]
fn what_draws_without_a_key_names_no_region() {
    let model = "op %r i64[8] = aten.randperm.default(8) in \"\" at \"m.py:1\"\noutput %r\n";
    let text = "ranks 0\ncall 0 -> r : r = aten.randperm.default(8)\noutput r\n";
    proof(&graph(model), text);
}
