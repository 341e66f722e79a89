//! A step from an order: each block of each micro-batch in turn takes the earliest time that others have left, which may be before
//! theirs. Done again from the end, and from the beginning, it becomes shorter.

use crate::problem::{Block, Problem};

/// For each micro-batch when each block begins.
pub(crate) type Starts = Vec<Vec<i64>>;

/// Rounds without a shorter step, after which there will be none.
const PATIENCE: usize = 3;

/// A short step, from blocks of micro-batches in an order. None if devices have no room for that order.
pub(crate) fn packed(problem: &Problem, mut order: Vec<(usize, usize)>) -> Option<Starts> {
    let back = reversed(problem);
    let mut best = pack(problem, &order)?;
    let mut worse = 0;
    while worse < PATIENCE {
        let (end, starts) = (end_of(problem, &best), best.clone());
        order.sort_by_key(|&(batch, at)| (-starts[batch][at] - problem.blocks[at].time, batch, at));
        let Some(mirrored) = pack(&back, &order) else { break };
        order.sort_by_key(|&(batch, at)| (-mirrored[batch][at] - problem.blocks[at].time, batch, at));
        let Some(repacked) = pack(problem, &order) else { break };
        worse = if end_of(problem, &repacked) < end { 0 } else { worse + 1 };
        if end_of(problem, &repacked) <= end {
            best = repacked;
        }
    }
    Some(best)
}

pub(crate) fn end_of(problem: &Problem, starts: &[Vec<i64>]) -> i64 {
    let ends = starts.iter().flat_map(|row| row.iter().zip(&problem.blocks).map(|(at, it)| at + it.time));
    ends.max().unwrap_or(0)
}

/// Time the other way round: what was freed is kept.
fn reversed(problem: &Problem) -> Problem {
    let followers = |block: usize| {
        (0..problem.blocks.len()).filter(|it| problem.blocks[*it].after.contains(&block)).collect()
    };
    let turned =
        |(at, block): (usize, &Block)| Block { after: followers(at), memory: -block.memory, ..block.clone() };
    Problem { blocks: problem.blocks.iter().enumerate().map(turned).collect(), room: problem.room.clone() }
}

/// What a device runs, by time: from when to when, and what it keeps.
type DeviceLane = Vec<(i64, i64, i64)>;

fn pack(problem: &Problem, order: &[(usize, usize)]) -> Option<Starts> {
    let batches = order.iter().map(|it| it.0 + 1).max().unwrap_or(0);
    let mut starts = vec![vec![-1; problem.blocks.len()]; batches];
    let mut lanes: Vec<DeviceLane> = vec![vec![]; problem.devices()];
    for &(batch, at) in order {
        let block = &problem.blocks[at];
        let mut early = 0;
        for before in &block.after {
            let start = Some(starts[batch][*before]).filter(|start| *start >= 0)?;
            early = early.max(start + problem.blocks[*before].time);
        }
        for device in &block.devices {
            early = early.max(with_room(&lanes[*device], block.memory, problem.room[*device])?);
        }
        let start = free(&lanes, block, early);
        for device in &block.devices {
            let place = lanes[*device].partition_point(|it| it.0 < start);
            lanes[*device].insert(place, (start, start + block.time, block.memory));
        }
        starts[batch][at] = start;
    }
    Some(starts)
}

/// From when on a device can keep so much more, for good.
fn with_room(lane: &DeviceLane, memory: i64, room: Option<i64>) -> Option<i64> {
    let Some(room) = room.filter(|_| memory > 0) else { return Some(0) };
    let mut kept: i64 = lane.iter().map(|it| it.2).sum();
    if kept + memory > room {
        return None;
    }
    for it in lane.iter().rev() {
        kept -= it.2;
        if kept + memory > room {
            return Some(it.1);
        }
    }
    Some(0)
}

/// The first time that all devices of a block have.
fn free(lanes: &[DeviceLane], block: &Block, early: i64) -> i64 {
    let mut start = early;
    loop {
        let in_the_way = block.devices.iter().filter_map(|device| {
            let lane = &lanes[*device];
            let next = lane.get(lane.partition_point(|it| it.1 <= start))?;
            (next.0 < start + block.time).then_some(next.1)
        });
        match in_the_way.max() {
            Some(later) => start = later,
            None => return start,
        }
    }
}
