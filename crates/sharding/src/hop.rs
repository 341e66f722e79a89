//! One communication, or local step, from a sharding to another, and what it costs.

use collective::Detailed;
use rules::Reduction;

use crate::mesh::Axis;
use crate::sharding::Sharding;

/// A collective that cuts and joins along factors, counted over all dims of the tensor.
pub type Along = Detailed<Reduction, usize>;

/// How a hop goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HopKind {
    /// Each device takes a part of what it has.
    Slice,
    /// Each device takes a whole value as one of several partial results: the first along the axes as it is,
    /// the others as nothing.
    Share,
    Collective(Along),
    /// Each device gets the shard of another one.
    Permute,
    /// Each device of another mesh gets the shard of a device of this one.
    Send,
}

/// One step of a route. Groups are [`crate::Mesh::groups`] along `axes`, of the mesh that
/// `from` is on; the pieces of a group follow its devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hop {
    pub kind: HopKind,
    /// Empty for a slice, a permutation and a sending.
    pub axes: Vec<Axis>,
    pub from: Sharding,
    pub to: Sharding,
    /// The most that a device sends or receives.
    pub bytes: u64,
}

impl HopKind {
    /// The elements that a device sends or receives in a group of so many, given how many it holds
    /// before and after.
    pub fn elements(self, group: u32, before: u64, after: u64) -> u64 {
        let others = |elements: u64| (elements * u64::from(group - 1)).div_ceil(u64::from(group));
        match self {
            HopKind::Slice | HopKind::Share => 0,
            HopKind::Collective(Along::AllReduce(_)) => others(2 * before),
            HopKind::Collective(Along::ReduceScatter(_)) => others(before),
            HopKind::Collective(Along::AllGather(_)) => others(after),
            HopKind::Collective(Along::AllToAll { .. }) => others(before.max(after)),
            HopKind::Permute | HopKind::Send => after,
        }
    }

    /// Whether no device needs another one for it, whatever the axes.
    pub fn is_local(self) -> bool {
        matches!(self, HopKind::Slice | HopKind::Share)
    }
}

impl Hop {
    /// Whether no device needs another one: also along axes that are walked on one device.
    pub fn is_local(&self) -> bool {
        self.kind.is_local() || self.bytes == 0
    }

    /// The devices that take part together.
    pub fn groups(&self) -> Vec<Vec<u32>> {
        self.from.mesh().groups(&self.axes).expect("the axes of a hop are its spread's")
    }
}
