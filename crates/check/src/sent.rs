//! What goes from ranks to others in an exchange.

use std::collections::BTreeMap;

use program::RankId;

/// What goes from ranks to others, in bytes.
#[derive(Default)]
pub(crate) struct Sent {
    of: BTreeMap<RankId, BTreeMap<RankId, u64>>,
    /// What each rank gets.
    got: BTreeMap<RankId, u64>,
}

impl Sent {
    /// What a rank sends to each other.
    pub(crate) fn by(&self, rank: RankId) -> impl Iterator<Item = (RankId, u64)> {
        self.of.get(&rank).into_iter().flatten().map(|(to, bytes)| (*to, *bytes))
    }

    /// A piece goes from one to another.
    pub(crate) fn add(&mut self, from: RankId, to: RankId, bytes: u64) {
        *self.of.entry(from).or_default().entry(to).or_default() += bytes;
        *self.got.entry(to).or_default() += bytes;
    }

    pub(crate) fn given(&self, rank: RankId) -> u64 {
        self.by(rank).map(|(_, bytes)| bytes).sum()
    }

    pub(crate) fn got(&self, rank: RankId) -> u64 {
        self.got.get(&rank).copied().unwrap_or(0)
    }
}
