//! Whether a step is right, from its times alone: it shares nothing with the search.

use std::collections::BTreeMap;
use std::fmt;

use crate::problem::Problem;

/// What is wrong. Blocks are (micro-batch, block).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Not all blocks have a time, or one begins before 0.
    Missing,
    /// The first begins before the second, for which it waits, has ended.
    Early((usize, usize), (usize, usize)),
    /// A device runs both at once.
    AtOnce(usize, (usize, usize), (usize, usize)),
    /// A device keeps so much at a time, which is more than it has room for.
    Full(usize, i64, i64),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = |it: &(usize, usize)| format!("block {} of micro-batch {}", it.1, it.0);
        match self {
            Fault::Missing => write!(f, "a block has no time"),
            Fault::Early(block, predecessor) => {
                write!(f, "{} begins before the end of {}", word(block), word(predecessor))
            }
            Fault::AtOnce(device, a, b) => {
                write!(f, "device {device} runs {} and {} at once", word(a), word(b))
            }
            Fault::Full(device, time, kept) => write!(f, "device {device} keeps {kept} at time {time}"),
        }
    }
}

/// The first thing that is wrong with a step.
pub fn fault(problem: &Problem, starts: &[Vec<i64>]) -> Option<Fault> {
    let is_there = |row: &Vec<i64>| row.len() == problem.blocks.len() && row.iter().all(|start| *start >= 0);
    if !starts.iter().all(is_there) {
        return Some(Fault::Missing);
    }
    early(problem, starts)
        .or_else(|| (0..problem.devices()).find_map(|device| at_once(problem, starts, device)))
        .or_else(|| (0..problem.devices()).find_map(|device| full(problem, starts, device)))
}

fn early(problem: &Problem, starts: &[Vec<i64>]) -> Option<Fault> {
    for (batch, row) in starts.iter().enumerate() {
        for (at, block) in problem.blocks.iter().enumerate() {
            let is_late =
                |predecessor: &&usize| row[**predecessor] + problem.blocks[**predecessor].time > row[at];
            if let Some(predecessor) = block.after.iter().find(is_late) {
                return Some(Fault::Early((batch, at), (batch, *predecessor)));
            }
        }
    }
    None
}

fn at_once(problem: &Problem, starts: &[Vec<i64>], device: usize) -> Option<Fault> {
    let mut timeline: Vec<(i64, (usize, usize))> = (0..starts.len())
        .flat_map(|batch| problem.blocks_on(device).map(move |at| (starts[batch][at], (batch, at))))
        .collect();
    timeline.sort();
    let overlap = timeline.windows(2).find(|two| two[0].0 + problem.blocks[two[0].1.1].time > two[1].0)?;
    Some(Fault::AtOnce(device, overlap[0].1, overlap[1].1))
}

/// What is kept counts from the beginning of a block, what is freed from its end.
fn full(problem: &Problem, starts: &[Vec<i64>], device: usize) -> Option<Fault> {
    let room = problem.room[device]?;
    let mut changes: BTreeMap<i64, i64> = BTreeMap::new();
    for (row, at) in starts.iter().flat_map(|row| problem.blocks_on(device).map(move |at| (row, at))) {
        let block = &problem.blocks[at];
        let time = row[at] + if block.memory > 0 { 0 } else { block.time };
        *changes.entry(time).or_default() += block.memory;
    }
    let mut kept = 0;
    let too_much = |(time, change): (&i64, &i64)| {
        kept += change;
        (kept > room).then_some((*time, kept))
    };
    changes.iter().find_map(too_much).map(|(time, kept)| Fault::Full(device, time, kept))
}
