//! Over which links a group communicates.

use cluster::Cluster;
use program::RankId;

/// A rank has one of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    Inside,
    Between,
}

impl Link {
    pub(crate) const ALL: [Link; 2] = [Link::Inside, Link::Between];

    /// The slowest that the group crosses.
    pub(crate) fn of(cluster: &Cluster, group: &[RankId]) -> Self {
        let node = |rank: &RankId| cluster.node(rank.0);
        if group.iter().any(|rank| node(rank) != node(&group[0])) { Link::Between } else { Link::Inside }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Link::Inside => "inside its node",
            Link::Between => "between nodes",
        }
    }
}
