//! What is found as the loops of each device, which plans and programs know: a plan takes them as lines of `timetable`.

use std::fmt::Write;

use schedule::{Orders, ShapeLoop, Task};

use crate::problem::Problem;
use crate::repetend::Repetend;
use crate::whole::Whole;

/// The blocks as tasks, if all have the names of some, `F0` or `B3`.
pub(crate) fn tasks(problem: &Problem) -> Option<Vec<Task>> {
    let task = |name: &str| name.parse::<Task>().ok().filter(|task| task.at == 0);
    problem.blocks.iter().map(|block| task(&block.name)).collect()
}

/// The steady state, for any number of micro-batches. None if blocks are not named as tasks.
pub fn loops(problem: &Problem, repetend: &Repetend) -> Option<Orders> {
    let tasks = tasks(problem)?;
    let group = repetend.group as i64;
    let loops_of = |device: usize| {
        let all = || {
            repetend
                .times
                .iter()
                .enumerate()
                .flat_map(|(copy, row)| problem.blocks_on(device).map(move |at| (copy, at, row[at])))
        };
        let first = all().map(|it| it.2).min()?;
        let place = |(copy, at, time): (usize, usize, i64)| {
            let since = time - first;
            (
                since.rem_euclid(repetend.period),
                copy as i64 - group * since.div_euclid(repetend.period),
                tasks[at],
            )
        };
        let mut placed: Vec<(i64, i64, Task)> = all().map(place).collect();
        placed.sort_by_key(|row| row.0);
        let first = placed.iter().map(|row| row.1).min()?.div_euclid(group) * group;
        let further =
            |(_, at, task): (i64, i64, Task)| Some(Task { at: i32::try_from(at - first).ok()?, ..task });
        let tasks = placed.into_iter().map(further).collect::<Option<_>>()?;
        Some(vec![ShapeLoop { every: u32::try_from(group).ok()?, iterations: None, tasks }])
    };
    Some((0..problem.devices()).map(|device| loops_of(device).unwrap_or_default()).collect())
}

/// A whole step, micro-batch by micro-batch: steps of other numbers go on after it as it began.
pub fn loops_of_step(problem: &Problem, starts: &[Vec<i64>]) -> Option<Orders> {
    let tasks = tasks(problem)?;
    let every = u32::try_from(starts.len()).ok()?;
    let loops_of = |device: usize| {
        let mut timeline: Vec<(i64, usize, usize)> = problem
            .blocks_on(device)
            .flat_map(|at| starts.iter().enumerate().map(move |(batch, row)| (row[at], batch, at)))
            .collect();
        timeline.sort_unstable();
        let task =
            |(_, batch, at): (i64, usize, usize)| Some(Task { at: i32::try_from(batch).ok()?, ..tasks[at] });
        let tasks: Vec<Task> = timeline.into_iter().map(task).collect::<Option<_>>()?;
        Some(if tasks.is_empty() { vec![] } else { vec![ShapeLoop { every, iterations: None, tasks }] })
    };
    (0..problem.devices()).map(loops_of).collect()
}

/// The most micro-batches that a plan's timetable tells apart.
const MOST: usize = 256;

/// The lines of a plan that run a step: in the order of the steady state, if the step is in that order or too long to be
/// written out. None if blocks are not named as tasks.
pub fn timetable(problem: &Problem, repetend: &Repetend, step: &Whole) -> Option<String> {
    let is_steady = step.in_turn || step.batches() > MOST;
    let all = if is_steady { loops(problem, repetend) } else { loops_of_step(problem, &step.starts) };
    all.as_ref().map(timetables)
}

/// The lines of a plan.
pub fn timetables(orders: &Orders) -> String {
    let mut text = String::new();
    for (device, loops) in orders.iter().enumerate() {
        for it in loops {
            let by = if it.every == 1 { String::new() } else { format!(" by {}", it.every) };
            let tasks: Vec<String> = it.tasks.iter().map(ToString::to_string).collect();
            let _ = writeln!(text, "timetable {device}{by}: {}", tasks.join(" "));
        }
    }
    text
}
