//! Faults planted into loops that run the first micro-batches of a pipeline.

use program::{Instr, Loop, Pass, Program, Task, When};

use crate::planted::{apart, found, graph, made, refused_of};

/// Their first micro-batches run in loops of their own.
const EARLY: &[(&str, u32)] =
    &[("stages:2 x zb-v", 2), ("stages:3 x zb-v", 3), ("stages:2 x data:2 x zb-v", 4)];

fn loops(program: &mut Program, role: usize) -> &mut Vec<Loop> {
    &mut program.roles[role].body.timetable.loops
}

#[test]
fn without_their_beginnings_ranks_come_to_their_ends_too() {
    let graph = graph();
    for (plan, devices) in EARLY {
        let mut program = made(&graph, plan, *devices);
        for role in 0..program.roles.len() {
            assert!(loops(&mut program, role)[0].iterations.is_some());
            loops(&mut program, role).retain(|it| it.iterations.is_none());
        }
        assert_eq!(found(&graph, &program), [] as [&str; 0], "{plan}");
    }
}

#[test]
fn a_beginning_that_waits_for_what_runs_later_is_found() {
    // The first stage has none, and another one's waits for its forwards.
    refused_of(EARLY, &["SW0506"], |program, role| {
        loops(program, role).retain(|it| it.iterations.is_none());
        loops(program, role)[0].tasks.iter().any(|task| task.block == 0)
    });
    // More gradients before the first ones of the other block than others have in their beginnings.
    refused_of(EARLY, &["SW0506"], |program, role| {
        let gradients = loops(program, role).iter_mut().skip(1).find_map(|it| it.iterations.as_mut());
        gradients.map(|iterations| *iterations += 3).is_some()
    });
}

#[test]
fn what_runs_in_a_beginning_runs_for_all_micro_batches_once_and_in_order() {
    refused_of(EARLY, &["SW0517"], |program, role| {
        loops(program, role).last_mut().unwrap().tasks.retain(|task| task.pass() != Pass::Forward);
        true
    });
    refused_of(EARLY, &["SW0517"], |program, role| {
        loops(program, role).last_mut().unwrap().tasks.clear();
        true
    });
    refused_of(EARLY, &["SW0517"], |program, role| {
        loops(program, role).rotate_right(1);
        true
    });
    refused_of(EARLY, &["SW0517"], |program, role| {
        let later = loops(program, role).remove(0);
        loops(program, role).insert(1, later);
        loops(program, role)[0].iterations.is_some()
    });
    for iterations in [1 << 20, u32::MAX] {
        refused_of(EARLY, &["SW0517"], |program, role| {
            loops(program, role)[0].iterations = Some(iterations);
            true
        });
    }
    refused_of(EARLY, &["SW0517"], |program, role| {
        loops(program, role)[0].every = 0;
        true
    });
    // The gradients of a micro-batch that has not run forward.
    refused_of(EARLY, &["SW0517"], |program, role| {
        let block = loops(program, role)[0].tasks[0].block;
        let early = Loop { every: 1, iterations: Some(1), tasks: vec![Task::inputs(block).at(5)] };
        loops(program, role).insert(1, early);
        true
    });
}

/// One by one, so that the second of two micro-batches, which communicates gradients, comes before the first.
#[test]
fn gradients_of_a_beginning_are_communicated_with_the_last_micro_batch() {
    let weights = |block: u32, at: i32, when: When| {
        let tasks = vec![Task::weights(block, when).at(at)];
        Loop { every: 1, iterations: Some(1), tasks }
    };
    let second = |program: &mut Program, role: usize| loops(program, role)[0].tasks[1].block;
    let planted = |early: &dyn Fn(u32) -> Vec<Loop>| {
        refused_of(EARLY, &["SW0519"], |program, role| {
            if loops(program, role).len() < 3 {
                return false;
            }
            let block = second(program, role);
            let gradients = Loop { every: 1, iterations: Some(2), tasks: vec![Task::inputs(block)] };
            let forwards = Loop { every: 1, iterations: Some(2), tasks: vec![Task::forward(block)] };
            let rest = [forwards, gradients].into_iter().chain(early(block));
            loops(program, role).splice(1..2, rest);
            true
        });
    };
    planted(&|block| vec![weights(block, 1, When::Last), weights(block, 0, When::Last)]);
    planted(&|block| vec![weights(block, 0, When::First)]);
    planted(&|block| vec![weights(block, 0, When::Each)]);
}

#[test]
fn scales_are_those_of_a_beginning_too() {
    refused_of(EARLY, &["SW0518"], |program, role| {
        let tasks = loops(program, role)[1].tasks.iter_mut();
        let inputs = { tasks }.filter(|task| task.pass() == Pass::Inputs);
        inputs.map(|task| task.does = program::Does::Inputs { scaled: 2 }).count() > 0
    });
}

/// The ranks of a stage meet in the forward that has the loss: where their timetables are not the same, they are followed one by one.
#[test]
fn ranks_that_meet_in_their_beginnings_do_so_for_the_same_micro_batches() {
    let graph = graph();
    let mut program = made(&graph, "stages:2 x data:2 x zb-v", 4);
    let meets = |instr: &Instr| instr.group().is_some();
    let role = (0..program.roles.len()).find(|role| {
        let body = &program.roles[*role].body;
        body.codes_of(Pass::Forward).any(|code| code.instrs.iter().any(meets))
    });
    let last = apart(&mut program, role.expect("ranks sum up their losses"));
    assert_eq!(found(&graph, &program), [] as [&str; 0]);
    let usual = loops(&mut program, last).clone();
    let one = |at: i32| {
        let tasks = usual[0].tasks.iter().map(|task| task.clone().at(task.at + at));
        Loop { every: 1, iterations: Some(1), tasks: tasks.collect() }
    };
    let iterations =
        usual[0].iterations.and_then(|iterations| i32::try_from(iterations).ok()).expect("turns");
    let mut with = |rest: &[Loop]| {
        *loops(&mut program, last) = (0..iterations).map(one).chain(rest.iter().cloned()).collect();
        found(&graph, &program)
    };
    assert_eq!(with(&usual[1..]), [] as [&str; 0]);
    // Forwards of the others' beginning would meet this one's later ones.
    assert_eq!(with(&usual[2..]), ["SW0506"]);
}
