//! Calls: what their operators make and keep, and how that goes again in their backward.

use program::{BufId, Call, CallId, Grad, LocalOp, Offloaded, Saves, Which};

use crate::calls::needing;
use crate::held::LocalPart;
use crate::purpose::Purpose;

use super::ledger::MemoryBlock;
use super::lives;
use super::split_backward::Waits;
use super::walk::Walk;

impl<'a> Walk<'_, 'a> {
    pub(super) fn call(&mut self, index: usize, call: &'a Call) {
        let first = self.code().first_op[index];
        let done = lives::inside(call, &mut self.seen);
        self.arrive(&self.copies_of(call));
        let mut saved = vec![];
        for (offset, local) in call.ops.iter().enumerate() {
            let kept = match self.rank.parts[first + offset] {
                Some(part) => self.operator(local, &part, call),
                None => vec![],
            };
            saved.push(kept);
            self.drop_all(&done[offset]);
        }
        self.own_results(call);
        if call.saves.is_offloaded() {
            self.send(Offloaded::Call(call.id), saved.iter().flatten());
        }
        self.saved.insert(call.id.0, saved);
    }

    /// Gives what autograd keeps of it.
    fn operator(&mut self, local: &LocalOp, part: &LocalPart, call: &Call) -> Vec<MemoryBlock> {
        self.ledger.at.op = Some(part.op);
        let (cost, binding) = (self.cost(part), self.cx.finder.bindings.get(part.binding).clone());
        let buf_of = |input: usize| binding.iter().find(|(_, at)| *at == input).map(|(buf, _)| *buf);
        for (output, buf) in local.outputs.iter().enumerate() {
            let from = cost.lies_in.get(output).copied().flatten().and_then(buf_of);
            let from = from.filter(|from| !(lays_out(&local.target) && self.is_repeated(*from)));
            if let Some(buf) = buf {
                self.write(*buf, from.and_then(|from| self.values[from.index()]));
            }
        }
        self.ledger.meanwhile(cost.meanwhile.forward, Purpose::Working);
        if call.saves == Saves::Nothing || local.no_grad || !self.trains() {
            self.ledger.meanwhile(cost.kept.more, Purpose::Working);
            return vec![];
        }
        let inputs = cost.kept.inputs.iter().filter_map(|input| buf_of(*input));
        let outputs = cost.kept.outputs.iter().filter_map(|output| local.outputs[*output]);
        let kept = inputs.chain(outputs).filter(|buf| !self.is_dropped(*buf, call));
        let blocks: Vec<MemoryBlock> = kept.filter_map(|buf| self.values[buf.index()]).collect();
        let mut kept: Vec<MemoryBlock> = blocks.into_iter().map(|block| self.ledger.keep(block)).collect();
        if cost.kept.more > 0 {
            let more = self.ledger.make(cost.kept.more, Purpose::Working);
            kept.push(self.ledger.keep(more));
            self.ledger.release(more);
        }
        kept
    }

    /// Whether backward is given it again: an argument of the call that is no leaf, or a view of all of it.
    fn is_dropped(&self, buf: BufId, call: &Call) -> bool {
        let same = |input: &&BufId| {
            self.values[input.index()] == self.values[buf.index()] && self.bytes(**input) == self.bytes(buf)
        };
        let others = || call.inputs.iter().filter(|input| !self.code().leaf_of.contains_key(input));
        matches!(call.saves, Saves::Made { .. })
            && !self.is_repeated(buf)
            && others().any(|input| same(&input))
    }

    /// Whether a value is a view that reads some of its memory in several places.
    fn is_repeated(&self, buf: BufId) -> bool {
        let block = self.values[buf.index()];
        block.is_some_and(|block| self.ledger.bytes(block) < self.bytes(buf))
    }

    pub(super) fn grad(&mut self, grad: &Grad) {
        let Some((index, call)) = self.code().call(grad.call) else { return };
        if grad.which == Which::Weights {
            return self.weights(grad.call);
        }
        let first = self.code().first_op[index];
        self.arrive(&self.copies_of(call));
        let mut saved = self.saved.remove(&call.id.0).unwrap_or_default();
        let first_half = (grad.which == Which::Inputs).then(|| (call.id, self.waits(index, call)));
        if first_half.is_some() {
            self.leave_recomputed(grad);
        }
        let results = needing(self.cx, self.rank, call.outputs.iter().copied()).unwrap_or_default();
        for (buf, from) in results.iter().zip(&grad.from) {
            if let Some(block) = from.and_then(|from| self.values[from.index()]) {
                let block = self.ledger.hold(block);
                self.arrives(*buf, block, first_half.as_ref());
            }
        }
        for (offset, local) in call.ops.iter().enumerate().rev() {
            if let Some(part) = self.rank.parts[first + offset] {
                self.back(offset, local, &part, &mut saved[offset], first_half.as_ref());
            }
        }
        saved.into_iter().flatten().for_each(|block| self.ledger.drop_block(block));
        self.give(call, grad);
    }

    /// One operator's backward; afterwards what was kept for it is free.
    fn back(
        &mut self,
        offset: usize,
        local: &LocalOp,
        part: &LocalPart,
        saved: &mut Vec<MemoryBlock>,
        first_half: Option<&(CallId, Waits)>,
    ) {
        let left = first_half.map_or(vec![], |(_, waits)| self.left_of(waits, local, part, saved));
        let given: Vec<Option<MemoryBlock>> =
            local.outputs.iter().map(|buf| buf.and_then(|buf| self.arriving[buf.index()].take())).collect();
        let arrives = given.iter().any(Option::is_some);
        if !arrives && left.is_empty() {
            return;
        }
        self.ledger.at.op = Some(part.op);
        let (cost, binding) = (self.cost(part), self.cx.finder.bindings.get(part.binding).clone());
        let mut made = vec![];
        for (buf, position) in binding.iter() {
            if !arrives || self.cx.facts.op(part.op).uses[*position].is_none() || left.contains(buf) {
                continue;
            }
            let passed = given[0].filter(|_| cost.passes[*position]);
            let block = match passed {
                Some(block) => self.ledger.hold(block),
                None => self.ledger.make(self.bytes(*buf), Purpose::Working),
            };
            made.push((*buf, block));
        }
        self.ledger.meanwhile(if arrives { cost.meanwhile.backward } else { 0 }, Purpose::Working);
        match first_half.filter(|_| !left.is_empty()) {
            Some((call, _)) => self.leave_op(*call, offset, left, &given, std::mem::take(saved)),
            None => saved.drain(..).for_each(|block| self.ledger.drop_block(block)),
        }
        given.into_iter().flatten().for_each(|block| self.ledger.release(block));
        for (buf, block) in made {
            self.arrives(buf, block, first_half);
        }
    }

    /// A gradient inside of a call. What nobody else holds is added to in place.
    fn arrives(&mut self, buf: BufId, block: MemoryBlock, first_half: Option<&(CallId, Waits)>) {
        if let Some(leaf) = self.code().leaf_of.get(&buf).copied() {
            return match first_half {
                Some((call, _)) => self.leave_gradient(*call, leaf, block),
                None => self.arrives_at_leaf(leaf, block),
            };
        }
        let sum = match self.arriving[buf.index()].take() {
            None => block,
            Some(old) if self.ledger.is_alone(old) => {
                self.ledger.release(block);
                old
            }
            Some(old) => {
                let sum = self.ledger.make(self.ledger.bytes(block), Purpose::Working);
                self.ledger.release(old);
                self.ledger.release(block);
                sum
            }
        };
        self.arriving[buf.index()] = Some(sum);
    }

    /// The gradients of a call's inputs; zeros where none arose.
    fn give(&mut self, call: &Call, grad: &Grad) {
        let leaf_of = &self.code().leaf_of;
        let others = call.inputs.iter().copied().filter(|buf| !leaf_of.contains_key(buf));
        let inputs = needing(self.cx, self.rank, others).unwrap_or_default();
        let mut unread = vec![];
        for (buf, to) in inputs.iter().zip(&grad.to) {
            let arrived = self.arriving[buf.index()].take();
            let block = arrived.unwrap_or_else(|| self.ledger.make(self.bytes(*buf), Purpose::Working));
            match to {
                Some(to) => self.values[to.index()] = Some(block),
                None => unread.push(block),
            }
        }
        unread.into_iter().for_each(|block| self.ledger.release(block));
        self.release_arriving(call);
    }

    pub(super) fn release_arriving(&mut self, call: &Call) {
        for buf in call.ops.iter().flat_map(|op| op.outputs.iter().flatten()).chain(&call.inputs) {
            if let Some(block) = self.arriving[buf.index()].take() {
                self.ledger.release(block);
            }
        }
    }
}

/// Whether an operator, a view of what lies in order, copies what does not.
fn lays_out(target: &str) -> bool {
    matches!(target, "aten.reshape.default" | "aten.contiguous.default" | "aten.flatten.using_ints")
}
