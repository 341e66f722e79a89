//! What goes from ranks to others in an exchange.

use std::collections::BTreeMap;
use std::rc::Rc;

use program::RankId;

/// What a rank sends to each other, in bytes.
pub type SentByRank = Rc<[(RankId, u64)]>;

/// What goes from ranks to others, in bytes.
#[derive(Default)]
pub(crate) struct Sent {
    of: BTreeMap<RankId, SentByRank>,
    /// What each rank gives, and gets.
    given: BTreeMap<RankId, u64>,
    got: BTreeMap<RankId, u64>,
}

impl Sent {
    /// Of pieces, each of which goes from one to another.
    pub(crate) fn of_pieces(pieces: impl Iterator<Item = (RankId, RankId, u64)>) -> Self {
        let mut sent = Self::default();
        let mut all: BTreeMap<RankId, BTreeMap<RankId, u64>> = BTreeMap::new();
        for (from, to, bytes) in pieces {
            *all.entry(from).or_default().entry(to).or_default() += bytes;
            *sent.given.entry(from).or_default() += bytes;
            *sent.got.entry(to).or_default() += bytes;
        }
        sent.of = all.into_iter().map(|(from, to)| (from, to.into_iter().collect())).collect();
        sent
    }

    /// What a rank sends to each other; nothing of one that sends nothing.
    pub(crate) fn by(&self, rank: RankId) -> Option<&SentByRank> {
        self.of.get(&rank)
    }

    pub(crate) fn given(&self, rank: RankId) -> u64 {
        self.given.get(&rank).copied().unwrap_or(0)
    }

    pub(crate) fn got(&self, rank: RankId) -> u64 {
        self.got.get(&rank).copied().unwrap_or(0)
    }
}
