//! Parts of operators, and how long they take.

use std::rc::Rc;

use cluster::{Device, Effort, Way};
use compiler::{Costs, Kinds};
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
pub(super) fn part(
    question: &Question<'_>,
    (needs_grad, kinds, devices): (&[bool], &Kinds, &[&Device]),
    op: OpId,
    plan: &OpPlan,
) -> Part {
    debug_assert!(plan.splits.iter().all(|split| split.on != On::Value));
    let mut costs = Costs::new(question.graph, question.analysis, op, needs_grad);
    let cost = Rc::new(costs.part(plan, 0).cost.clone());
    let dtype = question.graph.computes_in(op).unwrap_or(Dtype::F32);
    let slowest = |operations: u64, bytes: compiler::Bytes, way: Way| {
        let effort = Effort { operations: operations as f64, bytes: (bytes.read + bytes.written) as f64 };
        let sort = kinds.sort(Some(op), dtype, way);
        devices.iter().map(|device| device.seconds_of(effort, sort)).fold(0.0, f64::max)
    };
    Part {
        forward: slowest(cost.flops, cost.forward, Way::Forward),
        backward: slowest(cost.gradients.iter().sum(), cost.backward, Way::Backward),
        cost,
    }
}

pub(super) fn traits(graph: &Graph, op: OpId, cost: &Cost) -> Traits {
    let it = graph.op(op);
    let sizes = it.inputs().into_iter().chain(it.outputs.iter().flatten().copied());
    let largest = sizes.map(|tensor| graph.tensor(tensor).numel().unsigned_abs()).max().unwrap_or(0);
    Traits { operations: cost.flops, largest }
}
