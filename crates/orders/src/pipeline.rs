//! The blocks of a pipeline as a problem.

use schedule::{Pass, Shape};

use crate::problem::{Block, Problem};

/// What blocks cost.
pub struct BlockCosts<'c> {
    /// How long a pass of a block takes.
    pub time: &'c dyn Fn(usize, Pass) -> i64,
    /// What a block keeps from its forward on, until nothing of its backward is left.
    pub kept: &'c dyn Fn(usize) -> i64,
    /// Backward runs in two passes.
    pub split_backward: bool,
}

/// Each pass of a block is a block. Where one is not trained, nothing is kept.
pub fn of_pipeline(shape: &Shape, costs: &BlockCosts<'_>, room: Vec<Option<i64>>) -> Problem {
    let passes = |block: usize| match (shape.blocks[block].trains, costs.split_backward) {
        (false, _) => vec![Pass::Forward],
        (true, false) => vec![Pass::Forward, Pass::Backward],
        (true, true) => vec![Pass::Forward, Pass::Inputs, Pass::Weights],
    };
    let all: Vec<(usize, Pass)> = (0..shape.blocks.len())
        .flat_map(|block| passes(block).into_iter().map(move |pass| (block, pass)))
        .collect();
    let made = |&(block, pass): &(usize, Pass)| {
        let is_before = |other: &&(usize, Pass)| shape.waits((block, pass), **other);
        let memory = match pass {
            Pass::Forward if shape.blocks[block].trains => (costs.kept)(block),
            Pass::Backward | Pass::Weights => -(costs.kept)(block),
            Pass::Forward | Pass::Inputs => 0,
        };
        Block {
            name: format!("{}{block}", pass.letter()),
            devices: shape.blocks[block].devices.clone(),
            time: (costs.time)(block, pass).max(1),
            memory,
            after: all
                .iter()
                .filter(is_before)
                .filter_map(|it| all.iter().position(|other| other == it))
                .collect(),
        }
    };
    Problem { blocks: all.iter().map(made).collect(), room }
}
