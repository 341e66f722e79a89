//! A backward in two halves: what the first one leaves for the second, and what that holds meanwhile.
//!
//! The gradients of parameters wait where an operator computes them apart; on their way there are views, casts and
//! rows that are looked up, nothing that needs values. What waits holds the gradient that has arrived, and what forward
//! kept for it. All others are computed in the first half, and hold what they are; so are those of a parameter that
//! a call reads in several ways, and those for which a parameter would be read that is gathered, for that is given up
//! between the halves.

use hashing::Map;
use program::{BufId, Call, CallId, Grad, LocalOp};
use rules::families::{can_wait, needs_no_values, takes_all};

use crate::held::LocalPart;

use super::ledger::MemoryBlock;
use super::pending::Later;
use super::walk::Walk;

/// What of a call waits: leaves that are read in one way, and what is made of each without any values.
#[derive(Default)]
pub(super) struct Waits {
    /// By what is made of it, and itself.
    root: Map<BufId, BufId>,
    /// In how many ways a leaf is read.
    ways: Map<BufId, u32>,
}

impl Waits {
    /// What is made of leaves is read here.
    fn end(&mut self, read: impl IntoIterator<Item = BufId>) {
        for root in read.into_iter().filter_map(|buf| self.root.get(&buf)) {
            *self.ways.entry(*root).or_default() += 1;
        }
    }

    fn at(&self, buf: BufId) -> bool {
        self.root.get(&buf).is_some_and(|root| self.ways.get(root) == Some(&1))
    }
}

impl Walk<'_, '_> {
    pub(super) fn waits(&self, index: usize, call: &Call) -> Waits {
        let (first, leaf_of) = (self.code().first_op[index], &self.code().leaf_of);
        let mut waits = Waits::default();
        for buf in call.inputs.iter().filter(|buf| leaf_of.contains_key(buf)) {
            waits.root.insert(*buf, *buf);
        }
        for (offset, local) in call.ops.iter().enumerate() {
            let Some(part) = self.rank.parts[first + offset] else { continue };
            let read = self.learning(&part);
            match read[..] {
                [one] if needs_no_values(self.target(&part)) && waits.root.contains_key(&one) => {
                    let root = waits.root[&one];
                    waits.root.extend(local.outputs.iter().flatten().map(|buf| (*buf, root)));
                }
                _ => waits.end(read),
            }
        }
        waits.end(call.outputs.iter().copied());
        waits
    }

    /// The operator of the model that is computed.
    fn target(&self, part: &LocalPart) -> &str {
        &self.cx.facts.graph.op(part.op).target
    }

    /// The operands of an operator to which gradients flow.
    fn learning(&self, part: &LocalPart) -> Vec<BufId> {
        let uses = &self.cx.facts.op(part.op).uses;
        let binding = self.cx.finder.bindings.get(part.binding);
        binding.iter().filter(|(_, at)| uses[*at].is_some()).map(|(buf, _)| *buf).collect()
    }

    /// Of an operator's operands those whose gradients are left; `saved` is what forward kept for it.
    pub(super) fn left_of(
        &mut self,
        waits: &Waits,
        local: &LocalOp,
        part: &LocalPart,
        saved: &[MemoryBlock],
    ) -> Vec<BufId> {
        let made = local.outputs.iter().flatten().any(|buf| waits.at(*buf));
        let learning = self.learning(part).into_iter().filter(|buf| waits.at(*buf));
        match () {
            () if made => learning.collect(),
            () if can_wait(self.target(part)) => {
                let bufs: Vec<BufId> = learning.collect();
                let gathered: Vec<MemoryBlock> = self.gathered(saved).collect();
                let cost = self.cost(part);
                let binding = self.cx.finder.bindings.get(part.binding);
                let operand_of = |buf: &BufId| binding.iter().find(|(it, _)| it == buf).map(|(_, at)| *at);
                // What is summed up, such as a bias, needs no values.
                let reads = |buf: &BufId| operand_of(buf).is_none_or(|at| cost.gradients[at] > 0);
                let block_of = |buf: &BufId| waits.root.get(buf).and_then(|root| self.values[root.index()]);
                let waits = |buf: &BufId| !reads(buf) || gathered.iter().all(|it| Some(*it) == block_of(buf));
                bufs.into_iter().filter(waits).collect()
            }
            () => vec![],
        }
    }

    /// Of what is kept what is gathered.
    fn gathered<'b>(&'b self, saved: &'b [MemoryBlock]) -> impl Iterator<Item = MemoryBlock> + 'b {
        saved.iter().copied().filter(|block| self.is_gathered(*block))
    }

    /// Leaves an operator with what it needs to the second half.
    pub(super) fn leave_op(
        &mut self,
        call: CallId,
        offset: usize,
        bufs: Vec<BufId>,
        given: &[Option<MemoryBlock>],
        saved: Vec<MemoryBlock>,
    ) {
        let given = given.iter().map(|block| block.map(|block| self.ledger.keep(block))).collect();
        self.left.entry(call.0).or_default().ops.push(Later { offset, given, saved, bufs });
    }

    /// A gradient of a leaf that has arisen too early.
    pub(super) fn leave_gradient(&mut self, call: CallId, leaf: usize, block: MemoryBlock) {
        let kept = self.ledger.keep(block);
        self.ledger.release(block);
        let left = self.left.entry(call.0).or_default();
        match left.leaves.iter().position(|(known, _)| *known == leaf) {
            None => left.leaves.push((leaf, kept)),
            Some(_) => self.ledger.drop_block(kept),
        }
    }

    pub(super) fn leave_recomputed(&mut self, grad: &Grad) {
        let blocks = grad.recomputed.iter().filter_map(|buf| self.values[buf.index()]).collect::<Vec<_>>();
        let recomputed = blocks.into_iter().map(|block| self.ledger.keep(block)).collect();
        self.left.entry(grad.call.0).or_default().recomputed = recomputed;
    }

    /// The second half.
    pub(super) fn weights(&mut self, id: CallId) {
        let Some((index, call)) = self.code().call(id) else { return };
        let first = self.code().first_op[index];
        let left = self.left.remove(&id.0).unwrap_or_default();
        for (leaf, block) in left.leaves {
            let held = self.ledger.hold(block);
            self.ledger.drop_block(block);
            self.arrives_at_leaf(leaf, held);
        }
        for later in left.ops {
            let Some(part) = self.rank.parts[first + later.offset] else { continue };
            self.back_later(&call.ops[later.offset], &part, later);
        }
        left.recomputed.into_iter().for_each(|block| self.ledger.drop_block(block));
        self.release_arriving(call);
    }

    fn back_later(&mut self, local: &LocalOp, part: &LocalPart, later: Later) {
        self.ledger.at.op = Some(part.op);
        let arrived: Vec<MemoryBlock> =
            local.outputs.iter().flatten().filter_map(|buf| self.arriving[buf.index()].take()).collect();
        let there = !arrived.is_empty() || later.given.iter().any(Option::is_some);
        let made: Vec<(BufId, MemoryBlock)> = { later.bufs.iter().filter(|_| there) }
            .map(|buf| (*buf, self.ledger.make(self.bytes(*buf), crate::purpose::Purpose::Working)))
            .collect();
        let meanwhile = self.cost(part).meanwhile.backward + self.stand_in(part, &later.saved);
        self.ledger.meanwhile(if there { meanwhile } else { 0 }, crate::purpose::Purpose::Working);
        later.saved.into_iter().for_each(|block| self.ledger.drop_block(block));
        later.given.into_iter().flatten().for_each(|block| self.ledger.drop_block(block));
        arrived.into_iter().for_each(|block| self.ledger.release(block));
        for (buf, block) in made {
            match self.code().leaf_of.get(&buf).copied() {
                Some(leaf) => self.arrives_at_leaf(leaf, block),
                None => self.arriving[buf.index()] = Some(block),
            }
        }
    }

    /// Bytes in the place of a weight that is given up, for an operator that is handed it all the same.
    fn stand_in(&self, part: &LocalPart, saved: &[MemoryBlock]) -> u64 {
        if !takes_all(self.target(part)) || self.gathered(saved).next().is_none() {
            return 0;
        }
        let binding = self.cx.finder.bindings.get(part.binding);
        binding.iter().filter(|(_, at)| *at == 1).map(|(buf, _)| self.bytes(*buf)).sum()
    }
}
