//! Parts of operators, and how long they take.

use std::rc::Rc;

use cluster::{Device, Direction, OpCost};
use compiler::{Costs, Kinds};
use graph::{Dtype, Graph, OpId};
use plan::{On, OpPlan};
use rules::{Analysis, Cost};

use super::super::bundles::Traits;
use super::super::messages::Count;
use super::pieces::{FirstPieces, is_rewritten};

/// A part of an operator: seconds of forward and backward, and what it costs.
#[derive(Clone, Debug)]
pub(super) struct PartTimes {
    pub(super) forward: f64,
    pub(super) backward: f64,
    pub(super) cost: Rc<Cost>,
}

/// The part of an operator that computes most, on the slowest device; or the first one, of which there is a device that
/// has it of all operators, where it shall be the least.
pub(super) fn part(
    (graph, analysis): (&Graph, &Analysis),
    (needs_grad, kinds, devices): (&[bool], &Kinds, &[Device]),
    op: OpId,
    (plan, count): (&OpPlan, Count),
) -> PartTimes {
    debug_assert!(plan.splits.iter().all(|split| split.on != On::Value));
    let mut costs = Costs::new(graph, analysis, op, needs_grad);
    let part = if count == Count::Least { costs.part(plan, 0) } else { costs.dearest(plan) };
    let cost = Rc::new(part.cost.clone());
    let pieces =
        is_rewritten(analysis, op, plan).then(|| FirstPieces::new(graph, analysis, needs_grad, op, plan));
    let (forward, backward) = match pieces {
        Some(Ok(pieces)) => {
            let seconds_of = |(op, mut costs, plan): (OpId, Costs<'_>, &OpPlan)| {
                seconds(&pieces.graph, &pieces.kinds, devices, op, &costs.part(plan, 0).cost)
            };
            pieces.each().map(seconds_of).fold((0.0, 0.0), |all, piece| (all.0 + piece.0, all.1 + piece.1))
        }
        _ => seconds(graph, kinds, devices, op, &cost),
    };
    PartTimes { forward, backward, cost }
}

/// Of a part, forward and backward.
fn seconds(graph: &Graph, kinds: &Kinds, devices: &[Device], op: OpId, cost: &Cost) -> (f64, f64) {
    let dtype = graph.computes_in(op).unwrap_or(Dtype::F32);
    let slowest = |operations: u64, bytes: compiler::Bytes, way: Direction| {
        let op_cost = OpCost { operations: operations as f64, bytes: (bytes.read + bytes.written) as f64 };
        let sort = kinds.sort(Some(op), dtype, way);
        devices.iter().map(|device| device.seconds_of(op_cost, sort)).fold(0.0, f64::max)
    };
    let backward = slowest(cost.gradients.iter().sum(), cost.backward, Direction::Backward);
    (slowest(cost.flops, cost.forward, Direction::Forward), backward)
}

pub(super) fn traits(graph: &Graph, op: OpId, cost: &Cost) -> Traits {
    let it = graph.op(op);
    let sizes = it.inputs().into_iter().chain(it.outputs.iter().flatten().copied());
    let largest = sizes.map(|tensor| graph.tensor(tensor).numel().unsigned_abs()).max().unwrap_or(0);
    Traits { operations: cost.flops, largest }
}
