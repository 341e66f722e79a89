//! Values that are the same all along a factor, such as those of a new tensor or of an expanded one.

use graph::{Graph, OpId, TensorId};
use rules::{Analysis, Kind};

/// For each tensor, for each factor, whether its value is the same all along it.
pub(crate) fn factors(graph: &Graph, analysis: &Analysis, random: impl Fn(OpId) -> bool) -> Vec<Vec<bool>> {
    let mut uniform: Vec<Vec<bool>> =
        graph.tensor_ids().map(|id| vec![false; analysis.flat(id).len()]).collect();
    for op in graph.op_ids().filter(|op| !random(*op)) {
        let Some(rule) = &analysis.rules[op.index()] else { continue };
        let (dims, inputs) = (analysis.op(op), graph.op(op).inputs());
        // Along such a loop every part executes the same, and reads the same.
        let reads_the_same = |l: usize| {
            let same = |(t, carried): (&TensorId, &Vec<Option<usize>>)| {
                carried.iter().zip(&uniform[t.index()]).all(|(carried, same)| *carried != Some(l) || *same)
            };
            inputs.iter().zip(&dims.inputs).all(same)
        };
        let executes_the_same =
            |l: usize| dims.loops[l].kind == Kind::Map && !rule.dim(dims.loops[l].dim).contiguous;
        let same: Vec<bool> =
            (0..dims.loops.len()).map(|l| executes_the_same(l) && reads_the_same(l)).collect();
        for (tensor, carried) in graph.op(op).outputs.iter().zip(&dims.outputs) {
            if let Some(tensor) = tensor {
                uniform[tensor.index()] = carried.iter().map(|l| l.is_some_and(|l| same[l])).collect();
            }
        }
    }
    uniform
}
