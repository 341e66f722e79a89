//! The stages of a plan: their operators and devices, and what of each is computed again.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use graph::{Graph, OpId, TensorId};
use plan::{On, Plan, Split};

use super::parts::OperatorCost;

/// Splits that all operators of a plan have, as bits.
pub(super) type Axes = usize;

pub(super) struct Stages<'g> {
    pub(super) graph: &'g Graph,
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
    pub(super) fn new(graph: &'g Graph, plan: &Plan) -> Self {
        let mut firsts: Vec<u32> = vec![];
        let (mut stage_of, mut sample, mut blocks) = (vec![], vec![], vec![]);
        // Operators on the same devices share them, and these may be many.
        let mut known: HashMap<*const u32, u32> = HashMap::new();
        for op in graph.op_ids() {
            let devices = &plan.op(op).devices;
            let min = || devices.iter().copied().min().unwrap_or(0);
            let first = *known.entry(devices.as_ptr()).or_insert_with(min);
            let at = firsts.iter().position(|other| *other == first).unwrap_or_else(|| {
                firsts.push(first);
                sample.push(op);
                blocks.push(plan.block(op));
                firsts.len() - 1
            });
            stage_of.push(at);
        }
        let alone = |op: OpId| blocks[stage_of[op.index()]] == plan.block(op);
        let is_row = graph.op_ids().all(alone) && blocks.iter().zip(0..).all(|(block, at)| *block == at);
        let last = |op: &OpId| plan.op(*op).devices.iter().copied().max().unwrap_or(0);
        let ends = firsts.iter().zip(&sample).map(|(first, op)| [*first, last(op)]).collect();
        Self { graph, count: firsts.len(), of: stage_of, sample, ends, is_row }
    }

    /// The operators that are surely computed again: what backward needs of a span, and what that is made of, up to
    /// what somebody outside reads, which forward may keep. What reads a buffer that forward updates is in no span.
    pub(super) fn recomputed(
        &self,
        plan: &Plan,
        costs: &[Rc<OperatorCost>],
        needs_grad: &[bool],
    ) -> Vec<bool> {
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

    /// The groups of a stage along some splits of its operators.
    pub(super) fn groups(&self, plan: &Plan, stage: usize, set: Axes) -> Vec<Vec<u32>> {
        let op = plan.op(self.sample[stage]);
        let mut groups: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        let ascend = op.devices.windows(2).all(|two| two[0] < two[1]);
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
            group.extend((ascend || !group.contains(&device)).then_some(device));
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
