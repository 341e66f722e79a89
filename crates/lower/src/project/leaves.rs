//! What a rank holds between steps, and the leaves through which its code reads it.

use graph::Source;
use program::{BufId, ExchangeId, GroupingId, Instr, Leaf, LeafId, Shard};

use super::Projector;
use crate::moves::{Method, Move};
use crate::uses::UseId;

impl Projector<'_> {
    pub(super) fn hold(&mut self) {
        let global = self.global;
        for tensor in global.cx.graph.tensor_ids() {
            if matches!(global.cx.graph.tensor(tensor).source, Source::Op { .. } | Source::Input { .. }) {
                continue;
            }
            let held = global.interner.get(global.uses.written[tensor.index()]);
            for index in held.on(self.rank) {
                self.table.shards.push(Shard { tensor, region: held.entries[index].region.clone() });
            }
        }
    }

    /// The leaf through which a use reads a parameter, buffer or constant. Uses without gradients
    /// share a leaf; those with gradients have their own, since their gradients' layouts differ.
    pub(super) fn leaf(&mut self, id: UseId, port: usize) -> BufId {
        let it = self.global.uses.get(id);
        let (tensor, carries) = (it.tensor, it.carries_grad);
        let region = self.global.interner.get_ports(it.ports).entries[port].region.clone();
        let number = if carries { u32::try_from(self.leaf_of(id, port)).unwrap_or(0) } else { 0 };
        let key = (tensor, region.clone(), carries.then_some(id), number);
        if let Some(buf) = self.leaves.get(&key) {
            return *buf;
        }
        let buf = self.buf(tensor, false);
        self.leaves.insert(key, buf);
        let number = self.body.leaves.iter().filter(|l| l.tensor == tensor).count();
        let holds = |s: &Shard| s.tensor == tensor && s.region.contains(&region);
        let shard = self.table.shards.iter().position(holds).expect("a rank holds what it reads");
        self.body.leaves.push(Leaf { tensor, number: u32::try_from(number).unwrap_or(0), buf });
        self.table.leaves.push((shard, region));
        buf
    }

    /// Which of a use's leaves a port reads.
    fn leaf_of(&self, id: UseId, port: usize) -> usize {
        let ports = self.global.interner.get_ports(self.global.uses.get(id).ports);
        let port = &ports.entries[port];
        let leaves = &self.global.schedule.leaves[&id];
        let entry = crate::layout::Entry { rank: port.rank, region: port.region.clone(), part: port.grad };
        let gradient = self.global.interner.get(leaves.gradient);
        leaves.of[gradient.find(&entry).expect("a gradient of this use")]
    }

    /// The leaves of a use on this rank, as (position in the use's layout, leaf).
    fn leaves_here(&self, id: UseId) -> Vec<(usize, LeafId)> {
        let leaves = &self.global.schedule.leaves[&id];
        let tensor = self.global.uses.get(id).tensor;
        let mut found = vec![];
        let start = leaves.middle.partition_point(|m| m.entry.rank < self.rank);
        let here =
            leaves.middle.iter().enumerate().skip(start).take_while(|(_, m)| m.entry.rank == self.rank);
        for (index, middle) in here {
            let number = u32::try_from(index).unwrap_or(0);
            let buf = self.leaves[&(tensor, middle.entry.region.clone(), Some(id), number)];
            let leaf = self.body.leaves.iter().position(|l| l.buf == buf).expect("a leaf of this rank");
            found.push((leaves.layout.find(&middle.entry).expect("a leaf's entry"), LeafId::new(leaf)));
        }
        found.sort_unstable();
        found
    }

    pub(super) fn reduce(&mut self, group: GroupingId, uses: &[UseId]) {
        let leaves: Vec<LeafId> =
            uses.iter().flat_map(|&id| self.leaves_here(id)).map(|(_, leaf)| leaf).collect();
        if !leaves.is_empty() {
            self.push(Instr::ReduceGradients { group, leaves });
        }
    }

    pub(super) fn reduce_exactly(&mut self, id: UseId, exchange: ExchangeId, plan: &Move) {
        let Method::Exchange(pieces) = &plan.method else { unreachable!("exact reductions are exchanges") };
        let here = self.leaves_here(id);
        // Also those that nothing is taken from: they are copies, and their gradients are dropped, not added.
        let leaves: Vec<LeafId> = (pieces.sources.iter())
            .filter_map(|&source| here.iter().find(|(at, _)| *at == source).map(|(_, leaf)| *leaf))
            .collect();
        let tensor = self.global.uses.get(id).tensor;
        let shards: Vec<usize> =
            (0..self.table.shards.len()).filter(|&s| self.table.shards[s].tensor == tensor).collect();
        if !leaves.is_empty() || !shards.is_empty() {
            self.push(Instr::ExchangeGradients { exchange, leaves, shards });
        }
    }
}
