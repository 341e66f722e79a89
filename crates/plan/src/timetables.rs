//! The order of blocks, task by task: what must come before what, and timetables that are written out.
//!
//! ```text
//! order B0 < F0+2                  # at most two micro-batches of block 0 under way; the schedule does the rest
//! timetable 0: F0+1 B0             # what device 0 runs for b = 0, 1, 2...: F is forward, B backward
//! timetable 1: F1 | B1             # all of the first before any of the second
//! timetable 2..4 by 2: F2 F2+1 B2 B2+1
//! ```

use std::collections::BTreeMap;
use std::ops::Range;

use diag::{Error, Result};
use schedule::{ShapeLoop, Task};

use crate::Plan;
use crate::select::clip;

/// For each device that has a timetable of its own: its loops.
pub type Timetables = BTreeMap<u32, Vec<ShapeLoop>>;

/// The most micro-batches that a timetable may tell apart.
const MOST: u32 = 256;

/// A task by its name.
pub fn task(word: &str) -> Option<Task> {
    word.parse::<Task>().ok().filter(|task| task.at.unsigned_abs() <= MOST)
}

pub fn task_or_refuse(word: &str) -> Result<Task> {
    task(word).ok_or_else(|| {
        Error::new("SW0329", format!("`{}` is not a task of a pipeline", clip(word)))
            .why(
                "`F0` is the forward of block 0; `B1+2` is the backward of block 1, two micro-batches \
                 further",
            )
            .fix(format!("write a letter, a block, and how much further or back, at most {MOST}"))
    })
}

pub fn mixed_order() -> Error {
    Error::new("SW0329", "an operator and a task of a pipeline cannot be ordered")
        .fix("give two operators, or two tasks: `draft.order(\"B0\", \"F0+2\")`")
}

/// The loops that a line says: `F0+1 B0`, `by 2: ...`, `F0 | B0`.
pub fn loops(by: Option<&str>, text: &str) -> Result<Vec<ShapeLoop>> {
    let every = by.map_or(Some(1), |by| by.trim().parse().ok().filter(|every| (1..=MOST).contains(every)));
    let every = every.ok_or_else(|| {
        Error::new("SW0329", "a timetable cannot advance by this number of micro-batches")
            .fix(format!("write `timetable 0 by 2: F0 F0+1 B0 B0+1`, a number from 1 to {MOST}"))
    })?;
    let one = |part: &str| {
        let tasks: Vec<Task> = part.split_whitespace().map(task_or_refuse).collect::<Result<_>>()?;
        if tasks.is_empty() {
            return Err(Error::new("SW0329", "a timetable without tasks")
                .fix("name what the device runs: `timetable 0: F0+1 B0`"));
        }
        Ok(ShapeLoop { every, iterations: None, tasks })
    };
    text.split('|').map(one).collect()
}

/// Tasks are of blocks that there are, and wait for each other where the schedule leaves that open.
pub(crate) fn validate(plan: &Plan, count: u32) -> Result<()> {
    let pairs = plan.before.iter().flat_map(|(first, then)| [first, then]);
    let tasks = plan.timetables.values().flatten().flat_map(|it| &it.tasks);
    if let Some(task) = pairs.chain(tasks).find(|task| task.block >= count as usize) {
        let what = format!("the plan orders `{task}`, and has {}", blocks_of(count));
        return Err(Error::new("SW0329", what)
            .why("blocks are numbered from 0, in the order of their lines")
            .fix("name a block that there is, or say what it has: `block \"h.0.*\"`"));
    }
    match plan.before.first().filter(|_| !plan.schedule.is_open()) {
        None => Ok(()),
        Some((first, then)) => {
            let what = format!("`{}` leaves no room for `{first} < {then}`", plan.schedule.name());
            Err(Error::new("SW0329", what)
                .why("it fixes the order of all tasks of a device")
                .fix("write `schedule 1f1b`, or the whole timetable: `timetable 0: F0+1 B0`"))
        }
    }
}

fn blocks_of(count: u32) -> String {
    if count == 1 { "no blocks".into() } else { format!("{count} blocks") }
}

pub(crate) fn print(before: &[(Task, Task)], timetables: &Timetables) -> String {
    let mut text: String = before.iter().map(|(first, then)| format!("order {first} < {then}\n")).collect();
    let mut same: Vec<(Range<u32>, &Vec<ShapeLoop>)> = vec![];
    for (device, loops) in timetables {
        match same.last_mut() {
            Some((devices, same)) if *same == loops && devices.end == *device => devices.end += 1,
            _ => same.push((*device..device + 1, loops)),
        }
    }
    for (devices, loops) in same {
        let whose = if devices.len() == 1 { devices.start.to_string() } else { format!("{devices:?}") };
        let every = loops.first().map_or(1, |it| it.every);
        let by = if every == 1 { String::new() } else { format!(" by {every}") };
        let one = |it: &ShapeLoop| it.tasks.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        let all = loops.iter().map(one).collect::<Vec<_>>().join(" | ");
        text += &format!("timetable {whose}{by}: {all}\n");
    }
    text
}
