//! How long a message takes among the devices of a group.
//!
//! `S` bytes among `n` devices: a ring sends pieces of `S/n` in `n - 1` hops, twice for an all-reduce, and goes as fast
//! as the slowest link that it crosses; a tree goes up and down in `2 log2 n` hops, and so starts sooner; with a network
//! between nodes that are large, sums are made inside of nodes first (`hierarchical`). What is quickest is counted.

use ::collective::Collective;

use crate::{Cluster, Link};

/// How many groups communicate at the same time over the network of each node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contention(pub u32);

/// A group, as a cluster sees it.
struct GroupShape {
    members: f64,
    nodes: f64,
    /// Members in the node that has the fewest of them.
    fewest: f64,
    /// Bytes a second inside of nodes, and between them, of each node.
    inside: f64,
    between: f64,
    start: f64,
    hop_inside: f64,
    hop_between: f64,
    sums: bool,
}

/// With so many members, switches that sum are used.
const SUMMED_FROM: f64 = 8.0;
/// And they reach as much of the bandwidth of a link.
const SUMMED_RATE: f64 = 0.78;

impl Cluster {
    /// Seconds of a collective. `group` has no device twice.
    pub fn collective(
        &self,
        collective: Collective,
        group: &[u32],
        contention: Contention,
        bytes: f64,
    ) -> f64 {
        if group.len() < 2 || bytes == 0.0 {
            return 0.0;
        }
        if let Some(seconds) =
            self.inside(group).and_then(|link| link.measured(Some(collective), group.len() as u32, bytes))
        {
            return seconds;
        }
        self.shape(group, contention).seconds(collective, bytes)
    }

    /// The link of the node that has all of a group.
    fn inside(&self, group: &[u32]) -> Option<&Link> {
        let node = self.node(*group.first()?);
        group.iter().all(|at| self.node(*at) == node).then_some(&self.nodes[node].link)
    }

    /// Seconds until what one device sends is at another.
    pub fn message(&self, from: u32, to: u32, contention: Contention, bytes: f64) -> f64 {
        if from == to || bytes == 0.0 {
            return 0.0;
        }
        let (here, there) = (self.node(from), self.node(to));
        let link = if here == there { &self.nodes[here].link } else { &self.network };
        if let Some(seconds) = link.measured(None, 2, bytes) {
            return seconds;
        }
        link.latency + self.least_of_message(from, to, contention, bytes)
    }

    /// The same, of the bytes alone: the least there is.
    pub fn least_of_message(
        &self,
        from: u32,
        to: u32,
        Contention(contention): Contention,
        bytes: f64,
    ) -> f64 {
        let (here, there) = (self.node(from), self.node(to));
        // A crowd is of those that leave a node: inside of it nobody is in the way.
        let (link, contention) =
            if here == there { (&self.nodes[here].link, 1) } else { (&self.network, contention) };
        bytes / (link.rate() / if link.shared { f64::from(contention.max(1)) } else { 1.0 })
    }

    /// Seconds that the bytes of a collective alone take on the slowest link which they cross, all of which they have: the
    /// least there is.
    pub fn least(&self, collective: Collective, group: &[u32], contention: Contention, bytes: f64) -> f64 {
        let shape = self.shape(group, contention);
        GroupShape { start: 0.0, hop_inside: 0.0, hop_between: 0.0, ..shape }.seconds(collective, bytes)
    }

    /// What no messages take less than that bring each member of a group its part of a sum, however they are sent.
    pub fn least_of_scattered(&self, group: &[u32], contention: Contention, bytes: f64) -> f64 {
        let members = group.len() as f64;
        let link = self.inside(group).unwrap_or(&self.network);
        let measured = link.least_of_each(group.len() as u32) * (members - 1.0) / members * bytes;
        self.least(Collective::ReduceScatter, group, contention, bytes).min(measured)
    }

    /// How many of these groups cross each node's border: the most of any node.
    pub fn contention<'g>(&self, groups: impl Iterator<Item = &'g [u32]>) -> Contention {
        let mut crossing = vec![0_u32; self.nodes.len()];
        for group in groups {
            let nodes = self.nodes_of(group);
            if nodes.len() > 1 {
                nodes.into_iter().for_each(|(node, _)| crossing[node] += 1);
            }
        }
        Contention(crossing.into_iter().max().unwrap_or(1).max(1))
    }

    /// The nodes of a group, and how many of its members each has.
    fn nodes_of(&self, group: &[u32]) -> Vec<(usize, u32)> {
        let mut nodes: Vec<usize> = group.iter().map(|at| self.node(*at)).collect();
        nodes.sort_unstable();
        let mut counts: Vec<(usize, u32)> = vec![];
        for node in nodes {
            match counts.last_mut() {
                Some((last, count)) if *last == node => *count += 1,
                _ => counts.push((node, 1)),
            }
        }
        counts
    }

    fn shape(&self, group: &[u32], Contention(contention): Contention) -> GroupShape {
        let nodes = self.nodes_of(group);
        let least = |values: &mut dyn Iterator<Item = f64>| values.fold(f64::INFINITY, f64::min);
        let most = |values: &mut dyn Iterator<Item = f64>| values.fold(0.0, f64::max);
        let several = || nodes.iter().filter(|(_, count)| *count > 1);
        let of_node = |(node, count): &(usize, u32)| {
            let link = &self.nodes[*node].link;
            link.rate() / if link.shared { f64::from(*count) } else { 1.0 }
        };
        let network = &self.network;
        let out = |(_, count): &(usize, u32)| {
            if network.shared {
                network.rate() / f64::from(contention)
            } else {
                network.rate() * f64::from(*count)
            }
        };
        let crosses = nodes.len() > 1;
        GroupShape {
            members: group.len() as f64,
            nodes: nodes.len() as f64,
            fewest: least(&mut nodes.iter().map(|(_, count)| f64::from(*count))),
            inside: least(&mut several().map(of_node)),
            between: if crosses { least(&mut nodes.iter().map(out)) } else { f64::INFINITY },
            start: most(&mut nodes.iter().map(|(node, _)| self.nodes[*node].link.start)).max(if crosses {
                network.start
            } else {
                0.0
            }),
            hop_inside: most(&mut several().map(|(node, _)| self.nodes[*node].link.latency)),
            hop_between: if crosses { network.latency } else { 0.0 },
            sums: nodes.iter().all(|(node, _)| self.nodes[*node].link.sums),
        }
    }
}

impl GroupShape {
    /// By what is quickest.
    fn seconds(&self, collective: Collective, bytes: f64) -> f64 {
        match collective {
            Collective::AllGather | Collective::ReduceScatter => self.ring(1.0, bytes),
            Collective::AllToAll => self.each_to_each(bytes),
            Collective::AllReduce => [
                Some(self.ring(2.0, bytes)),
                Some(self.tree(bytes)),
                (self.nodes > 1.0 && self.fewest > 1.0).then(|| self.hierarchical(bytes)),
                (self.sums && self.nodes == 1.0 && self.members >= SUMMED_FROM).then(|| self.summed(bytes)),
            ]
            .into_iter()
            .flatten()
            .fold(f64::INFINITY, f64::min),
        }
    }

    fn slowest(&self) -> f64 {
        self.inside.min(self.between)
    }

    /// So many times around.
    fn ring(&self, rounds: f64, bytes: f64) -> f64 {
        let crossings = if self.nodes > 1.0 { self.nodes - 1.0 } else { 0.0 };
        let hops = crossings * self.hop_between + (self.members - 1.0 - crossings) * self.hop_inside;
        let sent = (self.members - 1.0) / self.members * bytes;
        self.start + rounds * (hops + sent / self.slowest())
    }

    fn tree(&self, bytes: f64) -> f64 {
        let inside = (self.members / self.nodes).log2().ceil().max(0.0) * self.hop_inside;
        let hops = inside + self.nodes.log2().ceil() * self.hop_between;
        self.start + 2.0 * (hops + bytes / self.slowest())
    }

    /// Sums of parts inside of nodes, of these between them, and back. All members of a node use the network at once.
    fn hierarchical(&self, bytes: f64) -> f64 {
        let inside =
            (self.fewest - 1.0) * self.hop_inside + (self.fewest - 1.0) / self.fewest * bytes / self.inside;
        let hops = self.nodes.log2().ceil() * self.hop_between;
        let between = hops + (self.nodes - 1.0) / self.nodes * bytes / self.between;
        self.start + 2.0 * (inside + between)
    }

    /// What connects the devices sums: everything goes there and back once.
    fn summed(&self, bytes: f64) -> f64 {
        self.start + 4.0 * self.hop_inside + bytes / (self.inside * SUMMED_RATE)
    }

    /// To every other member the same share.
    fn each_to_each(&self, bytes: f64) -> f64 {
        let others = self.members - 1.0;
        let here = if self.nodes > 1.0 { self.members / self.nodes } else { self.members };
        let inside =
            if self.inside.is_finite() { (here - 1.0) / self.members * bytes / self.inside } else { 0.0 };
        let offloaded = (self.members - here) / self.members * bytes * here / self.between;
        let hop = if self.nodes > 1.0 { self.hop_between } else { self.hop_inside };
        self.start + others * hop + inside.max(offloaded)
    }
}
