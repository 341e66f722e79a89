//! Whether ranks that do the same along an axis take as long on a cluster: on devices of one kind, with links that are
//! alike to all with whom they communicate. Then those that the check followed stand for all in a step, too, to the last bit.

use check::RankAxis;
use cluster::Cluster;
use hashing::Map;
use program::{Program, RankId};

/// Whether each rank is on the cluster what the one is that stands for it.
pub fn symmetric(program: &Program, cluster: &Cluster, axis: RankAxis) -> bool {
    if program.world > cluster.devices() {
        // Nothing is simulated.
        return true;
    }
    let kinds = kinds(cluster);
    let symmetric = |ranks: &[RankId]| {
        let standing: Vec<RankId> = ranks.iter().map(|rank| axis.standing_for(*rank)).collect();
        standing == ranks || looks_as(cluster, &kinds, ranks, &standing)
    };
    // All along the axis meet in one group, whichever of them are followed.
    let is_along = |group: &[RankId]| group.iter().skip(1).any(|rank| axis.is_line(*rank, group[0]));
    let mut groups = program.groupings.iter().flatten();
    let mut pieces = program.exchanges.iter().flat_map(|exchange| {
        exchange.pieces.iter().map(|piece| [exchange.sources[piece.from].0, exchange.targets[piece.to].0])
    });
    // Layers that are alike send between the same ranks.
    let mut known: Map<[RankId; 2], ()> = Map::default();
    (0..program.world).all(|rank| symmetric(&[RankId(rank)]))
        && groups.all(|group| is_along(group) || symmetric(group))
        && pieces.all(|ends| known.insert(ends, ()).is_some() || symmetric(&ends))
}

/// For each node the first one that is like it.
fn kinds(cluster: &Cluster) -> Vec<usize> {
    let first = |node| cluster.nodes.iter().position(|other| other == node).expect("it is one of them");
    cluster.nodes.iter().map(first).collect()
}

/// Whether a cluster sees the same of ranks as of others: what their devices are, of what kind of node, and which of them
/// share one.
fn looks_as(cluster: &Cluster, kinds: &[usize], ranks: &[RankId], others: &[RankId]) -> bool {
    // Nodes of the ones are those of the others, one by one.
    let (mut there, mut back): (Map<usize, usize>, Map<usize, usize>) = Default::default();
    ranks.iter().zip(others).all(|(rank, other)| {
        let (one, two) = (cluster.node(rank.0), cluster.node(other.0));
        cluster.device(rank.0).name == cluster.device(other.0).name
            && kinds[one] == kinds[two]
            && *there.entry(one).or_insert(two) == two
            && *back.entry(two).or_insert(one) == one
    })
}
