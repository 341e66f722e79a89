//! How long the stages of a plan wait for each other.
//!
//! One tensor that a stage makes last and the next one reads is followed. Whatever in the next stage depends on it comes
//! after it: so the path from the first stage to another lies before all of that stage's work on it. In the same way the
//! gradient of that tensor leaves a stage after that work, and the stages before go on from there, to their updates.

use graph::TensorId;

use super::Load;
use super::chains::Chains;
use super::stages::Stages;

/// What stages do, and operators: seconds forward and backward, and whether forward is done again.
pub(super) struct StageWork<'w> {
    pub(super) loads: &'w [Load],
    pub(super) seconds: &'w [(f64, f64)],
    pub(super) recomputed: &'w [bool],
}

impl Stages<'_> {
    /// What a step takes at least because stages wait for each other.
    pub(super) fn piped(
        &self,
        chains: &Chains<'_>,
        StageWork { loads, seconds, recomputed }: &StageWork<'_>,
        batches: f64,
        whole: bool,
    ) -> f64 {
        let Some(crossing) = self.crossings().filter(|_| self.is_row && self.count > 1) else { return 0.0 };
        let after = self.after(&crossing);
        let paths = self.paths(&crossing, &after);
        let waits = Chains { among: Some(&paths), ..*chains }.waits();
        let (mut before, mut back, mut longest) = (0.0, loads[0].update, 0.0_f64);
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
            longest = longest.max(before + batches * (work.0 + work.1) + if whole { back } else { 0.0 });
            (before, back) = (before + path.0, back + path.1);
        }
        longest
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
        let (uses, needs_grad) = (self.graph.uses(), self.graph.needs_grad());
        let crosses = |stage: usize| {
            let made = self.graph.op_ids().rev().filter(move |op| self.of[op.index()] == stage);
            let outputs = made.flat_map(|op| self.graph.op(op).outputs.iter().flatten().copied());
            let next = |tensor: &TensorId| {
                let mut readers = uses[tensor.index()].iter();
                needs_grad[tensor.index()] && readers.any(|(reader, _)| self.of[reader.index()] == stage + 1)
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
        let mut is_above = vec![false; self.graph.ops.len()];
        let mut open = vec![tensor];
        while let Some(tensor) = open.pop() {
            let Some((maker, _)) = self.graph.producer(tensor) else { continue };
            if self.of[maker.index()] == stage && !std::mem::replace(&mut is_above[maker.index()], true) {
                open.extend(self.graph.op(maker).inputs());
            }
        }
        is_above
    }
}
