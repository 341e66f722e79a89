//! What no period, and no step, can be shorter than.

use crate::problem::{Block, Problem};

/// In a period each device works for so many micro-batches, and keeps what they need for as long as they need it.
pub(crate) fn period_bound(problem: &Problem, group: usize) -> i64 {
    let device = |it: usize| {
        let kept = stay(problem, it).map_or(0, |stay| ceil(group as i64 * stay.product, stay.room));
        kept.max(group as i64 * problem.work(it))
    };
    (0..problem.devices()).map(device).max().unwrap_or(0)
}

/// What runs on all devices, every other block waits for. Of the rest each device begins when the first of its blocks can, works for
/// all micro-batches, and has what follows its last block behind it; and one micro-batch goes through the longest chain.
pub fn makespan_bound(problem: &Problem, batches: usize) -> i64 {
    let (together, apart) = divided(problem);
    batches as i64 * together
        + of_devices(&apart, batches).max(of_devices(problem, batches) - batches as i64 * together)
}

fn of_devices(problem: &Problem, batches: usize) -> i64 {
    let (heads, tails) = (problem.heads(), problem.tails());
    let fewest =
        |device: usize, times: &[i64]| problem.blocks_on(device).map(|it| times[it]).min().unwrap_or(0);
    let kept = |it: usize| stay(problem, it).map_or(0, |stay| stay.step(batches));
    let work = |it: usize| batches as i64 * problem.work(it);
    let device = |it: usize| fewest(it, &heads) + work(it).max(kept(it)) + fewest(it, &tails);
    let chain = heads.iter().zip(&tails).zip(&problem.blocks).map(|((head, tail), it)| head + it.time + tail);
    (0..problem.devices()).map(device).chain(chain).max().unwrap_or(0)
}

/// How long blocks on all devices take, and the problem without them. Whatever the order, their times can be cut out
/// of a step, and what is left is a step of all others.
fn divided(problem: &Problem) -> (i64, Problem) {
    let mut rest = problem.clone();
    let mut time = 0;
    for at in 0..rest.blocks.len() {
        if rest.blocks[at].devices.len() < problem.devices() || problem.devices() == 1 {
            continue;
        }
        let removed = std::mem::take(&mut rest.blocks[at]);
        time += removed.time;
        for block in &mut rest.blocks {
            pass_on(block, at, &removed.after);
        }
        // Of no time on no device it stands for nothing, and nothing waits for it.
        rest.blocks[at].name = removed.name;
    }
    (time, rest)
}

/// A block waits for what another one waited for, in its place.
fn pass_on(block: &mut Block, at: usize, after: &[usize]) {
    if block.after.contains(&at) {
        block.after.retain(|it| *it != at);
        block.after.extend(after);
    }
}

/// What one micro-batch needs of a device's room.
struct Stay {
    /// What is kept, times for how long at least.
    product: i64,
    room: i64,
    /// If there is only one thing that is kept: what it is, and how long.
    alone: Option<(i64, i64)>,
}

impl Stay {
    /// From when the first of so many micro-batches is kept until the last is free.
    fn step(&self, batches: usize) -> i64 {
        let batches = batches as i64;
        // Whatever is kept alone stands in as many rows as there is room for.
        let in_rows = self.alone.map_or(0, |(kept, time)| ceil(batches, self.room / kept) * time);
        in_rows.max(ceil(batches * self.product, self.room))
    }
}

/// Each block that keeps something, with one behind it that frees as much: from the beginning of the first to the end of the other. None
/// if there is no limit, or blocks are not such pairs, or nothing fits.
fn stay(problem: &Problem, device: usize) -> Option<Stay> {
    let room = problem.room[device].filter(|room| *room > 0)?;
    let memory = |block: usize| problem.blocks[block].memory;
    let mut frees: Vec<usize> = problem.blocks_on(device).filter(|it| memory(*it) < 0).collect();
    let keeps: Vec<usize> = problem.blocks_on(device).filter(|it| memory(*it) > 0).collect();
    let (mut product, mut last) = (0, (0, 0));
    for &keep in keeps.iter().rev() {
        let time = |free: &usize| way(problem, keep, *free).filter(|_| memory(keep) == -memory(*free));
        let shortest = frees.iter().enumerate().filter_map(|(at, free)| Some((time(free)?, at))).min()?;
        frees.remove(shortest.1);
        product += memory(keep) * shortest.0;
        last = (memory(keep), shortest.0);
    }
    let is_right = frees.is_empty() && !keeps.is_empty() && keeps.iter().all(|keep| memory(*keep) <= room);
    is_right.then(|| Stay { product, room, alone: (keeps.len() == 1).then_some(last) })
}

/// The longest way from the beginning of a block to the end of another one behind it.
fn way(problem: &Problem, from: usize, to: usize) -> Option<i64> {
    let mut ends: Vec<Option<i64>> = vec![None; problem.blocks.len()];
    for block in problem.in_order()? {
        let before = problem.blocks[block].after.iter().filter_map(|it| ends[*it]).max();
        let start = if block == from { Some(0) } else { before };
        ends[block] = start.map(|start| start + problem.blocks[block].time);
    }
    ends[to]
}

fn ceil(number: i64, by: i64) -> i64 {
    (number + by - 1) / by
}
