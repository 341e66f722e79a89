//! What is made of constants alone: tables of rotary embeddings, masks, positions.

use std::collections::HashSet;

use graph::{Graph, OpId, Source, TensorId};

use crate::factors::Analysis;
use crate::families::local_of;
use crate::view::View;

/// For each operator whether all that it depends on are constants and buffers that no step writes, and it gives the
/// same wherever it runs.
pub fn of_constants(graph: &Graph, analysis: &Analysis) -> Vec<bool> {
    let updated: HashSet<TensorId> = graph.updates.iter().filter_map(|(name, _)| graph.held(name)).collect();
    let mut constant = vec![false; graph.ops.len()];
    for op in graph.op_ids() {
        let is_constant = |tensor: TensorId| match graph.tensor(tensor).source {
            Source::Op { op, .. } => constant[op.index()],
            Source::Buffer { .. } => !updated.contains(&tensor),
            Source::Const { .. } => true,
            Source::Input { .. } | Source::Param { .. } => false,
        };
        constant[op.index()] =
            graph.op(op).inputs().into_iter().all(is_constant) && is_fixed(graph, analysis, op);
    }
    constant
}

/// Whether an operator gives the same for the same.
fn is_fixed(graph: &Graph, analysis: &Analysis, op: OpId) -> bool {
    let Some(rule) = &analysis.rules[op.index()] else { return false };
    let part = analysis.part(graph, op, &analysis.op(op).whole(), true, 0);
    !local_of(View::new(graph, op), rule, &part).is_random()
}
