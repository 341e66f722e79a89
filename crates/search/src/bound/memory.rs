//! What any plan must recompute or offload for want of memory.
//!
//! Take the moment when a micro-batch's loss is known. What its backward needs of forward is then on devices, on hosts, or is
//! recomputed later. So are parameters and the optimizer's state, of which nothing is recomputed. All devices together have so much
//! memory; each byte more goes to a host and comes back, or its operators run once more.
//!
//! What to recompute is a minimum cut: an operator that runs once more needs its inputs, which are kept or recomputed as well. At a
//! price for each kept byte, any flow through that network costs no more than the cut ([`Needs::flow`]). One that goes from the last
//! operator to the first and takes what it can is a flow, and for layers of a chain nearly the greatest.

use std::collections::BTreeSet;

use check::{Memory, held_as};
use compiler::with_optimizer;
use diag::Result;
use graph::{Source, TensorId};
use rules::Cost;

use super::can_be_replaced;
use crate::Question;
use crate::spmd::lies_in;

/// Prices at which a flow is sent.
const PRICES: usize = 48;
/// Prices that are nearer are one.
const NEAR: f64 = 1.02;
/// How often the range of bytes that are kept is bisected.
const BISECTIONS: usize = 60;

/// What backward needs of forward: of each operator in the graph's order.
pub(super) struct Needs {
    ops: Vec<Need>,
    /// Bytes that backward needs of each value, by its memory; and of a value as a whole.
    needed: Vec<f64>,
    whole: Vec<f64>,
}

#[derive(Default)]
struct Need {
    /// To run it once more with each micro-batch, seconds of a step.
    seconds: f64,
    /// Bytes of its own that backward needs.
    more: f64,
    inputs: Vec<TensorId>,
    outputs: Vec<TensorId>,
}

/// Bytes of a model as a whole.
struct States {
    params: f64,
    optimizer: f64,
}

/// Seconds of a step, if it computes for so many with all that it needs at hand. So many bytes of parameters are trained.
pub(super) fn with_memory(
    question: &Question<'_>,
    computes: f64,
    needs: &Needs,
    trained: u64,
) -> Result<f64> {
    let devices = || (0..question.devices).map(|rank| question.cluster.device(rank));
    let memory: f64 = (0..question.devices).map(|rank| question.there(rank) as f64).sum();
    let link: f64 = devices().map(|device| device.host).sum();
    let states = States::new(question, trained)?;
    let all = needs.all();
    if states.params + states.optimizer + all <= memory {
        return Ok(computes);
    }
    let lines = needs.lines();
    let batches = f64::from(question.batches);
    let recomputes = |kept: f64| {
        computes + lines.iter().map(|(seconds, price)| seconds - price * kept).fold(0.0, f64::max)
    };
    // The state goes and comes once a step, parameters come with each micro-batch, and what is kept goes and comes.
    let offloads = |kept: f64| {
        let over = (states.params + states.optimizer + kept - memory).max(0.0);
        let of_state = over.min(states.optimizer);
        let of_params = (over - of_state).min(states.params);
        let bytes = 2.0 * of_state + batches * of_params + 2.0 * batches * (over - of_state - of_params);
        if bytes > 0.0 { bytes / link } else { 0.0 }
    };
    // The more is kept the less is recomputed, and the more offloaded.
    let (mut less, mut more) = (0.0, all);
    for _ in 0..BISECTIONS {
        let middle = f64::midpoint(less, more);
        if recomputes(middle) > offloads(middle) { less = middle } else { more = middle }
    }
    Ok(recomputes(more).max(offloads(less)))
}

impl States {
    fn new(question: &Question<'_>, trained: u64) -> Result<Self> {
        let (graph, uses) = (question.graph, question.graph.uses());
        let held = |id: TensorId| {
            let tensor = graph.tensor(id);
            let is_held = matches!(tensor.source, Source::Param { .. }) && !uses[id.index()].is_empty();
            let bytes = || tensor.numel().unsigned_abs() * held_as(tensor, question.masters).bytes() as u64;
            if is_held { bytes() } else { 0 }
        };
        let params: u64 = graph.tensor_ids().map(held).sum();
        let memory = Memory { trained: (0, trained), ..Memory::default() };
        let optimizer = with_optimizer(&[memory], question.optimizer)?[0].total();
        Ok(Self { params: params as f64, optimizer: optimizer as f64 })
    }
}

impl Needs {
    /// Of what operators cost as wholes, and seconds of a step to run each once more with each micro-batch.
    pub(super) fn new(question: &Question<'_>, costs: &[Cost], once_more: &[f64]) -> Self {
        let graph = question.graph;
        let wanted = compiler::wanted(graph, question.boundary);
        let lies_in = lies_in(graph, costs);
        let bytes = |tensor: TensorId| {
            (graph.tensor(tensor).numel().unsigned_abs() * graph.tensor(tensor).dtype.bytes() as u64) as f64
        };
        let is_made = |tensor: &TensorId| matches!(graph.tensor(*tensor).source, Source::Op { .. });
        let whole: Vec<f64> = graph.tensor_ids().map(bytes).collect();
        let mut needed = vec![0.0; graph.tensors.len()];
        let mut ops = vec![];
        for op in graph.op_ids() {
            let (it, cost) = (graph.op(op), &costs[op.index()]);
            if !wanted[op.index()] {
                ops.push(Need::default());
                continue;
            }
            let read = it.inputs();
            let is_known = !can_be_replaced(question, op);
            // Of another operator in its place it is not known what it keeps.
            if is_known {
                let inputs = cost.kept.inputs.iter().map(|at| read[*at]);
                let outputs = cost.kept.outputs.iter().filter_map(|at| it.outputs[*at]);
                for tensor in inputs.chain(outputs) {
                    let root = lies_in[tensor.index()];
                    // Of several views of a value they may be the same bytes.
                    let needed = &mut needed[root.index()];
                    *needed = f64::max(*needed, whole[tensor.index()].min(whole[root.index()]));
                }
            }
            let roots: BTreeSet<TensorId> = read.iter().map(|tensor| lies_in[tensor.index()]).collect();
            let made = it.outputs.iter().flatten().filter(|tensor| lies_in[tensor.index()] == **tensor);
            ops.push(Need {
                seconds: once_more[op.index()],
                more: if is_known { cost.kept.more as f64 } else { 0.0 },
                inputs: roots.into_iter().filter(is_made).collect(),
                outputs: made.copied().collect(),
            });
        }
        Self { ops, needed, whole }
    }

    /// Bytes of all that backward needs.
    fn all(&self) -> f64 {
        self.ops.iter().map(|op| self.bytes(op)).sum()
    }

    /// Bytes that backward needs of what an operator makes.
    fn bytes(&self, op: &Need) -> f64 {
        op.more + op.outputs.iter().map(|tensor| self.needed[tensor.index()]).sum::<f64>()
    }

    /// For each price of a byte seconds that kept bytes and what is recomputed cost together at least.
    fn lines(&self) -> Vec<(f64, f64)> {
        // At the price at which an operator's bytes cost as much as to run it, it may be one or the other.
        let all = self
            .ops
            .iter()
            .map(|op| (op.seconds, self.bytes(op)))
            .filter(|(seconds, bytes)| *seconds > 0.0 && *bytes > 0.0);
        let mut prices: Vec<f64> = all.map(|(seconds, bytes)| seconds / bytes).collect();
        prices.sort_by(f64::total_cmp);
        prices.dedup_by(|a, b| *a <= *b * NEAR);
        let step = prices.len().div_ceil(PRICES).max(1);
        prices.into_iter().step_by(step).map(|price| (self.flow(price), price)).collect()
    }

    /// Seconds that flow at the price of a byte.
    fn flow(&self, price: f64) -> f64 {
        let mut comes = vec![0.0; self.whole.len()];
        let mut flow = 0.0;
        for op in self.ops.iter().rev() {
            let of_output = |tensor: &TensorId| match self.needed[tensor.index()] {
                0.0 => comes[tensor.index()],
                needed => price * needed,
            };
            let mut left = price * op.more + op.outputs.iter().map(of_output).sum::<f64>();
            let here = left.min(op.seconds);
            (flow, left) = (flow + here, left - here);
            for input in op.inputs.iter().map(|tensor| tensor.index()).filter(|at| self.needed[*at] == 0.0) {
                let goes = left.min(price * self.whole[input] - comes[input]);
                (comes[input], left) = (comes[input] + goes, left - goes);
            }
        }
        flow
    }
}
