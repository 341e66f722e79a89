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
    pub others: Vec<OtherBlock>,
}

/// Another block that is on a device when one begins there.
pub(crate) struct OtherBlock {
    /// Of the two.
    pub pair: usize,
    /// Whether it is the second of the pair.
    pub is_second: bool,
    /// What it keeps.
    pub memory: i64,
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
                let (is_second, memory) = (block < it, blocks[it].memory);
                pairs.iter().position(is_pair).map(|pair| OtherBlock { pair, is_second, memory })
            };
            peaks
                .push(Peak { room: room - blocks[block].memory, others: others.filter_map(other).collect() });
        }
    }
    peaks
}
