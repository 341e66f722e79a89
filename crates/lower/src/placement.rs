//! Where an operator's parts are, with what each reads and writes.

use program::RankId;
use rules::Interval;

use crate::layout::{LayoutId, PortsId};

/// One sub-operator on its rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sub {
    pub rank: RankId,
    pub at: Vec<Interval>,
    /// Whether it is the first of the parts by value.
    pub first: bool,
}

/// An operator's parts. Parts of one rank follow each other; copies on one rank are one.
#[derive(Debug)]
pub struct Placement {
    pub subs: Vec<Sub>,
    pub inputs: Vec<Read>,
    pub outputs: Vec<Option<Written>>,
    /// Whether some rank runs several parts one after another.
    pub in_turn: bool,
}

#[derive(Clone, Debug)]
pub struct Read {
    pub ports: PortsId,
    /// For each part the port it reads; `None` for an operand that only the first part is given.
    pub port: Vec<Option<usize>>,
    pub carries_grad: bool,
}

#[derive(Clone, Debug)]
pub struct Written {
    pub layout: LayoutId,
    pub entry: Vec<usize>,
}

impl Placement {
    /// The positions of a rank's parts.
    pub fn on(&self, rank: RankId) -> std::ops::Range<usize> {
        let start = self.subs.partition_point(|s| s.rank < rank);
        let count = self.subs[start..].partition_point(|s| s.rank == rank);
        start..start + count
    }
}
