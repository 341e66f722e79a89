//! Groups of devices that a stage may have: parts of a node, or whole nodes that follow each other.

use std::collections::BTreeMap;

use cluster::{Cluster, Node};

/// So many nodes are a group, or else a power of two or a divisor of all.
const FEW: u32 = 8;

/// Where there are more nodes, stages have whole ones, and no odd numbers of them: others are much smaller than most.
const MANY: u32 = 16;

pub(super) struct Groups {
    /// Where nodes begin, and at last how many devices there are.
    borders: Vec<u32>,
    /// Clusters of groups, each kind once.
    pub(super) kinds: Vec<Cluster>,
    /// Whether devices and their links are the same if they are counted from the last one.
    pub(super) is_symmetric: bool,
    /// For each node the first that is like it.
    equal: Vec<usize>,
    /// The kind of each group, by its parts.
    numbers: BTreeMap<Vec<GroupPart>, usize>,
}

/// So many nodes of a kind one after another, and of each so many devices from one on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct GroupPart {
    node: usize,
    devices: (u32, u32),
    times: u32,
}

impl Groups {
    /// Of the first devices of a cluster.
    pub(super) fn new(cluster: &Cluster, devices: u32) -> Self {
        let mut borders: Vec<u32> =
            (0..devices).filter(|at| *at == 0 || cluster.node(*at) != cluster.node(at - 1)).collect();
        borders.push(devices);
        let mut equal: Vec<usize> = vec![];
        let node = |at: usize| &cluster.nodes[cluster.node(borders[at])];
        for at in 0..borders.len() - 1 {
            let first = (0..at).find(|other| equal[*other] == *other && node(*other) == node(at));
            equal.push(first.unwrap_or(at));
        }
        let is_symmetric = is_symmetric(&part(cluster, 0, devices).nodes);
        let mut groups = Self { borders, kinds: vec![], is_symmetric, equal, numbers: BTreeMap::new() };
        for end in 1..=devices {
            for size in groups.sizes(end) {
                groups.number(cluster, (end - size, end));
            }
        }
        groups
    }

    /// Numbers the kind of a group, if it has no number yet.
    fn number(&mut self, cluster: &Cluster, devices: (u32, u32)) {
        let parts = self.parts(devices);
        if self.numbers.contains_key(&parts) {
            return;
        }
        let group = part(cluster, devices.0, devices.1);
        let known = self.kinds.iter().position(|kind| kind.nodes == group.nodes);
        self.numbers.insert(parts, known.unwrap_or(self.kinds.len()));
        self.kinds.extend(known.is_none().then_some(group));
    }

    /// What a group is made of: groups of the same parts are of one kind.
    fn parts(&self, (first, end): (u32, u32)) -> Vec<GroupPart> {
        let (mut parts, mut from): (Vec<GroupPart>, u32) = (vec![], first);
        while from < end {
            let node = self.borders.partition_point(|border| *border <= from) - 1;
            let (begin, to) = (self.borders[node], self.borders[node + 1].min(end));
            let part = GroupPart { node: self.equal[node], devices: (from - begin, to - begin), times: 1 };
            match parts.last_mut() {
                Some(last) if (last.node, last.devices) == (part.node, part.devices) => last.times += 1,
                _ => parts.push(part),
            }
            from = to;
        }
        parts
    }

    /// The sizes of groups that end before a device, but for all devices.
    pub(super) fn sizes(&self, end: u32) -> Vec<u32> {
        if end == 0 {
            return vec![];
        }
        let node = self.borders.partition_point(|border| *border < end) - 1;
        let (first, next) = (self.borders[node], self.borders[node + 1]);
        let all = next - first;
        let fits = |size: &u32| all % size == 0 && (end - first) % size == 0 && (*size < all || end == next);
        let nodes = u32::try_from(self.borders.len() - 1).unwrap_or(u32::MAX);
        let least = if nodes > MANY { all } else { 1 };
        let mut sizes: Vec<u32> = (least..=end - first).filter(fits).collect();
        let count = self.borders[self.borders.len() - 1];
        if end == next {
            let counts = (2..=node + 1).map(|count| (u32::try_from(count).unwrap_or(u32::MAX), count));
            let is_even = |count: u32| count.is_power_of_two() || nodes % count == 0;
            let some = counts.filter(|(count, _)| is_even(*count) || *count <= FEW && nodes <= MANY);
            sizes.extend(some.map(|(_, count)| end - self.borders[node + 1 - count]));
        }
        // All of them are one stage, which is no pipeline.
        sizes.retain(|size| *size < count);
        sizes
    }

    /// The kind of a group.
    pub(super) fn kind(&self, devices: (u32, u32)) -> usize {
        self.numbers[&self.parts(devices)]
    }
}

fn is_symmetric(nodes: &[Node]) -> bool {
    let devices = || nodes.iter().flat_map(|node| node.devices.iter().map(move |kind| (kind, &node.link)));
    let all: Vec<_> = devices().collect();
    devices().eq(all.into_iter().rev())
}

/// Some devices of a cluster, as a cluster.
fn part(cluster: &Cluster, first: u32, end: u32) -> Cluster {
    let mut nodes: Vec<Node> = vec![];
    let mut last = None;
    for device in first..end {
        let node = cluster.node(device);
        if last != Some(node) {
            nodes.push(Node { devices: vec![], link: cluster.nodes[node].link.clone() });
            last = Some(node);
        }
        let kind = cluster.kinds.iter().position(|kind| kind == cluster.device(device)).unwrap_or(0);
        nodes.last_mut().expect("one was pushed").devices.push(kind);
    }
    Cluster::new(cluster.name.clone(), cluster.kinds.clone(), nodes, cluster.network.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(name: &str, devices: u32, end: u32) -> Vec<u32> {
        Groups::new(&cluster::named(name).expect("known"), devices).sizes(end)
    }

    #[test]
    fn a_group_is_a_part_of_a_node_or_whole_nodes() {
        assert_eq!(sizes("dgx-h100:8x4", 32, 32), [1, 2, 4, 8, 16, 24]);
        assert_eq!(sizes("dgx-h100:8x4", 32, 28), [1, 2, 4]);
        assert_eq!(sizes("dgx-h100:8x4", 32, 27), [1]);
        assert_eq!(sizes("dgx-h100:8x4", 32, 8), [1, 2, 4, 8]);
        assert_eq!(sizes("dgx-h100:8x2", 12, 12), [1, 2, 4]);
        assert_eq!(sizes("cpu:6", 6, 6), [1, 2, 3]);
        // Of many nodes whole ones, and no odd numbers of them.
        assert_eq!(sizes("dgx-h100:8x48", 384, 384), [8, 16, 24, 32, 48, 64, 96, 128, 192, 256]);
        assert!(sizes("dgx-h100:8x48", 384, 380).is_empty());
    }

    #[test]
    fn groups_that_are_alike_are_one_kind() {
        let count = |name: &str, devices: u32| {
            let cluster = cluster::named(name).expect("known");
            Groups::new(&cluster, devices).kinds.len()
        };
        assert_eq!(count("dgx-h100:8x4", 32), 6);
        assert_eq!(count("cpu:4", 4), 2);
    }

    #[test]
    fn where_nodes_differ_the_order_of_devices_counts() {
        let is_symmetric = |cluster: &Cluster, devices: u32| Groups::new(cluster, devices).is_symmetric;
        let all = cluster::named("dgx-h100:8x4").expect("known");
        assert!(is_symmetric(&all, 32) && is_symmetric(&all, 4) && is_symmetric(&all, 12));
        let mut mixed = all;
        mixed.nodes[3].link = cluster::named("dgx-v100:8x1").expect("known").nodes[0].link.clone();
        assert!(!is_symmetric(&mixed, 32) && is_symmetric(&mixed, 24));
        mixed.nodes[0].link = mixed.nodes[3].link.clone();
        assert!(is_symmetric(&mixed, 32));
    }

    #[test]
    fn a_kind_has_the_nodes_of_all_its_groups() {
        let mut mixed = cluster::named("dgx-h100:8x4").expect("known");
        mixed.nodes[2].link = cluster::named("dgx-v100:8x1").expect("known").nodes[0].link.clone();
        assert_ne!(mixed.nodes[2], mixed.nodes[1]);
        let named = |name: &str| cluster::named(name).expect("known");
        for (cluster, devices) in [(mixed, 32), (named("dgx-h100:8x2"), 12), (named("cpu:6"), 6)] {
            let groups = Groups::new(&cluster, devices);
            for end in 1..=devices {
                for size in groups.sizes(end) {
                    let kind = groups.kind((end - size, end));
                    assert_eq!(groups.kinds[kind].nodes, part(&cluster, end - size, end).nodes);
                }
            }
            for (at, kind) in groups.kinds.iter().enumerate() {
                assert!(groups.kinds[..at].iter().all(|other| other.nodes != kind.nodes));
            }
        }
    }
}
