//! What is told of a rank's memory: small programs, of which the bytes are counted by hand. Words besides the numbers
//! say of what: `most working 768` is the most at any time, `end` what is left, `peak` all together.

mod support;

use std::collections::BTreeMap;

use check::{Folding, Masters, Memory, Purpose};
use graph::{Dtype, Graph};
use program::*;
use support::{LINEARS, graph, program};

fn told(model: &Graph, made: &Program, masters: &Masters) -> Vec<Memory> {
    match check::check_held(model, made, masters) {
        Ok(proof) => proof.memory,
        Err(faults) => {
            let all: Vec<String> = faults.iter().map(ToString::to_string).collect();
            panic!("not proved:\n{}", all.join("\n"))
        }
    }
}

/// Of all ranks. What has two backwards of a call has its two halves.
fn of(model: &str, text: &str) -> Vec<Memory> {
    told(&graph(model), &halved(&graph(model), text), &Masters::new())
}

fn halved(model: &Graph, text: &str) -> Program {
    let mut made = program(model, text);
    for code in made.roles.iter_mut().flat_map(|role| &mut role.body.codes) {
        let mut before: BTreeMap<CallId, usize> = BTreeMap::new();
        for at in 0..code.instrs.len() {
            let Instr::Grad(grad) = &mut code.instrs[at] else { continue };
            let Some(first) = before.insert(grad.call, at) else { continue };
            grad.which = Which::Weights;
            let Instr::Grad(first) = &mut code.instrs[first] else { unreachable!() };
            first.which = Which::Inputs;
        }
    }
    made
}

/// `most working 768, end gradients 0, peak 1552, host 256`.
fn has(memory: &Memory, expected: &str) {
    let number = |by: &[u64; Purpose::COUNT], name: &str| {
        let purpose = Purpose::ALL.into_iter().find(|purpose| purpose.name() == name);
        by[purpose.expect("a purpose") as usize]
    };
    let found = |clause: &str| match clause.split(' ').collect::<Vec<_>>()[..] {
        ["peak", _] => format!("peak {}", memory.total()),
        ["host", _] => format!("host {}", memory.offloaded),
        ["peak", name, _] => format!("peak {name} {}", number(&memory.peak, name)),
        ["most", name, _] => format!("most {name} {}", number(&memory.most, name)),
        ["end", name, _] => format!("end {name} {}", number(&memory.end, name)),
        _ => panic!("{clause}"),
    };
    let all: Vec<String> = expected.split(", ").map(found).collect();
    assert_eq!(all.join(", "), expected, "{memory:?}");
}

fn over(model: &Graph, made: &Program, batches: u32) -> Memory {
    let asked = (Folding::LONG, batches);
    check::courses_folding(model, made, &Masters::new(), asked).expect("it is right").0.memory.remove(0)
}

const ALONE: &str = "ranks 0
shard w %w :,:
shard v %v :,:
input x %x :,:
call 0 x, w -> y : y = aten.linear.default(x, w)
call 1 y, v -> s : z = aten.linear.default(y, v) ; s = aten.sum.default(z)
output s
seed ds
grad 1 ds -> dy
grad 0 dy ->
";

/// The inputs of each micro-batch are there to the end; two have all that more have.
#[test]
fn of_one_block_two_micro_batches_are_counted_at_most() {
    let (model, made) = (graph(LINEARS), program(&graph(LINEARS), ALONE));
    let one = over(&model, &made, 1);
    has(&one, "most inputs 264");
    assert_eq!(over(&model, &made, 0), one);
    has(&over(&model, &made, 2), "most inputs 528");
    has(&over(&model, &made, 9), "most inputs 528");
}

const RELU: &str = "input %x f64[4,8] 0
buffer %m f64[8] \"mean\"
op %q f64[4,8] = aten.relu.default(%x) in \"\" at \"m.py:1\"
op %y f64[4,8] = aten.sub.Tensor(%q, %m) in \"\" at \"m.py:2\"
output %y
";

/// The first block keeps a value for the second one.
const KEPT: &str = "ranks 0
shard m %m :
input x %x :,:
call 0 x -> q : q = aten.relu.default(x)
keep 0 q
output none
block 1
call 1 p, m -> y : y = aten.sub.Tensor(p, m)
";

#[test]
fn where_a_loop_runs_over_all_micro_batches_all_are_counted() {
    let model = graph(RELU);
    let mut made = program(&model, KEPT);
    made.boundary.outputs = vec![Output::Whole];
    let role = &mut made.roles[0];
    role.table.outputs = vec![Some(role.table.inputs[0].clone())];
    let buf = |name: &str| role.body.bufs.iter().position(|buf| buf.name == name).map(BufId::new);
    let (p, y) = (buf("p").expect("one"), buf("y"));
    let code = role.body.code_mut(1, Pass::Forward);
    code.gives = vec![y];
    code.instrs.insert(0, Instr::Take { id: KeepId(0), to: vec![p] });
    role.body.timetable.loops =
        vec![Loop::over_all(vec![Task::forward(0)]), Loop::over_all(vec![Task::forward(1)])];
    // As many as there are blocks, and more if they are asked for.
    has(&over(&model, &made, 1), "most activations 512");
    has(&over(&model, &made, 5), "most activations 1280");
}

const FORWARD: &str = "ranks 0
shard w %w :,:
shard v %v :,:
input x %x :,:
call 0 x, w, v -> s : y = aten.linear.default(x, w) ; z = aten.linear.default(y, v) ; s = aten.sum.default(z)
output s
";

#[test]
fn without_a_backward_nothing_is_kept() {
    let memory = &of(LINEARS, FORWARD)[0];
    has(memory, "most activations 0, most working 512, peak 1792");
    let at = memory.at.as_ref().expect("a moment").to_string();
    assert!(at.contains("%z"), "{at}");
}

const HEADS: &str = "input %x f64[4,8] 0
param %w f64[6,8] \"w\"
op %h f64[4,6] = aten.linear.default(%x, %w) in \"a\" at \"m.py:1\"
op %r f64[4,3,2] = aten.view.default(%h, [4, 3, 2]) in \"a\" at \"m.py:2\"
op %s f64[] = aten.sum.default(%r) in \"\" at \"m.py:3\"
output %s
";

/// Each leaf has every second row.
const IN_ROWS: &str = "ranks 0
hold w %w :,:,:
leaf a w :,0..1,:
leaf b w :,1..2,:
input x %x :,:
call 0 x, a, b -> p, q : h = aten.linear.default(x, a) ; r = aten.reshape.default(h, [4, 3, 1]) ; p = aten.sum.default(r) ; g = aten.linear.default(x, b) ; t = aten.reshape.default(g, [4, 3, 1]) ; q = aten.sum.default(t)
add p, q -> s
output s
seed ds
grad 0 ds, ds ->
";

#[test]
fn leaves_whose_rows_lie_apart_are_copies() {
    // The shard, and two halves of it. At the end the gradients of these, and that of the shard, which remains.
    has(&of(HEADS, IN_ROWS)[0], "most parameters 768, most gradients 768, end gradients 384");
}

fn going_on(model: &str, text: &str, stashes: bool) -> Memory {
    let model = graph(model);
    let mut made = program(&model, text);
    made.roles.iter_mut().for_each(|role| role.body.timetable.steps = Steps::On { stashes });
    told(&model, &made, &Masters::new()).remove(0)
}

#[test]
fn copies_of_leaves_are_there_of_two_steps() {
    // Of the step before the gradients of leaves, beside those of its own, and of the shard.
    let expected = "most parameters 1152, most gradients 1152, end gradients 768";
    has(&going_on(HEADS, IN_ROWS, false), expected);
}

const ONE: &str = "input %x f64[4,8] 0
param %w f64[8,8] \"w\"
op %h f64[4,8] = aten.linear.default(%x, %w) in \"a\" at \"m.py:1\"
op %s f64[] = aten.sum.default(%h) in \"\" at \"m.py:2\"
output %s
";

const TWO_LEAVES: &str = "ranks 0
hold w %w :,:
leaf a w 0..4,:
leaf b w 4..8,:
input x %x :,:
call 0 x, a, b -> p, q : h = aten.linear.default(x, a) ; p = aten.sum.default(h) ; g = aten.linear.default(x, b) ; q = aten.sum.default(g)
add p, q -> s
output s
seed ds
grad 0 ds, ds ->
";

#[test]
fn of_what_is_trained_an_older_version_is_kept_once() {
    has(&going_on(ONE, TWO_LEAVES, true), "most parameters 1024");
    has(&going_on(ONE, TWO_LEAVES, false), "most parameters 512");
    let frozen = LINEARS.replace("\"v\"\n", "\"v\" frozen\n");
    has(&going_on(&frozen, ALONE, true), "most parameters 1536");
}

const ONE_EXCHANGED: &str = "table 3 %w sum
from 0 :,:
to 0 :,:
piece 0 0 :,:
ranks 0
shard w %w :,:
shard v %v :,:
input x %x :,:
call 0 x, w -> y : y = aten.linear.default(x, w)
call 1 y, v -> s : z = aten.linear.default(y, v) ; s = aten.sum.default(z)
output s
seed ds
grad 1 ds -> dy
grad 0 dy ->
exchange_gradients 3 w -> w
";

#[test]
fn gradients_of_two_steps_are_apart() {
    has(&going_on(LINEARS, ONE_EXCHANGED, false), "end gradients 2048");
}

const REDUCED: &str = "group 0,1
ranks 0,1
shard w %w :,:
shard v %v :,:
input x %x 0..2,: | 2..4,:
call 0 x, w -> y : y = aten.linear.default(x, w)
call 1 y, v -> p : z = aten.linear.default(y, v) ; p = aten.sum.default(z)
all_reduce g0 sum p -> s
output s
seed ds
grad 1 ds -> dy
grad 0 dy ->
end
reduce_gradients g0 w, v
";

#[test]
fn the_last_function_of_a_step_runs_where_steps_go_on() {
    // The message has become the gradients of the step before.
    has(
        &going_on(LINEARS, REDUCED, false),
        "most communication 1024, end communication 0, end gradients 2048",
    );
    has(&of(LINEARS, REDUCED)[0], "end communication 0, end gradients 1024");
}

#[test]
fn nobody_is_sent_what_a_rank_reduces_alone() {
    let text = format!("group 0\n{ALONE}reduce_gradients g0 w, v\n");
    has(&of(LINEARS, &text)[0], "most communication 0, end gradients 1024");
}

const NARROW: &str = "input %x f32[4,8] 0
param %w f32[8,8] \"w\"
param %v f32[8,8] \"v\"
param %u f32[4,8] \"u\"
op %y f32[4,8] = aten.linear.default(%x, %w) in \"a\" at \"m.py:1\"
op %z f32[4,8] = aten.linear.default(%y, %v) in \"b\" at \"m.py:2\"
op %q f32[4,4] = aten.linear.default(%z, %u) in \"b\" at \"m.py:3\"
op %s f32[] = aten.sum.default(%q) in \"\" at \"m.py:4\"
output %s
";

#[test]
fn only_gradients_of_one_type_are_in_one_message() {
    let text = "group 0,1
ranks 0,1
shard w %w :,:
shard v %v :,:
shard u %u :,:
input x %x 0..2,: | 2..4,:
call 0 x, w, v, u -> p : y = aten.linear.default(x, w) ; z = aten.linear.default(y, v) ; q = aten.linear.default(z, u) ; p = aten.sum.default(q)
all_reduce g0 sum p -> s
output s
seed ds
grad 0 ds ->
reduce_gradients g0 w, v, u
";
    let (model, masters) = (graph(NARROW), Masters::from([("w".to_string(), Dtype::F64)]));
    let memory = &told(&model, &program(&model, text), &masters)[0];
    has(memory, "most communication 384, end communication 0, end gradients 896");
}

const MLP: &str = include_str!("programs/mlp.graph");
const MEGATRON: &str = include_str!("programs/megatron.txt");

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

const AGAIN: &str = "input %x f64[4,8] 0
param %w f64[8] \"w\"
param %v f64[8,8] \"v\"
op %y f64[4,8] = aten.mul.Tensor(%x, %w) in \"\" at \"m.py:1\"
op %e f64[4,8] = aten.exp.default(%y) in \"\" at \"m.py:2\"
op %z f64[4,8] = aten.linear.default(%e, %v) in \"b\" at \"m.py:3\"
op %s f64[] = aten.sum.default(%z) in \"\" at \"m.py:4\"
output %s
";

const GIVEN_AGAIN: &str = "ranks 0
shard w %w :
shard v %v :,:
input x %x :,:
keep 0 x
recompute 0 x, w -> y : y = aten.mul.Tensor(x, w)
forget 1 y, v -> s : e = aten.exp.default(y) ; z = aten.linear.default(e, v) ; s = aten.sum.default(z)
output s
seed ds
take 0 -> x2
call 2 x2, w -> y2 : y2 = aten.mul.Tensor(x2, w)
grad 1 ds -> dy : y2
grad 2 dy ->
";

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
