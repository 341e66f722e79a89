//! Faults planted into pipelines that are right: what sends, who receives, and in which order codes run.

use program::{Instr, Loop, Pass, Program, RankId, Task, When};

use crate::planted::{apart, found, graph, made, refused_of};

const PLANS: &[(&str, u32)] =
    &[("stages:2", 2), ("stages:4", 4), ("stages:2 x data:2", 4), ("stages:3 x gpipe", 3)];

fn refused(codes: &[&str], spoil: impl Fn(&mut Program, usize) -> bool) {
    refused_of(PLANS, codes, spoil);
}

/// The first instruction of a role that fits, and where it is: the code's position and its own.
fn first(program: &Program, role: usize, fits: impl Fn(&Instr) -> bool) -> Option<(usize, usize)> {
    let codes = program.roles[role].body.codes.iter().enumerate();
    { codes }.find_map(|(at, code)| Some((at, code.instrs.iter().position(&fits)?)))
}

fn remove(program: &mut Program, role: usize, fits: impl Fn(&Instr) -> bool) -> bool {
    let Some((code, at)) = first(program, role, fits) else { return false };
    program.roles[role].body.codes[code].instrs.remove(at);
    true
}

fn sends(instr: &Instr) -> bool {
    matches!(instr, Instr::Send { .. })
}

fn receives(instr: &Instr) -> bool {
    matches!(instr, Instr::Receive { .. })
}

#[test]
fn a_send_that_is_dropped_is_found() {
    refused(&["SW0506"], |program, role| remove(program, role, sends));
}

#[test]
fn a_receive_that_is_dropped_is_found() {
    refused(&["SW0503", "SW0506"], |program, role| remove(program, role, receives));
}

#[test]
fn a_send_without_a_receiver_is_found() {
    // Twice.
    refused(&["SW0506"], |program, role| {
        let Some((code, at)) = first(program, role, sends) else { return false };
        let instrs = &mut program.roles[role].body.codes[code].instrs;
        instrs.insert(at, instrs[at].clone());
        true
    });
}

#[test]
fn a_message_of_another_table_is_found() {
    refused(&["SW0502", "SW0503", "SW0505", "SW0506", "SW0507"], |program, role| {
        let Some((code, at)) = first(program, role, receives) else { return false };
        let count = program.exchanges.len();
        let Instr::Receive { exchange, .. } = &mut program.roles[role].body.codes[code].instrs[at] else {
            return false;
        };
        *exchange = program::ExchangeId::new((exchange.index() + 1) % count);
        count > 1
    });
}

#[test]
fn a_wrong_peer_is_found() {
    let graph = graph();
    let mut program = made(&graph, "stages:4", 4);
    for exchange in &mut program.exchanges {
        for (rank, _) in exchange.lists().1 {
            rank.0 = (rank.0 + 1) % 4;
        }
    }
    assert!(found(&graph, &program).iter().all(|code| ["SW0506", "SW0507"].contains(code)));
}

#[test]
fn a_message_whose_receiver_begins_before_it_is_sent_is_found() {
    refused(&["SW0503", "SW0506"], |program, role| {
        let Some((code, at)) = first(program, role, sends) else { return false };
        let body = &mut program.roles[role].body;
        let sent = body.codes[code].instrs.remove(at);
        // In the backward, which waits for the stage that waits for this.
        let Some(backward) = body.codes.iter().position(|code| code.pass == Pass::Backward) else {
            return false;
        };
        let last = backward != code;
        body.codes[backward].instrs.push(sent);
        last
    });
}

/// Timetables in which each rank by itself does everything once, and in order.
#[test]
fn ranks_that_wait_for_each_other_are_found() {
    let graph = graph();
    let mut program = made(&graph, "stages:3", 3);
    let ahead = |program: &mut Program, rank: u32, warm: i32| {
        let body = &mut program.roles.iter_mut().find(|role| role.ranks[0].0 == rank).expect("a role").body;
        let block = body.codes.iter().find(|code| code.pass == Pass::Forward).expect("a forward").block;
        let tasks = vec![Task::forward(block).at(warm), Task::backward(block, When::Last)];
        body.timetable.loops = vec![Loop::over_all(tasks)];
    };
    // More forwards ahead than needed take memory, and nothing else.
    ahead(&mut program, 0, 3);
    assert_eq!(found(&graph, &program), [] as [&str; 0]);
    // None ahead where another stage wants one: the first backward waits for a stage that waits for its second forward.
    ahead(&mut program, 2, 1);
    assert_eq!(found(&graph, &program), [] as [&str; 0]);
    let tasks = vec![Task::forward(0), Task::backward(0, When::Last)];
    program.roles[0].body.timetable.loops = vec![Loop::over_all(tasks)];
    assert_eq!(found(&graph, &program), ["SW0506"]);
}

#[test]
fn ranks_that_meet_for_different_micro_batches_are_found() {
    let graph = graph();
    // The ranks of the last stage sum up their losses with each other in every micro-batch.
    let mut program = made(&graph, "stages:2 x data:2", 4);
    let role = program.roles.iter().position(|role| role.ranks == [RankId(2), RankId(3)]).expect("a role");
    let last = apart(&mut program, role);
    assert_eq!(found(&graph, &program), [] as [&str; 0]);
    let forwards = Loop::over_all(vec![Task::forward(1)]);
    program.roles[last].body.timetable.loops =
        vec![forwards, Loop::over_all(vec![Task::backward(1, When::Last)])];
    assert_eq!(found(&graph, &program), ["SW0506"]);
}

#[test]
fn gradients_of_a_stage_are_communicated_with_its_last_micro_batch() {
    refused(&["SW0519"], |program, role| {
        let loops = &mut program.roles[role].body.timetable.loops;
        for task in loops.iter_mut().flat_map(|it| &mut it.tasks) {
            if task.pass() == Pass::Backward {
                *task = Task::backward(task.block, When::First).at(task.at);
            }
        }
        true
    });
}

#[test]
fn a_micro_batch_that_is_left_out_or_comes_twice_is_found() {
    refused(&["SW0517"], |program, role| {
        let first = &mut program.roles[role].body.timetable.loops[0];
        first.every = 2;
        true
    });
    refused(&["SW0517"], |program, role| {
        let first = &mut program.roles[role].body.timetable.loops[0];
        let recomputed = first.tasks[0].clone().at(first.tasks[0].at + 1);
        first.tasks.push(recomputed);
        true
    });
}

#[test]
fn a_backward_that_comes_before_its_forward_is_found() {
    refused(&["SW0517"], |program, role| {
        let tasks = program.roles[role].body.timetable.loops.iter_mut().flat_map(|it| &mut it.tasks);
        tasks.filter(|task| task.pass() == Pass::Forward).for_each(|task| task.at = -1);
        program.roles[role].body.timetable.loops.len() == 1
    });
}

#[test]
fn a_forward_or_backward_that_is_left_out_is_found() {
    for pass in [Pass::Forward, Pass::Backward] {
        refused(&["SW0517"], |program, role| {
            let loops = &mut program.roles[role].body.timetable.loops;
            loops.iter_mut().for_each(|it| it.tasks.retain(|task| task.pass() != pass));
            true
        });
    }
}

/// They keep for each other what later ones read.
#[test]
fn blocks_of_a_rank_that_run_in_another_order_are_found() {
    let graph = graph();
    let right = made(&graph, "stages:1 x interleaved:2", 1);
    assert_eq!(found(&graph, &right), [] as [&str; 0]);
    for pass in [Pass::Forward, Pass::Backward] {
        let mut wrong = right.clone();
        for it in &mut wrong.roles[0].body.timetable.loops {
            let own = |task: &&mut Task| task.pass() == pass;
            let mut tasks: Vec<&mut Task> = it.tasks.iter_mut().filter(own).collect();
            let last = tasks.len() - 1;
            let blocks = (tasks[0].block, tasks[last].block);
            (tasks[0].block, tasks[last].block) = (blocks.1, blocks.0);
        }
        assert_eq!(found(&graph, &wrong), ["SW0517"], "{}", pass.name());
    }
}
