//! Where ranks come together: collectives, and exchanges of the whole program.

use std::rc::Rc;

use program::{ExchangeId, GroupingId, RankId};

/// Which collective: the group, and its number among the collectives of that group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Key {
    Group(GroupingId, u32, usize),
    Exchange(ExchangeId, usize),
}

impl Key {
    /// The first one there.
    pub(crate) fn first(self) -> Self {
        match self {
            Key::Group(grouping, number, _) => Key::Group(grouping, number, 0),
            Key::Exchange(exchange, _) => Key::Exchange(exchange, 0),
        }
    }
}

/// Who comes together in a group or an exchange, each time.
#[derive(Clone, Debug)]
pub(crate) struct Members {
    pub(crate) all: Rc<[RankId]>,
    /// So many of them are followed.
    pub(crate) expected: usize,
    /// On which of their lines it goes on: inside of a node, or between nodes.
    pub(crate) line: usize,
}

/// Who has come, and when.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rendezvous {
    /// On which of their lines it goes on: inside of a node, or between nodes.
    pub(crate) line: usize,
    /// So many of those that are followed come.
    pub(crate) expected: usize,
    /// Ranks by their place among those that are followed, and when they came.
    pub(crate) here: Vec<(usize, f64)>,
    /// How long it goes on once all are here.
    pub(crate) seconds: f64,
    /// Of an exchange the seconds in which a member's bytes alone take up its link, at most.
    pub(crate) least: f64,
    pub(crate) bytes: u64,
    /// When it began and ended.
    pub(crate) time: Option<(f64, f64)>,
    /// So many members have waited for its end: each does so once.
    pub(crate) informed: usize,
    /// Ranks that wait for its end.
    pub(crate) waiting: Vec<usize>,
}

impl Rendezvous {
    pub(crate) fn is_full(&self) -> bool {
        self.here.len() == self.expected
    }
}
