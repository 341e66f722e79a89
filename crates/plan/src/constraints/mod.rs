//! What a plan must respect, in the words of plans.
//!
//! ```text
//! shardwright-constraints 1
//! pin "h.*.mlp.c_fc": split inner 4        # along this dim, so many ways, and along no other
//! pin "h.*.attn": split heads              # so many ways as is best, but at least two
//! pin LayerNorm: single                    # all operators of modules of this class: whole on each device
//! pin "h.0.*": on 0..4                     # on these devices only
//! pin aten.linear.* inside nodes: split inner
//! forbid "*": split sequence               # not along this dim
//! forbid recompute                         # nothing is computed again; `offload`: nothing is on the host
//! limit "*": split batch 8                 # at most so many ways
//! limit memory 60GiB
//! limit stages 4
//! tie "h.*"                                # each operator as those in its place in other modules
//! use "data" between nodes                 # as a named plan divides operators
//! use "megatron" inside nodes
//! ```
//! All lines hold. What a plan file says of operators (`op`, `use`) is a constraint, too: a partial plan. [`read()`] reads
//! them; what operators' ways must be is a [`Demand`].

mod dims;
mod read;

use std::collections::BTreeSet;

use graph::OpId;

pub use read::read;

/// A line that a plan must respect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Constraint {
    /// The file and its line.
    pub place: String,
    pub text: String,
    pub says: Says,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Says {
    Ways(Vec<Demand>),
    /// Operators are divided as a named plan divides them.
    Set {
        name: String,
        level: Level,
    },
    /// Operators run on no other devices.
    Devices {
        ops: Vec<OpId>,
        devices: BTreeSet<u32>,
    },
    /// Of each set all operators are divided alike.
    Alike(Vec<Vec<OpId>>),
    /// Of each device, as it is written.
    Memory(String),
    Stages(u32),
    NoRecompute,
    NoOffload,
}

/// Which of the devices are meant that an operator is divided among.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Level {
    All,
    /// As far as nodes differ.
    Between,
    /// As far as devices of one node differ.
    Inside,
}

/// How an operator must be divided.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Demand {
    pub op: OpId,
    pub level: Level,
    pub along: Vec<Along>,
    /// Along no other loop, nor by value.
    pub only: bool,
    pub copies: Option<u32>,
}

/// Some loops of an operator are divided at least and at most so often, all together.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Along {
    pub loops: Vec<usize>,
    pub least: u32,
    pub most: u32,
}

/// How often each loop of an operator is divided, and the rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ways {
    pub loops: Vec<u32>,
    pub value: u32,
    pub copies: u32,
}

impl Demand {
    pub fn holds(&self, ways: &Ways) -> bool {
        let often = |along: &Along| along.loops.iter().map(|index| ways.loops[*index]).product::<u32>();
        let fits = self.along.iter().all(|along| (along.least..=along.most).contains(&often(along)));
        let named = |index: usize| self.along.iter().any(|along| along.loops.contains(&index));
        let others = (0..ways.loops.len()).filter(|index| !named(*index));
        let alone = !self.only || (ways.value == 1 && others.into_iter().all(|index| ways.loops[index] == 1));
        fits && alone && self.copies.is_none_or(|copies| copies == ways.copies)
    }

    /// The loops that must be divided.
    pub fn divides(&self) -> impl Iterator<Item = usize> + '_ {
        self.along.iter().filter(|along| along.least > 1).flat_map(|along| along.loops.iter().copied())
    }
}
