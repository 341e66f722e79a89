//! Over which links a group communicates.

use cluster::Cluster;
use program::RankId;

/// A rank has one of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkKind {
    Inside,
    Between,
}

impl LinkKind {
    pub(crate) const ALL: [LinkKind; 2] = [LinkKind::Inside, LinkKind::Between];

    /// The slowest that the group crosses.
    pub fn crossed_by(cluster: &Cluster, group: &[RankId]) -> Self {
        let node = |rank: &RankId| cluster.node(rank.0);
        if group.iter().any(|rank| node(rank) != node(&group[0])) {
            LinkKind::Between
        } else {
            LinkKind::Inside
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            LinkKind::Inside => "inside its node",
            LinkKind::Between => "between nodes",
        }
    }

    /// For people: right of a cluster of one node, too.
    pub(crate) fn said(self) -> &'static str {
        match self {
            LinkKind::Inside => "inside nodes",
            LinkKind::Between => "between nodes",
        }
    }
}
