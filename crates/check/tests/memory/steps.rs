//! Micro-batches, and what is there of two steps.

use super::*;
use crate::support::texts::{ALONE, KEPT, RELU};
use crate::support::*;

/// Three have all that more have, but for inputs: those of all micro-batches are there.
#[test]
fn of_one_block_the_inputs_of_all_micro_batches_are_counted() {
    let (model, made) = (graph(LINEARS), program(&graph(LINEARS), ALONE));
    let one = over(&model, &made, 1);
    has(&one, "most inputs 264");
    assert_eq!(over(&model, &made, 0), one);
    has(&over(&model, &made, 2), "most inputs 528");
    has(&over(&model, &made, 3), "most inputs 792");
    let (three, nine) = (over(&model, &made, 3), over(&model, &made, 9));
    assert_eq!(nine.total(), three.total() + 6 * 264);
}

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
