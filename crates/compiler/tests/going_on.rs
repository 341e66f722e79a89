//! Faults planted into pipelines whose steps follow each other without a pause.

use program::{Does, Pass, Program, Steps, Task, Timetable, When};

use crate::planted::{apart, found, graph, made, refused_of};

const PLANS: &[(&str, u32)] = &[("stages:2 x 2bw", 2), ("stages:4 x 2bw", 4), ("stages:2 x data:2 x 2bw", 4)];

fn timetable(program: &mut Program, role: usize) -> &mut Timetable {
    &mut program.roles[role].body.timetable
}

fn backward(program: &mut Program, role: usize) -> Option<&mut Task> {
    let mut tasks = timetable(program, role).loops.iter_mut().flat_map(|it| &mut it.tasks);
    tasks.find(|task| task.pass() == Pass::Backward)
}

fn later(program: &mut Program, role: usize, by: i32) -> bool {
    backward(program, role).map(|task| task.at -= by).is_some()
}

fn is_first(program: &Program, role: usize) -> bool {
    program.roles[role].body.codes.iter().any(|code| code.block == 0)
}

#[test]
fn what_is_right_is_proved() {
    for (plan, devices) in PLANS {
        let mut program = made(&graph(), plan, *devices);
        assert_eq!(found(&graph(), &program), [] as [&str; 0], "{plan}");
        for role in 0..program.roles.len() {
            let behind = timetable(&mut program, role).behind();
            assert_eq!(timetable(&mut program, role).stashes(), behind > 0, "{plan}");
        }
    }
}

/// A backward that reads what the optimizer has written since, in the place of what its forward read.
#[test]
fn a_version_that_is_not_kept_is_found() {
    refused_of(PLANS, &["SW0531"], |program, role| {
        let stashes = timetable(program, role).stashes();
        timetable(program, role).steps = Steps::On { stashes: false };
        stashes
    });
}

/// In the first of these a step's last micro-batches run forward in the next step.
#[test]
fn a_forward_with_a_newer_version_is_found() {
    refused_of(PLANS, &["SW0531", "SW0517"], |program, role| {
        for task in &mut timetable(program, role).loops[0].tasks {
            task.at -= 1;
        }
        true
    });
    refused_of(PLANS, &["SW0531"], |program, role| {
        for task in &mut timetable(program, role).loops[0].tasks {
            task.at += 1;
        }
        true
    });
}

#[test]
fn a_stage_that_ends_with_its_step_among_others_that_go_on_is_found() {
    refused_of(PLANS, &["SW0531"], |program, role| {
        timetable(program, role).steps = Steps::Apart;
        true
    });
}

/// The optimizer would get gradients of which some are yet to arise.
#[test]
fn gradients_that_are_taken_one_step_early_are_found() {
    // With fewer micro-batches than a step has at least, the first gradients would arise two steps later.
    refused_of(PLANS, &["SW0531"], |program, role| {
        let blocks = program.roles.iter().flat_map(|role| &role.body.codes).map(|code| code.block).max();
        is_first(program, role) && later(program, role, blocks.map_or(0, |last| last as i32 + 1))
    });
    for when in [When::Never, When::First, When::Each] {
        refused_of(PLANS, &["SW0519"], |program, role| {
            let Some(task) = backward(program, role) else { return false };
            task.does = Does::Backward { scaled: 1, settles: when };
            true
        });
    }
}

/// Behind its stage before by more than that is behind the loss: each would wait for the other.
#[test]
fn a_stage_that_is_two_micro_batches_further_behind_is_found() {
    refused_of(PLANS, &["SW0506", "SW0531"], |program, role| later(program, role, 2));
}

/// It only waits longer, or keeps less; the last one cannot run backward before forward.
#[test]
fn a_stage_that_is_one_micro_batch_nearer_is_right_or_refused() {
    let graph = graph();
    for role in 0..4 {
        let mut program = made(&graph, "stages:4 x 2bw", 4);
        later(&mut program, role, -1);
        let behind = timetable(&mut program, role).loops[0].tasks[1].at;
        let expected: &[&str] = if behind > 0 { &["SW0517"] } else { &[] };
        assert_eq!(found(&graph, &program), expected, "{behind}");
    }
}

/// One of two ranks of a stage is one micro-batch further behind than the other. Those of the first meet in the sum of a step's
/// gradients only. Those of the last meet in forwards, too: one would be in the sum of gradients, while the other one is in the
/// first forward of the next step.
#[test]
fn a_rank_that_is_one_micro_batch_further_behind_than_those_that_it_meets_is_found() {
    let graph = graph();
    let right = made(&graph, "stages:2 x data:2 x 2bw", 4);
    for role in 0..right.roles.len() {
        let (mut program, first) = (right.clone(), is_first(&right, role));
        let other = apart(&mut program, role);
        assert_eq!(found(&graph, &program), [] as [&str; 0]);
        later(&mut program, other, 1);
        if !first {
            assert_eq!(found(&graph, &program), ["SW0531"]);
        }
        timetable(&mut program, other).steps = Steps::On { stashes: true };
        let expected: &[&str] = if first { &[] } else { &["SW0506"] };
        assert_eq!(found(&graph, &program), expected);
    }
}

#[test]
fn a_message_that_is_unmatched_is_found() {
    refused_of(PLANS, &["SW0506", "SW0509", "SW0511"], |program, role| {
        let codes = &mut program.roles[role].body.codes;
        let back = codes.iter_mut().filter(|code| code.pass == Pass::Backward);
        let sends = { back }.find_map(|code| {
            let at = code.instrs.iter().position(|it| matches!(it, program::Instr::Send { .. }))?;
            Some((code, at))
        });
        sends.map(|(code, at)| code.instrs.remove(at)).is_some()
    });
}

#[test]
fn a_loop_of_another_kind_is_found() {
    refused_of(PLANS, &["SW0531", "SW0517"], |program, role| {
        timetable(program, role).loops[0].every = 2;
        true
    });
    refused_of(PLANS, &["SW0531", "SW0517"], |program, role| {
        let recomputed = timetable(program, role).loops[0].clone();
        timetable(program, role).loops.push(recomputed);
        true
    });
    refused_of(PLANS, &["SW0517"], |program, role| {
        timetable(program, role).ends ^= true;
        true
    });
}
