//! Parts of operators, and how long they take.

use std::rc::Rc;

use cluster::Effort;
use compiler::Costs;
use graph::{Dtype, Graph, OpId};
use plan::{On, OpPlan};
use rules::Cost;

use super::super::bundles::Traits;
use crate::Question;

/// A part of an operator: seconds of forward and backward, and what it costs.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) forward: f64,
    pub(super) backward: f64,
    pub(super) cost: Rc<Cost>,
}

/// The first part of an operator, which is the largest, on the slowest device.
pub(super) fn part(question: &Question<'_>, needs_grad: &[bool], op: OpId, plan: &OpPlan) -> Part {
    debug_assert!(plan.splits.iter().all(|split| split.on != On::Value));
    let mut costs = Costs::new(question.graph, question.analysis, op, needs_grad);
    let cost = Rc::new(costs.part(plan, 0).cost.clone());
    let dtype = question.graph.computes_in(op).unwrap_or(Dtype::F32);
    let slowest = |operations: u64, bytes: compiler::Bytes| {
        let effort = Effort { operations: operations as f64, bytes: (bytes.read + bytes.written) as f64 };
        question.cluster.kinds.iter().map(|kind| kind.seconds(effort, dtype)).fold(0.0, f64::max)
    };
    Part {
        forward: slowest(cost.flops, cost.forward),
        backward: slowest(cost.gradients.iter().sum(), cost.backward),
        cost,
    }
}

pub(super) fn traits(graph: &Graph, op: OpId, cost: &Cost) -> Traits {
    let it = graph.op(op);
    let sizes = it.inputs().into_iter().chain(it.outputs.iter().flatten().copied());
    let largest = sizes.map(|tensor| graph.tensor(tensor).numel().unsigned_abs()).max().unwrap_or(0);
    Traits { operations: cost.flops, largest }
}
