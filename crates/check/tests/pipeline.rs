//! Blocks on different ranks, for many micro-batches: what goes between them, and in which order they run.

use check::Fault;
use program::*;

use crate::support::texts::{ROWS, STAGES};
use crate::support::{LINEARS, graph, program};

const LATER: usize = 0;
const FIRST: usize = 1;

fn found(text: &str, plant: impl Fn(&mut [Role])) -> Vec<Fault> {
    let mut made = program(&graph(LINEARS), text);
    plant(&mut made.roles);
    check::check(&graph(LINEARS), &made).err().unwrap_or_default()
}

/// The first thing that is found has this code and says this.
fn refused(text: &str, code: &str, words: &str, plant: impl Fn(&mut [Role])) {
    assert_eq!(found(text, |_| ()), []);
    let found = found(text, plant);
    let said = |fault: &Fault| {
        fault.code == code && (fault.what.contains(words) || fault.why.iter().any(|why| why.contains(words)))
    };
    assert!(found.first().is_some_and(said), "{code} {words}: {found:?}");
}

fn tasks(role: &mut Role, tasks: &[Task]) {
    role.body.timetable.loops = vec![Loop::over_all(tasks.to_vec())];
}

fn forward(at: i32) -> Task {
    Task::forward(0).at(at)
}

fn backward(at: i32) -> Task {
    Task::backward(0, When::Last).at(at)
}

#[test]
fn blocks_run_one_after_the_other() {
    for text in [STAGES, ROWS] {
        assert_eq!(found(text, |_| ()), []);
        for ahead in 1..4 {
            let early = |roles: &mut [Role]| tasks(&mut roles[FIRST], &[forward(ahead), backward(0)]);
            assert_eq!(found(text, early), [], "{ahead} ahead");
            let late = |roles: &mut [Role]| tasks(&mut roles[FIRST], &[backward(-ahead), forward(0)]);
            assert_eq!(found(text, late), [], "{ahead} behind");
        }
    }
}

#[test]
fn all_forwards_may_come_first() {
    let two = |block: u32| {
        vec![
            Loop::over_all(vec![Task::forward(block)]),
            Loop::over_all(vec![Task::backward(block, When::Last)]),
        ]
    };
    for text in [STAGES, ROWS] {
        let all = |roles: &mut [Role]| {
            roles[FIRST].body.timetable.loops = two(0);
            roles[LATER].body.timetable.loops = two(1);
        };
        assert_eq!(found(text, all), []);
        assert_eq!(found(text, |roles| roles[FIRST].body.timetable.loops = two(0)), []);
        // The first block's next forward waits for its backward, which waits for that of the second one.
        refused(text, "SW0506", "", |roles| roles[LATER].body.timetable.loops = two(1));
    }
}

#[test]
fn loops_for_the_first_micro_batches_come_before() {
    let early = |iterations: u32, ahead: i32| {
        let first = Loop { every: 1, iterations: Some(iterations), tasks: vec![forward(0)] };
        vec![first, Loop::over_all(vec![forward(ahead), backward(0)])]
    };
    for iterations in 1..4 {
        for ahead in 0..3 {
            let plant = |roles: &mut [Role]| roles[FIRST].body.timetable.loops = early(iterations, ahead);
            assert_eq!(found(STAGES, plant), [], "{iterations} {ahead}");
        }
    }
    refused(STAGES, "SW0517", "comes after one for all", |roles| {
        roles[FIRST].body.timetable.loops = early(2, 1);
        roles[FIRST].body.timetable.loops.swap(0, 1);
    });
    refused(STAGES, "SW0517", "no later loop runs it for all micro-batches", |roles| {
        roles[FIRST].body.timetable.loops = early(2, 1);
        roles[FIRST].body.timetable.loops[1].tasks.remove(0);
    });
    // A backward in a loop of its own before any forward of the other block.
    refused(STAGES, "SW0506", "wait", |roles| {
        let mut loops = early(2, 1);
        loops[0].tasks.push(backward(0));
        roles[FIRST].body.timetable.loops = loops;
        let first = Loop { every: 1, iterations: Some(3), tasks: vec![Task::forward(1)] };
        roles[LATER].body.timetable.loops.insert(0, first);
    });
}

#[test]
fn every_second_micro_batch_may_have_its_own_tasks() {
    let twos = |tasks: Vec<Task>| vec![Loop { every: 2, iterations: None, tasks }];
    for text in [STAGES, ROWS] {
        let plant = |roles: &mut [Role]| {
            roles[FIRST].body.timetable.loops = twos(vec![forward(0), forward(1), backward(0), backward(1)]);
        };
        assert_eq!(found(text, plant), []);
    }
    refused(STAGES, "SW0517", "some micro-batches are left out", |roles| {
        roles[FIRST].body.timetable.loops = twos(vec![forward(0), backward(0), backward(1)]);
    });
    refused(STAGES, "SW0517", "twice for the same micro-batch", |roles| {
        roles[FIRST].body.timetable.loops = twos(vec![forward(0), forward(2), backward(0), backward(1)]);
    });
    refused(STAGES, "SW0517", "whose forward has not run", |roles| {
        roles[FIRST].body.timetable.loops = twos(vec![forward(0), backward(0), backward(1), forward(1)]);
    });
    refused(STAGES, "SW0517", "in the order of the messages", |roles| {
        roles[FIRST].body.timetable.loops = twos(vec![forward(1), forward(0), backward(0), backward(1)]);
    });
}

#[test]
fn what_can_be_no_timetable_is_refused() {
    refused(STAGES, "SW0517", "advances by no micro-batches", |roles| {
        roles[FIRST].body.timetable.loops[0].every = 0;
    });
    refused(STAGES, "SW0517", "micro-batches in flight", |roles| {
        tasks(&mut roles[FIRST], &[forward(2000), backward(0)]);
    });
    refused(STAGES, "SW0517", "it does not exist", |roles| {
        roles[FIRST].body.timetable.loops[0].tasks.push(Task::forward(1));
    });
    refused(STAGES, "SW0517", "it runs in several loops", |roles| {
        let again = Loop::over_all(vec![forward(0)]);
        roles[FIRST].body.timetable.loops.push(again);
    });
    refused(STAGES, "SW0517", "what runs once a step", |roles| {
        roles[FIRST].body.timetable.begins = true;
    });
    refused(STAGES, "SW0517", "what runs once a step", |roles| {
        roles[FIRST].body.timetable.ends = true;
    });
}

/// Ranks that go through their tasks in another order than those with whom they communicate.
#[test]
fn ranks_that_wait_for_each_other_are_found() {
    refused(STAGES, "SW0506", "", |roles| {
        tasks(&mut roles[FIRST], &[forward(0), backward(0)]);
        tasks(&mut roles[LATER], &[Task::forward(1).at(1), Task::backward(1, When::Last)]);
    });
    refused(ROWS, "SW0506", "", |roles| {
        tasks(&mut roles[LATER], &[Task::forward(1).at(2), Task::backward(1, When::Last)]);
    });
    // The ranks of one block, of which one runs ahead, meet for different micro-batches.
    let gathered = "all_gather g0 dy -> all : [4, 8] 0 [2, 2]\nsend 10 dy";
    let mut made = program(&graph(LINEARS), &ROWS.replace("send 10 dy", gathered));
    let later = &made.roles[LATER];
    let one = |at: usize, rank: u32| Role { ranks: vec![RankId(rank)], ..alone(later, at) };
    let (two, mut three) = (one(0, 2), one(1, 3));
    assert_eq!(check::check(&graph(LINEARS), &with(&made, two.clone(), three.clone())).err(), None);
    tasks(&mut three, &[Task::forward(1).at(1), Task::backward(1, When::Last)]);
    for role in made.roles.iter_mut().filter(|role| role.ranks.len() == 2) {
        tasks(role, &[forward(3), backward(0)]);
    }
    let found =
        check::check(&graph(LINEARS), &with(&made, two, three)).expect_err("they meet for different ones");
    assert_eq!(found[0].code, "SW0506", "{found:?}");
    assert!(found[0].what.contains("do so for different micro-batches"), "{found:?}");
}

fn alone(role: &Role, at: usize) -> Role {
    let mut table = role.table.clone();
    for region in table.inputs.iter_mut().chain(table.outputs.iter_mut().flatten()) {
        *region = PerRank::Same(region.get(at).clone());
    }
    Role { table, ..role.clone() }
}

fn with(made: &Program, two: Role, three: Role) -> Program {
    Program { roles: vec![made.roles[FIRST].clone(), two, three], ..made.clone() }
}

fn goes_on(roles: &mut [Role], stashes: [bool; 2]) {
    for (role, stashes) in roles.iter_mut().zip(stashes) {
        role.body.timetable.steps = Steps::On { stashes };
    }
}

/// Steps without a pause: the first block is behind by a micro-batch, and keeps what it was computed with.
fn on(roles: &mut [Role]) {
    tasks(&mut roles[FIRST], &[backward(-1), forward(0)]);
    goes_on(roles, [false, true]);
}

#[test]
fn steps_may_go_on() {
    for text in [STAGES, ROWS] {
        assert_eq!(found(text, on), []);
        assert_eq!(found(text, |roles| goes_on(roles, [false, false])), []);
    }
}

#[test]
fn a_step_that_goes_on_is_computed_with_its_parameters() {
    let version = "is computed with the parameters of another step";
    refused(STAGES, "SW0531", version, |roles| {
        on(roles);
        goes_on(roles, [false, false]);
    });
    refused(STAGES, "SW0531", "some ranks run steps without a pipeline flush", |roles| {
        on(roles);
        roles[LATER].body.timetable.steps = Steps::Apart;
    });
    let other = "is not one loop over its micro-batches";
    refused(STAGES, "SW0531", other, |roles| {
        on(roles);
        roles[LATER].body.timetable.loops[0].iterations = Some(2);
        let all = Loop::over_all(vec![Task::forward(1), Task::backward(1, When::Last)]);
        roles[LATER].body.timetable.loops.push(all);
    });
    refused(STAGES, "SW0531", "are not complete at the end of the next step", |roles| {
        tasks(&mut roles[FIRST], &[backward(-9), forward(0)]);
        goes_on(roles, [false, true]);
    });
    refused(STAGES, "SW0506", "", |roles| {
        on(roles);
        tasks(&mut roles[LATER], &[Task::backward(1, When::Last).at(-2), Task::forward(1)]);
        goes_on(roles, [true, true]);
    });
}
