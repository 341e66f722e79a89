//! Gradients of leaves: where they arise, the messages that they are reduced in, and how they get to the shards.

use graph::Dtype;
use program::{ExchangeId, GroupingId, Instr, LeafId, Of, Program, RankId};

use crate::purpose::Purpose;

use super::ledger::MemoryBlock;
use super::walk::Walk;

impl Walk<'_, '_> {
    pub(super) fn trains(&self) -> bool {
        self.rank.body.trains()
    }

    /// The first gradient becomes the leaf's, unless somebody else holds it or it is cast; others are added in place.
    pub(super) fn arrives_at_leaf(&mut self, leaf: usize, block: MemoryBlock) {
        let fits = self.ledger.bytes(block) == self.bytes_of_gradient(leaf);
        if self.gradients[leaf].is_none() && fits && self.ledger.is_alone(block) {
            self.ledger.becomes(block, Purpose::Gradients);
            self.gradients[leaf] = Some(block);
            return;
        }
        if self.gradients[leaf].is_some() && !fits {
            self.ledger.meanwhile(self.bytes_of_gradient(leaf), Purpose::Working);
        }
        self.fill_in(leaf);
        self.ledger.release(block);
    }

    /// A gradient of its own, where a leaf has none yet.
    pub(super) fn fill_in(&mut self, leaf: usize) {
        if self.gradients[leaf].is_none() {
            let bytes = self.bytes_of_gradient(leaf);
            self.gradients[leaf] = Some(self.ledger.make(bytes, Purpose::Gradients));
        }
    }

    /// Messages of several gradients are there from step to step.
    pub(super) fn make_messages(&mut self) {
        for (index, instr) in self.rank.body.instrs().enumerate() {
            let Instr::ReduceGradients { leaves, group } = instr else { continue };
            if is_alone_in(self.cx.program, self.rank.id, *group) {
                continue;
            }
            let messages = self.new_messages(leaves);
            self.messages.insert(index, Some(messages));
        }
    }

    /// Those of an earlier step may still be there.
    fn messages_of(&mut self, index: usize, leaves: &[LeafId]) -> Vec<MemoryBlock> {
        match self.messages.get_mut(&index).map(Option::take) {
            None => vec![],
            Some(Some(known)) => known,
            Some(None) => self.new_messages(leaves),
        }
    }

    fn new_messages(&mut self, leaves: &[LeafId]) -> Vec<MemoryBlock> {
        let several = self.by_dtype(leaves).into_iter().filter(|group| group.len() > 1);
        let bytes = several.map(|group| group.iter().map(|leaf| self.bytes_of_gradient(*leaf)).sum());
        let bytes: Vec<u64> = bytes.collect();
        bytes.into_iter().map(|bytes| self.ledger.make(bytes, Purpose::Communication)).collect()
    }

    /// Several gradients of one dtype are copied into a message, and become views of it.
    pub(super) fn reduce_gradients(&mut self, index: usize, leaves: &[LeafId]) {
        let mut messages = self.messages_of(index, leaves).into_iter();
        for group in self.by_dtype(leaves) {
            group.iter().for_each(|leaf| self.fill_in(*leaf));
            let Some(message) = (group.len() > 1).then(|| messages.next()).flatten() else { continue };
            for leaf in group {
                let view = self.ledger.hold(message);
                let old = self.gradients[leaf].replace(view);
                old.into_iter().for_each(|old| self.ledger.release(old));
            }
            self.ledger.becomes(message, Purpose::Gradients);
        }
    }

    pub(super) fn by_dtype(&self, leaves: &[LeafId]) -> Vec<Vec<usize>> {
        symmetric(leaves.iter().map(|leaf| leaf.index()), |leaf| {
            self.held_as(self.rank.body.leaves[leaf].tensor)
        })
    }

    /// Gradients of leaves are given up for gradients of shards.
    pub(super) fn exchange_gradients(&mut self, id: ExchangeId, leaves: &[LeafId], shards: &[usize]) {
        self.take_arrived(0);
        leaves.iter().for_each(|leaf| self.fill_in(leaf.index()));
        let sent = self.transferred(id);
        self.ledger.meanwhile(sent, Purpose::Communication);
        for shard in shards {
            let gradient = self.gradient_of_shard(*shard);
            self.arrives_at_shard(*shard, gradient);
        }
        for leaf in leaves {
            let old = self.gradients[leaf.index()].take();
            old.into_iter().for_each(|old| self.ledger.release(old));
        }
    }

    /// At the end gradients of leaves become those of shards: of a part, in memory of the whole shard.
    pub(super) fn take_gradients(&mut self) {
        let mut made = vec![false; self.shards.len()];
        for leaf in 0..self.gradients.len() {
            let (Of::Shard(shard), region) = self.rank.own.leaf(leaf) else { continue };
            let Some(gradient) = self.gradients[leaf].take() else { continue };
            if region == self.rank.own.shard(shard) {
                continue;
            }
            if !std::mem::replace(&mut made[shard], true) {
                self.gradient_of_shard(shard);
            }
            self.ledger.release(gradient);
        }
    }
}

/// Whether a rank is by itself in its group.
pub(super) fn is_alone_in(program: &Program, rank: RankId, grouping: GroupingId) -> bool {
    program.groupings[grouping.index()].iter().any(|group| *group == [rank])
}

/// Those of one dtype together, in the order of what comes first.
pub(super) fn symmetric(
    items: impl Iterator<Item = usize>,
    dtype: impl Fn(usize) -> Dtype,
) -> Vec<Vec<usize>> {
    let mut groups: Vec<(Dtype, Vec<usize>)> = vec![];
    for item in items {
        let kind = dtype(item);
        match groups.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, items)) => items.push(item),
            None => groups.push((kind, vec![item])),
        }
    }
    groups.into_iter().map(|(_, items)| items).collect()
}
