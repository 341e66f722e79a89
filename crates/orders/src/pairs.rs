//! Which blocks stand in each other's way, and when devices keep the most.

use crate::problem::Problem;

/// Two blocks that are on one device.
pub(crate) struct Pair {
    pub first: usize,
    pub then: usize,
    pub times: (i64, i64),
    /// On how many devices they both are.
    pub shared: usize,
}

/// What a device keeps when a block begins that keeps something.
pub(crate) struct Peak {
    /// Beside what that block keeps of its own micro-batch.
    pub room: i64,
    /// The other blocks: the pair, whether the block that begins is the first of it, and what the other one keeps.
    pub others: Vec<(usize, bool, i64)>,
}

pub(crate) fn pairs(problem: &Problem) -> Vec<Pair> {
    let blocks = &problem.blocks;
    let both = (0..blocks.len()).flat_map(|first| (first + 1..blocks.len()).map(move |then| (first, then)));
    let pair = |(first, then): (usize, usize)| {
        let shared = blocks[first].devices.iter().filter(|it| blocks[then].devices.contains(it)).count();
        Pair { first, then, times: (blocks[first].time, blocks[then].time), shared }
    };
    both.map(pair).filter(|pair| pair.shared > 0).collect()
}

pub(crate) fn peaks(problem: &Problem, pairs: &[Pair]) -> Vec<Peak> {
    let blocks = &problem.blocks;
    let mut peaks = vec![];
    for (device, room) in problem.room.iter().enumerate() {
        let Some(room) = *room else { continue };
        for block in problem.blocks_on(device).filter(|it| blocks[*it].memory > 0) {
            let others = problem.blocks_on(device).filter(|it| *it != block && blocks[*it].memory != 0);
            let other = |it: usize| {
                let is_pair = |pair: &Pair| (pair.first, pair.then) == (block.min(it), block.max(it));
                pairs.iter().position(is_pair).map(|pair| (pair, block < it, blocks[it].memory))
            };
            peaks
                .push(Peak { room: room - blocks[block].memory, others: others.filter_map(other).collect() });
        }
    }
    peaks
}
