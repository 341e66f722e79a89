//! Codes of one rank that run for many micro-batches: what one of them writes, keeps or waits for, and another needs.

use check::Fault;
use graph::Graph;
use program::*;

use crate::support::texts::{ALONE, KEPT, MEAN, RELU, UPDATED};
use crate::support::{LINEARS, graph, program};

fn found(model: &Graph, text: &str, plant: impl Fn(&mut Program)) -> Vec<Fault> {
    let mut made = program(model, text);
    plant(&mut made);
    check::check(model, &made).err().unwrap_or_default()
}

/// The first thing that is found has this code and says this.
fn refused(model: &Graph, text: &str, code: &str, words: &str, plant: impl Fn(&mut Program)) {
    let found = found(model, text, plant);
    let said = |fault: &Fault| {
        fault.code == code && (fault.what.contains(words) || fault.why.iter().any(|why| why.contains(words)))
    };
    assert!(found.first().is_some_and(said), "{code} {words}: {found:?}");
}

fn iterations(made: &mut Program, tasks: &[Task]) {
    made.roles[0].body.timetable.loops = vec![Loop::over_all(tasks.to_vec())];
}

#[test]
fn a_buffer_has_the_value_that_the_last_micro_batch_gave_it() {
    let (model, both) = (graph(MEAN), [Task::forward(0), Task::forward(1)]);
    let run = |tasks: [Task; 2]| {
        move |made: &mut Program| {
            made.roles[0].body.code_mut(1, Pass::Forward).gives = vec![None];
            iterations(made, &tasks);
        }
    };
    assert_eq!(found(&model, UPDATED, run(both.clone())), []);
    let [first, second] = both;
    let stale = "a buffer does not have the value";
    refused(&model, UPDATED, "SW0517", stale, run([first.clone().at(1), second.clone()]));
    refused(&model, UPDATED, "SW0517", stale, run([second, first]));
}

#[test]
fn what_a_block_keeps_is_there_before_another_takes_it() {
    let taken = |tasks: [Task; 2]| {
        move |made: &mut Program| {
            made.boundary.outputs = vec![Output::Whole];
            let role = &mut made.roles[0];
            role.table.outputs = vec![Some(role.table.inputs[0].clone())];
            let buf = |name: &str| role.body.bufs.iter().position(|buf| buf.name == name).map(BufId::new);
            let (p, y) = (buf("p").expect("one"), buf("y"));
            let code = role.body.code_mut(1, Pass::Forward);
            code.gives = vec![y];
            code.instrs.insert(0, Instr::Take { id: KeepId(0), to: vec![p] });
            iterations(made, &tasks);
        }
    };
    let (model, first, second) = (graph(RELU), Task::forward(0), Task::forward(1));
    assert_eq!(found(&model, KEPT, taken([first.clone(), second.clone()])), []);
    refused(&model, KEPT, "SW0517", "which keeps something for it, has not run", taken([second, first]));
}

#[test]
fn what_is_kept_is_taken() {
    let text = ALONE.replace("output s", "keep 0 y\noutput s");
    refused(&graph(LINEARS), &text, "SW0503", "what is kept as 0 is never taken", |_| ());
}

/// The first two backwards run before any forward.
#[test]
fn loops_for_the_first_micro_batches_have_their_order_too() {
    refused(&graph(LINEARS), ALONE, "SW0517", "whose forward has not run", |made| {
        let (forward, backward) = (Task::forward(0), Task::backward(0, When::Last));
        iterations(made, &[forward, backward.clone()]);
        let first = Loop { every: 1, iterations: Some(2), tasks: vec![backward] };
        made.roles[0].body.timetable.loops.insert(0, first);
    });
}

const WRITTEN: &str = "input %x f64[4,8] 0
param %w f64[8] \"w\"
param %k f64[8] \"k\" frozen
op %n f64[8] = aten.mul.Tensor(%k, 0.9) in \"\" at \"m.py:1\" nograd
op %y f64[4,8] = aten.mul.Tensor(%x, %w) in \"\" at \"m.py:2\"
op %z f64[4,8] = aten.mul.Tensor(%y, %n) in \"\" at \"m.py:3\"
op %s f64[] = aten.sum.default(%z) in \"\" at \"m.py:4\"
output %s
update \"k\" %n
";

const WRITES: &str = "ranks 0
shard w %w :
shard k %k :
input x %x :,:
call 0 k -> n : n = aten.mul.Tensor(k, 0.9) nograd
call 1 x, w, n -> s : y = aten.mul.Tensor(x, w) ; z = aten.mul.Tensor(y, n) ; s = aten.sum.default(z)
update k n
output s
seed ds
grad 1 ds ->
";

#[test]
fn of_what_forwards_write_no_version_is_kept() {
    let model = graph(WRITTEN);
    assert_eq!(found(&model, WRITES, |_| ()), []);
    refused(&model, WRITES, "SW0531", "%k is written by forwards", |made| {
        made.roles[0].body.timetable.steps = Steps::On { stashes: false };
    });
}

const TIED: &str = "input %x f64[4,8] 0
param %w f64[8,8] \"w\"
op %y f64[4,8] = aten.linear.default(%x, %w) in \"a\" at \"m.py:1\"
op %z f64[4,8] = aten.linear.default(%y, %w) in \"b\" at \"m.py:2\"
op %s f64[] = aten.sum.default(%z) in \"\" at \"m.py:3\"
output %s
";

/// Both blocks read the one parameter, whose gradients are reduced once a step.
const STAGES: &str = "group 0,1
table 9 %y sum
from 0 :,:
to 1 :,:
piece 0 0 :,:
table 10 %y sum
from 1 :,:
to 0 :,:
piece 0 0 :,:
ranks 1
block 1
shard v %w :,:
receive 9 -> y
call 0 y, v -> s : z = aten.linear.default(y, v) ; s = aten.sum.default(z)
output s
seed ds
grad 0 ds -> dy
send 10 dy
end
reduce_gradients g0 v
ranks 0
shard w %w :,:
input x %x :,:
call 0 x, w -> y : y = aten.linear.default(x, w)
output none
send 9 y
backward
receive 10 -> dy
grad 0 dy ->
end
reduce_gradients g0 w
";

/// Steps go on; backwards of a block may be a micro-batch behind, and then it keeps its parameters.
fn goes_on(behind: [i32; 2]) -> impl Fn(&mut Program) {
    move |made| {
        for (role, behind) in made.roles.iter_mut().zip(behind) {
            let block = role.body.codes.iter().map(|code| code.block).max().expect("a code");
            let forward = Task::forward(block);
            let backward = Task::backward(block, When::Last).at(-behind);
            let tasks = if behind == 0 { vec![forward, backward] } else { vec![backward, forward] };
            role.body.timetable.loops = vec![Loop::over_all(tasks)];
            role.body.timetable.steps = Steps::On { stashes: behind > 0 };
        }
    }
}

/// The first block is at the end of its step after its backward, for which the second one comes to the next step.
#[test]
fn ranks_meet_at_the_ends_of_steps_that_go_on() {
    let model = graph(TIED);
    assert_eq!(found(&model, STAGES, goes_on([0, 0])), []);
    assert_eq!(found(&model, STAGES, goes_on([0, 1])), []);
    refused(&model, STAGES, "SW0506", "in a step of", goes_on([1, 0]));
}

#[test]
fn a_rank_sends_as_many_values_as_its_table_says() {
    let text = STAGES.replace("send 9 y\n", "send 9 y, y\n");
    refused(&graph(TIED), &text, "SW0507", "are not those of its table", |_| ());
}

/// After the last micro-batch there are gradients only.
#[test]
fn at_the_end_of_a_step_nothing_is_computed() {
    let text = STAGES.replace("end\nreduce_gradients g0 w", "end\nadd w -> k\nreduce_gradients g0 w");
    refused(&graph(TIED), &text, "SW0523", "where only gradients may be communicated", |_| ());
}
