//! What is gathered, summed and sent.

use super::*;
use crate::support::*;

const MLP: &str = include_str!("../programs/mlp.graph");
const MEGATRON: &str = include_str!("../programs/megatron.txt");

/// The second rank has the last bias, too, and does not read it.
fn unread(held: &str, reduced: &str) -> String {
    let other = "shard w2 %w2 8..16,:\n";
    assert!(MEGATRON.contains(other) && MEGATRON.contains("shard b2 %b2 :\n"));
    let (first, second) = MEGATRON.split_once("ranks 1").expect("two roles");
    format!(
        "{}\n{reduced}ranks 1{}\n{reduced}",
        first.replace("shard b2 %b2 :\n", held),
        second.replace(other, &format!("{other}{held}"))
    )
}

#[test]
fn a_gradient_that_does_not_arise_is_nothing_until_it_is_sent() {
    let reduced = of(MLP, &unread("shard b2 %b2 :\n", "reduce_gradients g0 b2\n"));
    has(&reduced[1], "end gradients 1152");
    let table = "table 6 %b2 sum
from 0 :
from 1 :
to 0 :
to 1 :
piece 0 0 :
piece 1 0 :
piece 0 1 :
piece 1 1 :
";
    let exchanged =
        of(MLP, &format!("{}{table}", unread("shard b2 %b2 :\n", "exchange_gradients 6 b2 -> b2\n")));
    has(&exchanged[1], "most gradients 1216, end gradients 1152");
}

#[test]
fn a_gradient_that_does_not_arise_is_scattered() {
    let gathered = |text: &str| {
        text.replace("call 0", "gather g0 b2\ncall 0")
            .replace("all_reduce g0 sum y", "release b2\nall_reduce g0 sum y")
            .replace("grad 0", "gather g0 b2\ngrad 0")
    };
    let copy = "copy b2 b2_part 0 2 :\n";
    let text = unread(copy, "release b2\nscatter g0 b2\n");
    let (first, second) = text.split_once("ranks 1").expect("two roles");
    let first = gathered(first).replace(copy, &format!("hold b2_part %b2 0..4\n{copy}"));
    let second = gathered(second).replace(copy, &format!("hold b2_part %b2 4..8\n{copy}"));
    let memory = of(MLP, &format!("{first}ranks 1{second}"));
    has(&memory[1], "end gradients 1120");
}

#[test]
fn the_sum_of_the_first_values_is_there_until_the_last_is_added() {
    let model = "input %x f64[4,6] 0
param %w f64[8,6] \"w\"
op %y f64[4,8] = aten.linear.default(%x, %w) in \"a\" at \"m.py:1\"
output %y
";
    let text = "ranks 0
hold w %w :,:
leaf a w :,0..2
leaf b w :,2..4
leaf c w :,4..6
input x %x :,:
slice x -> d : [4, 6] 0..4, 0..2
slice x -> e : [4, 6] 0..4, 2..4
slice x -> f : [4, 6] 0..4, 4..6
call 0 d, e, f, a, b, c -> p, q, r : p = aten.linear.default(d, a) ; q = aten.linear.default(e, b) ; r = aten.linear.default(f, c)
add p, q, r -> y
output y
";
    has(&of(model, text)[0], "most working 1280, most parameters 384");
}

/// `h` has three times four features; the middle ones of each four lie apart.
#[test]
fn a_slice_of_what_lies_apart_is_a_copy() {
    let model = HEADS
        .replace("[6,8]", "[12,8]")
        .replace("[4,6]", "[4,12]")
        .replace("3,2]", "3,4]")
        .replace("3, 2]", "3, 4]");
    let text = "ranks 0
shard w %w :,:,:
input x %x :,:
call 0 x, w -> h : h = aten.linear.default(x, w)
slice h -> a : [4, [3, 4]] 0..4, 0..3, 0..1
slice h -> b : [4, [3, 4]] 0..4, 0..3, 1..3
slice h -> c : [4, [3, 4]] 0..4, 0..3, 3..4
call 1 a -> p : i = aten.reshape.default(a, [4, 3, 1]) ; p = aten.sum.default(i)
call 2 b -> q : j = aten.reshape.default(b, [4, 3, 2]) ; q = aten.sum.default(j)
call 3 c -> r : k = aten.reshape.default(c, [4, 3, 1]) ; r = aten.sum.default(k)
add p, q, r -> s
output s
";
    has(&of(&model, text)[0], "most working 768");
}

#[test]
fn what_is_repeated_is_copied_where_it_is_laid_out() {
    let model = "input %x f64[4,1,8] 0
op %e f64[4,3,8] = aten.expand.default(%x, [4, 3, 8]) in \"\" at \"m.py:1\"
op %r f64[12,8] = aten.reshape.default(%e, [12, 8]) in \"\" at \"m.py:2\"
op %y f64[12,8] = aten.relu.default(%r) in \"\" at \"m.py:3\"
output %y
";
    let text = "ranks 0
input x %x :,:
call 0 x -> y : e = aten.expand.default(x, [4, 3, 8]) ; r = aten.reshape.default(e, [12, 8]) ; y = aten.relu.default(r)
output y
";
    has(&of(model, text)[0], "most working 1536");
    let turned = |text: &str| {
        text.replace("aten.reshape.default(%e, [12, 8])", "aten.transpose.int(%e, 0, 1)")
            .replace("aten.reshape.default(e, [12, 8])", "aten.transpose.int(e, 0, 1)")
            .replace("f64[12,8]", "f64[3,4,8]")
    };
    has(&of(&turned(model), &turned(text))[0], "most working 768");
}

#[test]
fn a_view_of_what_is_gathered_leaves_its_call_as_a_copy() {
    let model = "input %x f64[4,8] 0
param %w f64[8,8] \"w\"
op %t f64[8,8] = aten.transpose.int(%w, 0, 1) in \"a\" at \"m.py:1\"
op %y f64[4,8] = aten.mm.default(%x, %t) in \"a\" at \"m.py:2\"
output %y
";
    let text = "group 0,1
ranks 0,1
hold w_part %w 0..4,: | 4..8,:
copy w w_part 0 2 :,:
input x %x :,:
gather g0 w
call 0 w -> t : t = aten.transpose.int(w, 0, 1)
release w
call 1 x, t -> y : y = aten.mm.default(x, t)
output y
";
    has(&of(model, text)[0], "most gathered 512, most working 768, end gathered 0");
}

/// The columns of both parameters, so that the gradient between them is summed and cut.
const COLUMNS: &str = "group 0,1
ranks 0,1
shard w %w 0..4,: | 4..8,:
shard v %v 0..4,: | 4..8,:
input x %x :,:
call 0 x, w -> yp : yp = aten.linear.default(x, w)
all_gather g0 yp -> y : [4, 8] 1 [4, 4]
call 1 y, v -> p : z = aten.linear.default(y, v) ; p = aten.sum.default(z)
all_reduce g0 sum p -> s
output s
seed ds
grad 1 ds -> dp
reduce_scatter g0 dp -> dyp : [4, 8] 1 [4, 4]
grad 1 ->
grad 0 dyp ->
";

#[test]
fn what_a_message_needs_is_there_beside_the_next_instruction() {
    let model = graph(LINEARS);
    let mut made = halved(&model, COLUMNS);
    for instr in &mut made.roles[0].body.code_mut(0, Pass::Backward).instrs {
        if let Instr::Collective(message) = instr {
            message.overlaps = true;
        }
    }
    let memory = &told(&model, &made, &Masters::new())[0];
    has(memory, "peak 2192, peak communication 512, peak working 648, end communication 0, end working 8");
    has(&of(LINEARS, COLUMNS)[0], "peak 1936, peak communication 512");
}

/// Two values of so many rows of 256 elements, of which each rank has a summand.
fn summed(rows: u32) -> Vec<Memory> {
    let model = format!(
        "input %x f64[{rows},2] 0
param %w f64[256,2] \"w\"
param %v f64[256,2] \"v\"
op %y f64[{rows},256] = aten.linear.default(%x, %w) in \"a\" at \"m.py:1\"
op %z f64[{rows},256] = aten.linear.default(%x, %v) in \"b\" at \"m.py:2\"
output %y
output %z
"
    );
    let text = "group 0,1
ranks 0,1
shard w %w :,0..1 | :,1..2
shard v %v :,0..1 | :,1..2
input x %x :,0..1 | :,1..2
call 0 x, w, v -> p, q : p = aten.linear.default(x, w) ; q = aten.linear.default(x, v)
all_reduce g0 sum p, q -> y, z
output y
output z
";
    of(&model, text)
}

#[test]
fn small_values_are_copied_into_one_message() {
    has(&summed(256)[0], "most communication 1048576");
    has(&summed(257)[0], "most communication 0");
}

fn gathered(shape: &str, groups: &str, parts: &str, cut: &str) -> Vec<Memory> {
    let model = format!(
        "input %x f64[{shape}] 0
op %y f64[{shape}] = aten.relu.default(%x) in \"\" at \"m.py:1\"
output %y
"
    );
    let left = if groups == "0,1" { "y".to_string() } else { format!("y local {parts}") };
    let text = format!(
        "group {groups}
ranks 0,1
input x %x {parts}
call 0 x -> p : p = aten.relu.default(x)
all_gather g0 p -> y : {cut}
output {left}
"
    );
    of(&model, &text)
}

#[test]
fn pieces_are_as_long_as_the_longest_of_them() {
    // Six rows are sent of five.
    has(&gathered("5,8", "0,1", "0..3,: | 3..5,:", "[5, 8] 0 [3, 2]")[0], "most communication 384");
    has(&gathered("4,8", "0,1", "0..2,: | 2..4,:", "[4, 8] 0 [2, 2]")[0], "most communication 0");
    // Nobody else has something of the column.
    has(&gathered("4,2", "0 1", ":,0..1 | :,1..2", "[4, 1] 1 [1]")[0], "most communication 32");
    has(&gathered("4,0", "0,1", ":,0..0 | :,0..0", "[4, 0] 1 [0, 0]")[0], "most communication 0");
}

/// Two linears on two devices, computed forward: the first one's parameter is divided along a factor.
fn both(parts: &str, factor: u32, gathers: &str) -> String {
    format!(
        "group 0,1
ranks 0,1
hold w_part %w {parts}
hold v_part %v 0..4,: | 4..8,:
copy w w_part {factor} 2 :,:
copy v v_part 0 2 :,:
input x %x :,:
{gathers}call 0 x, w -> y : y = aten.linear.default(x, w)
call 1 y, v -> z : z = aten.linear.default(y, v)
release w, v
output z
"
    )
}

fn linears(rows: u32, inner: u32, middle: u32, dtype: &str) -> String {
    format!(
        "input %x f64[{rows},{inner}] 0
param %w f64[{middle},{inner}] \"w\"
param %v f64[8,{middle}] \"v\"
op %y f64[{rows},{middle}] = aten.linear.default(%x, %w) in \"a\" at \"m.py:1\"
op %z f64[{rows},8] = aten.linear.default(%y, %v) in \"b\" at \"m.py:2\"
output %z
"
    )
    .replace("f64", dtype)
}

const TOGETHER: &str = "gather g0 w, v\n";
const HALVES: &str = "0..4,: | 4..8,:";

#[test]
fn what_is_large_and_lies_in_order_is_gathered_by_itself() {
    let wide = linears(2, 512, 512, "f64");
    let rows = both("0..256,: | 256..512,:", 0, TOGETHER);
    has(&of(&wide, &rows)[0], "most communication 0");
    // Its columns do not lie in order: a message with both parts, and one that all parts are received in.
    let columns = both(":,0..256 | :,256..512", 1, TOGETHER);
    has(&of(&wide, &columns)[0], "most communication 3194880");
    // Half of it is just small enough.
    let small = linears(2, 256, 512, "f64");
    let rows = both("0..256,: | 256..512,:", 0, TOGETHER);
    has(&of(&small, &rows)[0], "most communication 1622016");
}

#[test]
fn what_is_given_up_unread_has_arrived() {
    let model = linears(4, 8, 8, "f64");
    let text = both(HALVES, 0, "gather g0 w, v\nrelease w, v\ngather g0 w, v\n");
    has(&of(&model, &text)[0], "most communication 1536, end communication 0, end gathered 0");
}

#[test]
fn parts_are_sent_as_long_as_the_longest() {
    let model = "input %x f64[4,8] 0
param %w f64[5,8] \"w\"
op %y f64[4,5] = aten.linear.default(%x, %w) in \"a\" at \"m.py:1\"
output %y
";
    let text = "group 0,1
ranks 0,1
hold w_part %w 0..3,: | 3..5,:
copy w w_part 0 2 :,:
input x %x :,:
gather g0 w
call 0 x, w -> y : y = aten.linear.default(x, w)
release w
output y
";
    let memory = of(model, text);
    has(&memory[0], "most communication 384, most gathered 320");
    has(&memory[1], "most communication 576, most gathered 320");
}

/// Memory of the first rank where these live on the host, and both are held wider than they are read.
fn on_host(model: &str, text: &str, names: &[&str], wide: bool) -> Memory {
    let model = graph(model);
    let mut made = program(&model, text);
    made.held_on_host = names.iter().map(|name| model.find(name).expect("a parameter")).collect();
    let wider = ["w", "v"].iter().filter(|_| wide).map(|name| (name.to_string(), Dtype::F64));
    let masters: Masters = wider.collect();
    told(&model, &made, &masters).remove(0)
}

#[test]
fn what_lives_on_the_host_is_brought_beside_the_message() {
    let model = linears(4, 8, 8, "bf16");
    let text = both(HALVES, 0, TOGETHER);
    has(&on_host(&model, &text, &["w", "v"], true), "most communication 640, host 512");
    has(&on_host(&model, &text, &["w"], true), "most communication 384, host 256");
}

const WHOLE: &str = "group 0
ranks 0
hold w_part %w :,:
hold v_part %v :,:
copy w w_part 0 1 :,:
copy v v_part 0 1 :,:
input x %x :,:
gather g0 w, v
call 0 x, w -> y : y = aten.linear.default(x, w)
call 1 y, v -> s : z = aten.linear.default(y, v) ; s = aten.sum.default(z)
release w, v
output s
seed ds
gather g0 w, v
grad 1 ds -> dy
grad 0 dy ->
release w, v
scatter g0 w, v
";

#[test]
fn what_nobody_else_has_is_in_no_message() {
    has(&of(LINEARS, WHOLE)[0], "most communication 0, most gathered 1024, end gradients 1024");
}

#[test]
fn what_is_read_as_a_cast_comes_from_the_host_as_it_is_held() {
    let narrow = LINEARS.replace("f64", "f32");
    let (forward, _) = WHOLE.split_once("seed").expect("a backward");
    has(&on_host(&narrow, forward, &["w", "v"], true), "most communication 1024, host 1024");
    has(&on_host(&narrow, forward, &["w", "v"], false), "most communication 0, host 512");
    has(&on_host(&narrow, forward, &[], true), "most communication 0, host 0");
}

#[test]
fn gradients_go_to_the_host_as_they_are() {
    let text = WHOLE.replace("scatter g0 w, v\n", "part w, v\n");
    has(&on_host(LINEARS, &text, &["w", "v"], false), "most gradients 1024, end gradients 0");
    has(&of(LINEARS, &text)[0], "most gradients 1536, end gradients 1024");
}

/// Divided inside of a node, copied between two of them.
const BOTH: &str = "group 0,1 2,3
group 0,2 1,3
group 0,1,2,3
ranks 0,1,2,3
hold w_part %w 0..4,: | 4..8,: | 0..4,: | 4..8,:
shard v %v :,:
copy w w_part 0 2 :,:
input x %x 0..1,: | 1..2,: | 2..3,: | 3..4,:
gather g0 w
call 0 x, w -> y : y = aten.linear.default(x, w)
release w
call 1 y, v -> p : z = aten.linear.default(y, v) ; p = aten.sum.default(z)
all_reduce g2 sum p -> s
output s
seed ds
gather g0 w
grad 1 ds -> dy
grad 0 dy ->
release w
scatter g0 w
reduce_gradients g2 v
reduce_shards g1 w_part
";

#[test]
fn sums_of_parts_wait_for_the_parts() {
    has(&of(LINEARS, BOTH)[0], "most gradients 1280, end gradients 768, most communication 0");
}

#[test]
fn the_sum_of_a_part_takes_its_place() {
    // What was received is as long as the longest part, and the sum is not.
    let model = LINEARS
        .replace("param %w f64[8,8]", "param %w f64[5,8]")
        .replace("op %y f64[4,8]", "op %y f64[4,5]")
        .replace("param %v f64[8,8]", "param %v f64[8,5]");
    let text = BOTH.replace("0..4,: | 4..8,: | 0..4,: | 4..8,:", "0..3,: | 3..5,: | 0..3,: | 3..5,:");
    let memory = of(&model, &text);
    has(&memory[0], "end gradients 512");
    has(&memory[1], "end gradients 448");
}

/// Both parameters are divided; a half of each has so many rows of so many elements.
fn divided(w: [u32; 2], v: [u32; 2]) -> Vec<Memory> {
    let model = LINEARS
        .replace("input %x f64[4,8]", &format!("input %x f64[4,{}]", w[1]))
        .replace("param %w f64[8,8]", &format!("param %w f64[{},{}]", 2 * w[0], w[1]))
        .replace("op %y f64[4,8]", &format!("op %y f64[4,{}]", 2 * w[0]))
        .replace("param %v f64[8,8]", &format!("param %v f64[{},{}]", 2 * v[0], v[1]))
        .replace("op %z f64[4,8]", &format!("op %z f64[4,{}]", 2 * v[0]));
    let parts = |rows: u32| {
        let halves = format!("0..{rows},: | {rows}..{},:", 2 * rows);
        format!("{halves} | {halves}")
    };
    let text = BOTH
        .replace("0..4,: | 4..8,: | 0..4,: | 4..8,:", &parts(w[0]))
        .replace("shard v %v :,:", &format!("hold v_part %v {}", parts(v[0])))
        .replace("copy w w_part 0 2 :,:\n", "copy w w_part 0 2 :,:\ncopy v v_part 0 2 :,:\n")
        .replace("gather g0 w\n", "gather g0 w\ngather g0 v\n")
        .replace("release w\n", "release w\nrelease v\n")
        .replace("release w\nrelease v\ncall 1", "release w\ncall 1")
        .replace("all_reduce g2", "release v\nall_reduce g2")
        .replace("reduce_gradients g2 v\n", "scatter g0 v\n")
        .replace("reduce_shards g1 w_part", "reduce_shards g1 w_part, v_part");
    of(&model, &text)
}

#[test]
fn small_parts_are_summed_in_one_message() {
    has(&divided([4, 8], [4, 8])[0], "most communication 512");
    has(&divided([256, 256], [128, 512])[0], "most communication 1048576");
    has(&divided([257, 256], [128, 514])[0], "most communication 0");
}

/// Gathered once a step, and scattered at its end.
const ONCE: &str = "group 0,1
ranks 0,1
hold w_part %w 0..4,: | 4..8,:
hold v_part %v :,0..4 | :,4..8
copy w w_part 0 2 :,:
copy v v_part 1 2 :,:
begin
gather g0 w, v
forward
input x %x 0..2,: | 2..4,:
call 0 x, w -> y : y = aten.linear.default(x, w)
call 1 y, v -> p : z = aten.linear.default(y, v) ; p = aten.sum.default(z)
all_reduce g0 sum p -> s
output s
seed ds
grad 1 ds -> dy
grad 0 dy ->
end
scatter_last g0 v, w
";

#[test]
fn what_is_scattered_last_has_arrived_at_the_end() {
    has(&of(LINEARS, ONCE)[0], "end communication 0, end gradients 512, end gathered 1024");
}

#[test]
fn what_was_scattered_has_arrived_before_an_exchange() {
    let text = "group 0,1
table 9 %v sum
from 0 :,:
from 1 :,:
to 0 :,:
to 1 :,:
piece 0 0 :,:
piece 1 0 :,:
piece 0 1 :,:
piece 1 1 :,:
ranks 0,1
hold w_part %w 0..4,: | 4..8,:
shard v %v :,:
copy w w_part 0 2 :,:
input x %x 0..2,: | 2..4,:
gather g0 w
call 0 x, w -> y : y = aten.linear.default(x, w)
release w
call 1 y, v -> p : z = aten.linear.default(y, v) ; p = aten.sum.default(z)
all_reduce g0 sum p -> s
output s
seed ds
gather g0 w
grad 1 ds -> dy
grad 0 dy ->
release w
scatter g0 w
exchange_gradients 9 v -> v
";
    has(&of(LINEARS, text)[0], "peak 2704, end gradients 768");
}
