//! What a part costs, as Python sees it.

use compiler::{Costs, PartCost};
use graph::{Graph, OpId, TensorId};
use plan::OpPlan;
use pyo3::prelude::*;

use crate::model::Model;

/// A shard: its tensor's name, its shape, its type, and whether a gradient flows to or from it.
type CostShard = (String, Vec<i64>, &'static str, bool);

/// What one part of an operator costs.
#[pyclass(frozen, get_all, module = "shardwright._core")]
pub(crate) struct Cost {
    /// What it executes, its inputs being `x0`, `x1`.
    call: String,
    inputs: Vec<CostShard>,
    outputs: Vec<Option<CostShard>>,
    flops: u64,
    /// For each input the FLOPs of its gradient.
    gradients: Vec<u64>,
    /// Bytes read and written, forward and backward.
    forward: (u64, u64),
    backward: (u64, u64),
    /// What is kept for backward: which inputs, which outputs, how many bytes besides.
    kept: (Vec<usize>, Vec<usize>, u64),
    /// For each output the input in whose memory it lies.
    lies_in: Vec<Option<usize>>,
    /// For each input whether its gradient lies in the memory of that of the first output.
    passes: Vec<bool>,
    /// The most bytes, forward and backward, besides what is given and what results.
    meanwhile: (u64, u64),
}

/// An operator in one piece.
pub(crate) fn cost_of(model: &Model, id: OpId) -> Cost {
    let mut costs = Costs::new(&model.graph, &model.analysis, id, &model.needs_grad);
    Cost::new(&model.graph, id, costs.whole(), &model.needs_grad)
}

/// Its parts.
pub(crate) fn costs_of(model: &Model, id: OpId, plan: &OpPlan) -> Vec<Cost> {
    let mut costs = Costs::new(&model.graph, &model.analysis, id, &model.needs_grad);
    let cost_of = |part: &PartCost| Cost::new(&model.graph, id, part, &model.needs_grad);
    (0..plan.count()).map(|index| cost_of(costs.part(plan, index))).collect()
}

impl Cost {
    fn new(graph: &Graph, id: OpId, part: &PartCost, needs_grad: &[bool]) -> Self {
        let (op, cost) = (graph.op(id), &part.cost);
        let inputs = op.inputs();
        let shard = |tensor: TensorId, shape: &[i64], carries: bool| {
            let it = graph.tensor(tensor);
            (it.name.clone(), shape.to_vec(), it.dtype.torch(), carries)
        };
        let needs = |tensor: TensorId| needs_grad[tensor.index()];
        let learns = |input: usize| needs(inputs[input]) && op.passes_on(needs, input);
        Self {
            call: emit::call(&part.op, inputs.len()),
            inputs: (inputs.iter().zip(&part.inputs).enumerate())
                .map(|(at, (t, shape))| shard(*t, shape, learns(at)))
                .collect(),
            outputs: (op.outputs.iter().zip(&part.outputs))
                .map(|(t, shape)| t.map(|t| shard(t, shape, needs(t))))
                .collect(),
            flops: cost.flops,
            gradients: cost.gradients.clone(),
            forward: (cost.forward.read, cost.forward.written),
            backward: (cost.backward.read, cost.backward.written),
            kept: (cost.kept.inputs.clone(), cost.kept.outputs.clone(), cost.kept.more),
            lies_in: cost.lies_in.clone(),
            passes: cost.passes.clone(),
            meanwhile: (cost.meanwhile.forward, cost.meanwhile.backward),
        }
    }
}
