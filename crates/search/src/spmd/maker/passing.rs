//! Which gradients can be completed further back.
//!
//! Lowering lets operators pass partial gradients on to what they read, where that is fewer bytes, or where others give
//! partial ones to the same tensor. Whether it does depends on how all of them lie: here is only whether it could.

use graph::{Graph, OpId, TensorId};

use super::super::sharding::learns;

/// What the gradients behind a tensor come to, at least, and whether others give to one of these, too.
#[derive(Clone, Copy)]
struct Behind {
    elements: u64,
    is_shared: bool,
}

/// For each tensor whether its gradient could be completed behind the operator that makes it.
pub(super) fn passes(graph: &Graph, readers: &[Vec<(OpId, usize)>], needs_grad: &[bool]) -> Vec<bool> {
    let mut behind: Vec<Option<Behind>> = vec![None; graph.tensors.len()];
    let size = |tensor: TensorId| graph.tensor(tensor).numel().unsigned_abs();
    let gives = |op: OpId, tensor: TensorId| {
        readers[tensor.index()]
            .iter()
            .any(|(reader, at)| *reader == op && learns(graph, needs_grad, *reader, *at))
    };
    let is_shared = |tensor: TensorId, op: OpId| {
        readers[tensor.index()]
            .iter()
            .any(|(reader, at)| *reader != op && learns(graph, needs_grad, *reader, *at))
    };
    for op in graph.op_ids() {
        let it = graph.op(op);
        let made: Vec<TensorId> =
            it.outputs.iter().flatten().copied().filter(|tensor| needs_grad[tensor.index()]).collect();
        let [made] = made[..] else { continue };
        let mut read: Vec<TensorId> = it.inputs().into_iter().filter(|tensor| gives(op, *tensor)).collect();
        read.sort_unstable();
        read.dedup();
        let keeps_dtype = read.iter().all(|tensor| graph.tensor(*tensor).dtype == graph.tensor(made).dtype);
        if !keeps_dtype {
            continue;
        }
        let all: u64 = read.iter().map(|tensor| size(*tensor)).sum();
        // Completed at what is read, or one of these further back.
        let here = read.iter().map(|tensor| Behind { elements: all, is_shared: is_shared(*tensor, op) });
        let further = read.iter().filter_map(|tensor| {
            let further = behind[tensor.index()]?;
            Some(Behind { elements: all - size(*tensor) + further.elements, ..further })
        });
        let least = here.chain(further).min_by_key(|it| (it.elements, !it.is_shared));
        behind[made.index()] = least;
    }
    let could = |tensor: TensorId| {
        behind[tensor.index()]
            .is_some_and(|it| it.elements < size(tensor) || it.elements == size(tensor) && it.is_shared)
    };
    graph.tensor_ids().map(could).collect()
}
