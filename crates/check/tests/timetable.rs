//! Faults planted into the timetable of a program that is right: what makes a step of several micro-batches
//! another one than the sum of theirs.

use check::Fault;
use program::{Code, Instr, Loop, Pass, Program, Task, When, Which};

use crate::support::{faults, graph, program, proof};

const MLP: &str = include_str!("programs/mlp.graph");
const DATA: &str = include_str!("programs/data.txt");
const MEGATRON: &str = include_str!("programs/megatron.txt");

const EXCHANGED: &str = include_str!("programs/exchanged.txt");

const USUAL: &str = "task forward\ntask backward 1 last\n";

fn refused(name: &str, tasks: &str, code: &str) {
    for text in [DATA, MEGATRON] {
        let found = faults(&graph(MLP), &format!("{text}\n{tasks}"));
        let codes: Vec<&str> = found.iter().map(|fault| fault.code).collect();
        assert_eq!(codes, [code], "{name}");
    }
}

#[test]
fn the_usual_one_is_proved() {
    assert!(proof(&graph(MLP), &format!("{DATA}\n{USUAL}")).backward);
}

#[test]
fn a_scale_that_is_missing_or_doubled_is_found() {
    refused("missing", "task forward\ntask backward 0 last", "SW0518");
    refused("doubled", "task forward\ntask backward 2 last", "SW0518");
}

#[test]
fn gradients_that_are_communicated_at_another_time_are_found() {
    for when in ["never", "each", "first"] {
        refused(when, &format!("task forward\ntask backward 1 {when}"), "SW0519");
    }
}

#[test]
fn every_task_runs_once_and_in_order() {
    refused("no backward", "task forward", "SW0517");
    refused("no forward", "task backward 1 last", "SW0517");
    refused("backward first", "task backward 1 last\ntask forward", "SW0517");
    refused("forward twice", &format!("task forward\n{USUAL}"), "SW0517");
    refused("backward twice", &format!("{USUAL}task backward 1 last"), "SW0517");
}

#[test]
fn gradients_are_not_communicated_in_forward() {
    for text in [DATA, EXCHANGED] {
        let mut program = program(&graph(MLP), text);
        for role in &mut program.roles {
            let backward = role.body.code_mut(0, Pass::Backward);
            let at = backward.instrs.iter().position(Instr::settles).unwrap();
            let moved: Instr = backward.instrs.remove(at);
            role.body.code_mut(0, Pass::Forward).instrs.push(moved);
        }
        let found = check::check(&graph(MLP), &program).unwrap_err();
        assert!(found.iter().any(|fault| fault.code == "SW0519"), "{found:?}");
    }
}

/// Each turn is about two micro-batches, in this order.
fn in_pairs(made: &mut Program, tasks: &[(Task, i32)]) {
    let tasks: Vec<Task> = tasks.iter().map(|(task, at)| Task { at: *at, ..task.clone() }).collect();
    for role in &mut made.roles {
        role.body.timetable.loops = vec![Loop { every: 2, iterations: None, tasks: tasks.clone() }];
    }
}

/// What is found in the model's program, once its tasks are these.
fn found(model: &str, text: &str, tasks: &[(Task, i32)]) -> Vec<Fault> {
    let mut made = program(&graph(model), text);
    in_pairs(&mut made, tasks);
    check::check(&graph(model), &made).err().unwrap_or_default()
}

/// All forwards stand before all backwards.
#[test]
fn backwards_run_in_the_order_of_micro_batches() {
    let (forward, backward) = (Task::forward(0), Task::backward(0, When::Last));
    let tasks = |first: i32, second: i32| {
        [(forward.clone(), 0), (forward.clone(), 1), (backward.clone(), first), (backward.clone(), second)]
    };
    for text in [DATA, EXCHANGED] {
        assert_eq!(found(MLP, text, &tasks(0, 1)), []);
        let found = found(MLP, text, &tasks(1, 0));
        assert!(found.iter().any(|fault| fault.code == "SW0519"), "{found:?}");
    }
}

/// A buffer has what the last micro-batch has given it.
const LAST: &str = "input %x f64[4,8] 0
param %w f64[8] \"w\"
buffer %m f64[8] \"last\"
op %c f64[8] = aten.mean.dim(%x, [0]) in \"\" at \"m.py:1\" nograd
op %y f64[4,8] = aten.mul.Tensor(%x, %w) in \"\" at \"m.py:2\"
op %s f64[] = aten.sum.default(%y) in \"\" at \"m.py:3\"
output %s
update \"last\" %c
";

const GIVEN: &str = "ranks 0
shard w %w :
hold m %m :
input x %x :,:
call 0 x -> c : c = aten.mean.dim(x, [0]) nograd
update m c
call 1 x, w -> s : y = aten.mul.Tensor(x, w) ; s = aten.sum.default(y)
output s
";

#[test]
fn forwards_that_update_buffers_run_in_order() {
    let turned = [(Task::forward(0), 1), (Task::forward(0), 0)];
    assert_eq!(found(LAST, GIVEN, &[(Task::forward(0), 0), (Task::forward(0), 1)]), []);
    let why = found(LAST, GIVEN, &turned).remove(0).why.expect("it says why");
    assert!(why.contains("buffers would get other values"), "{why}");
    // Others may run in any order.
    let relu = "input %x f64[4] 0\nop %y f64[4] = aten.relu.default(%x) in \"\" at \"m.py:1\"\noutput %y\n";
    let text = "ranks 0\ninput x %x :\ncall 0 x -> y : y = aten.relu.default(x)\noutput y\n";
    assert_eq!(found(relu, text, &turned), []);
}

/// What a first half updates is what the last micro-batch has kept for it.
#[test]
fn first_halves_that_update_buffers_run_in_order() {
    let text = GIVEN.replace("update m c\n", "").replace("output s", "keep 0 c\noutput s");
    let text = text + "seed ds\ntake 0 -> c2\nupdate m c2\ngrad 1 ds ->\n";
    let model = graph(LAST);
    let halves = |first: [i32; 2]| {
        let mut made = program(&model, &text);
        let body = &mut made.roles[0].body;
        let mut code = body.codes.pop().expect("a backward");
        code.pass = Pass::Inputs;
        let Some(Instr::Grad(grad)) = code.instrs.last_mut() else { panic!("it ends with a backward") };
        grad.which = Which::Inputs;
        let grad = program::Grad {
            call: grad.call,
            which: Which::Weights,
            from: vec![],
            to: vec![],
            recomputed: vec![],
        };
        let second = Code { instrs: vec![Instr::Grad(grad)], ..Code::new(0, Pass::Weights) };
        body.codes.extend([code, second]);
        let (forward, inputs, weights) = (Task::forward(0), Task::inputs(0), Task::weights(0, When::Last));
        let both = |task: Task, [one, other]: [i32; 2]| [(task.clone(), one), (task, other)];
        let tasks = [both(forward, [0, 1]), both(inputs, first), both(weights, [0, 1])].concat();
        in_pairs(&mut made, &tasks);
        check::check(&model, &made).err().unwrap_or_default()
    };
    assert_eq!(halves([0, 1]), []);
    let found = halves([1, 0]);
    assert_eq!(found.first().map(|fault| fault.code), Some("SW0517"), "{found:?}");
}

/// Blocks that neither read nor update a buffer run when they like.
#[test]
fn only_who_reads_a_buffer_waits_for_its_updates() {
    let text = GIVEN
        .replace("call 1 x, w", "block 1\ninput z %x :,:\ncall 1 z, w")
        .replace("Tensor(x, w)", "Tensor(z, w)");
    let mut made = program(&graph(LAST), &text);
    made.roles[0].body.code_mut(0, Pass::Forward).gives = vec![None];
    let (first, second) = (Task::forward(0), Task::forward(1));
    in_pairs(&mut made, &[(first.clone(), 0), (first, 1), (second.clone(), 0), (second, 1)]);
    assert_eq!(check::check(&graph(LAST), &made).err(), None);
}

/// Wherever its backward stands.
#[test]
fn a_call_runs_before_its_backward() {
    let mut made = program(&graph(MLP), DATA);
    let body = &mut made.roles[0].body;
    let backward = body.code_mut(0, Pass::Backward);
    let at = backward.instrs.iter().position(|instr| matches!(instr, Instr::Grad(_))).expect("one");
    let Instr::Grad(grad) = backward.instrs.remove(at) else { panic!("it is one") };
    let moved = Instr::Grad(program::Grad { from: vec![None], which: Which::Both, ..grad });
    let code = Code { instrs: vec![moved], ..Code::new(1, Pass::Backward) };
    body.codes.insert(1, code);
    let last = |block: u32| Task::backward(block, When::Last);
    body.timetable.loops = vec![Loop::over_all(vec![last(1), Task::forward(0), last(0)])];
    let found = check::check(&graph(MLP), &made).expect_err("it runs before the call");
    let why = |fault: &Fault| fault.why.as_ref().is_some_and(|why| why.contains("keeps something for it"));
    assert!(found.iter().any(why), "{found:?}");
}
