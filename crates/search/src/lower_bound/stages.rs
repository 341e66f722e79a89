//! The stages of a plan, and how long one waits for the others.
//!
//! One tensor that a stage makes last and the next one reads is followed. Whatever in the next stage depends on it comes
//! after it: so the path from the first stage to another lies before all of that stage's work on it. In the same way the
//! gradient of that tensor leaves a stage after that work, and the stages before go on from there, to their updates.

use std::collections::BTreeMap;
use std::rc::Rc;

use graph::{Graph, OpId, TensorId};
use plan::{On, Plan, Split};

use super::Load;
use super::chains::Chains;
use super::parts::Cost;

/// Splits that all operators of a plan have, as bits.
pub(super) type Axes = usize;

/// What stages do, and operators: seconds forward and backward, and whether forward is done again.
pub(super) struct Work<'w> {
    pub(super) loads: &'w [Load],
    pub(super) seconds: &'w [(f64, f64)],
    pub(super) recomputed: &'w [bool],
}

pub(super) struct Stages<'g> {
    graph: &'g Graph,
    pub(super) count: usize,
    /// The stage of each operator: those of one run on the same devices.
    pub(super) of: Vec<usize>,
    /// For each stage an operator of it, by whose devices it is known, and the first and the last of these.
    pub(super) sample: Vec<OpId>,
    pub(super) ends: Vec<[u32; 2]>,
    /// Whether each is one block of the plan, in their order.
    pub(super) is_row: bool,
}

impl<'g> Stages<'g> {
    pub(super) fn of(graph: &'g Graph, plan: &Plan) -> Self {
        let mut firsts: Vec<u32> = vec![];
        let (mut of, mut sample, mut blocks) = (vec![], vec![], vec![]);
        for op in graph.op_ids() {
            let first = plan.op(op).devices.iter().copied().min().unwrap_or(0);
            let at = firsts.iter().position(|other| *other == first).unwrap_or_else(|| {
                firsts.push(first);
                sample.push(op);
                blocks.push(plan.block(op));
                firsts.len() - 1
            });
            of.push(at);
        }
        let alone = |op: OpId| blocks[of[op.index()]] == plan.block(op);
        let is_row = graph.op_ids().all(alone) && blocks.iter().zip(0..).all(|(block, at)| *block == at);
        let last = |op: &OpId| plan.op(*op).devices.iter().copied().max().unwrap_or(0);
        let ends = firsts.iter().zip(&sample).map(|(first, op)| [*first, last(op)]).collect();
        Self { graph, count: firsts.len(), of, sample, ends, is_row }
    }

    /// The operators that are surely computed again: what backward needs of a span, and what that is made of, up to
    /// what somebody outside reads, which forward may keep. What reads a buffer that forward updates is in no span.
    pub(super) fn recomputed(&self, plan: &Plan, costs: &[Rc<Cost>], needs_grad: &[bool]) -> Vec<bool> {
        let mut recomputed = vec![false; self.graph.ops.len()];
        let teaches = plan::teaching(self.graph, needs_grad);
        let updated =
            |op: &OpId| self.graph.op(*op).inputs().iter().any(|t| self.graph.new_value(*t).is_some());
        let uses = self.graph.uses();
        // The last span that each operator is in, and the last one that needs each tensor.
        let mut inside = vec![None; self.graph.ops.len()];
        let mut needed = vec![None; self.graph.tensors.len()];
        for (number, span) in plan.recompute.iter().enumerate() {
            let number = Some(number);
            let span: Vec<OpId> =
                span.iter().copied().filter(|op| teaches[op.index()] && !updated(op)).collect();
            span.iter().for_each(|op| inside[op.index()] = number);
            let is_own =
                |tensor: &TensorId| uses[tensor.index()].iter().all(|(op, _)| inside[op.index()] == number);
            for op in span.iter().filter(|op| costs[op.index()].backward.bytes > 0.0) {
                let inputs = self.graph.op(*op).inputs();
                costs[op.index()].kept.iter().for_each(|input| needed[inputs[*input].index()] = number);
            }
            for op in span.iter().rev() {
                let given = self.graph.op(*op);
                let mut outputs = given.outputs.iter().flatten();
                let read = outputs.any(|tensor| needed[tensor.index()] == number && is_own(tensor));
                let cost = &costs[op.index()];
                if read || cost.keeps_own && cost.backward.bytes > 0.0 {
                    recomputed[op.index()] = true;
                    given.inputs().iter().for_each(|tensor| needed[tensor.index()] = number);
                }
            }
        }
        recomputed
    }

    /// What a step takes at least because stages wait for each other.
    pub(super) fn piped(
        &self,
        chains: &Chains<'_>,
        Work { loads, seconds, recomputed }: &Work<'_>,
        (batches, whole): (f64, bool),
    ) -> f64 {
        let Some(crossing) = self.crossings().filter(|_| self.is_row && self.count > 1) else { return 0.0 };
        let after = self.after(&crossing);
        let paths = self.paths(&crossing, &after);
        let waits = Chains { among: Some(&paths), ..*chains }.waits();
        let (mut before, mut back, mut found) = (0.0, loads[0].update, 0.0_f64);
        for (stage, waits) in waits.into_iter().enumerate() {
            let ops = || self.graph.op_ids().filter(move |op| self.of[op.index()] == stage);
            let sum = |counts: &[bool]| {
                ops().filter(|op| counts[op.index()]).fold(waits, |sum, op| {
                    let (forward, backward) = seconds[op.index()];
                    let once_more = if recomputed[op.index()] { forward } else { 0.0 };
                    (sum.0 + forward, sum.1 + backward + once_more)
                })
            };
            let (work, path) = (sum(&after), sum(&paths));
            found = found.max(before + batches * (work.0 + work.1) + if whole { back } else { 0.0 });
            (before, back) = (before + path.0, back + path.1);
        }
        found
    }

    /// The operators between the tensors that are followed: those that depend on the one and make the other.
    fn paths(&self, crossing: &[TensorId], after: &[bool]) -> Vec<bool> {
        let mut paths = after.to_vec();
        for (stage, tensor) in crossing.iter().enumerate() {
            let above = self.above(*tensor, stage);
            for op in self.graph.op_ids().filter(|op| self.of[op.index()] == stage) {
                paths[op.index()] &= above[op.index()];
            }
        }
        paths
    }

    /// For each stage but the last the tensor that is followed to the next one, through which gradients flow.
    fn crossings(&self) -> Option<Vec<TensorId>> {
        let uses = self.graph.uses();
        let crosses = |stage: usize| {
            let made = self.graph.op_ids().rev().filter(move |op| self.of[op.index()] == stage);
            let outputs = made.flat_map(|op| self.graph.op(op).outputs.iter().flatten().copied());
            let next = |tensor: &TensorId| {
                uses[tensor.index()].iter().any(|(reader, _)| self.of[reader.index()] == stage + 1)
            };
            outputs.into_iter().find(next)
        };
        (0..self.count - 1).map(crosses).collect()
    }

    /// Whether an operator depends on the tensor that is followed to its stage; all of the first stage do.
    fn after(&self, crossing: &[TensorId]) -> Vec<bool> {
        let mut after = vec![false; self.graph.ops.len()];
        for op in self.graph.op_ids() {
            let stage = self.of[op.index()];
            after[op.index()] = stage == 0
                || self.graph.op(op).inputs().iter().any(|tensor| {
                    *tensor == crossing[stage - 1]
                        || self
                            .graph
                            .producer(*tensor)
                            .is_some_and(|(maker, _)| self.of[maker.index()] == stage && after[maker.index()])
                });
        }
        after
    }

    /// The operators of a stage of which a tensor is made.
    fn above(&self, tensor: TensorId, stage: usize) -> Vec<bool> {
        let mut found = vec![false; self.graph.ops.len()];
        let mut open = vec![tensor];
        while let Some(tensor) = open.pop() {
            let Some((maker, _)) = self.graph.producer(tensor) else { continue };
            if self.of[maker.index()] == stage && !std::mem::replace(&mut found[maker.index()], true) {
                open.extend(self.graph.op(maker).inputs());
            }
        }
        found
    }

    /// The groups of a stage along some splits of its operators.
    pub(super) fn groups(&self, plan: &Plan, stage: usize, set: Axes) -> Vec<Vec<u32>> {
        let op = plan.op(self.sample[stage]);
        let mut groups: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for index in 0..op.count() {
            let (mut rest, mut stride, mut first) = (index, 1, index);
            for (axis, split) in op.splits.iter().enumerate().rev() {
                if set & (1 << axis) != 0 {
                    first -= rest % split.parts * stride;
                }
                (rest, stride) = (rest / split.parts, stride * split.parts);
            }
            let (group, device) = (groups.entry(first).or_default(), op.devices[index as usize]);
            // Of several parts of a device one stands for all.
            group.extend((!group.contains(&device)).then_some(device));
        }
        groups.into_values().collect()
    }

    /// How many splits all operators have, each along one axis of the devices.
    pub(super) fn axes(&self, plan: &Plan) -> usize {
        let parts = |splits: &[Split]| splits.iter().map(|split| split.parts).collect::<Vec<_>>();
        let first = parts(&plan.op(self.sample[0]).splits);
        let same = |op: OpId| parts(&plan.op(op).splits) == first;
        if self.graph.op_ids().all(same) { first.len() } else { 0 }
    }
}

/// The loop that an operator is split along, on an axis.
pub(super) fn loop_of(split: Split) -> Option<usize> {
    if let On::Loop(at) = split.on { Some(at) } else { None }
}
