//! Which operator of the graph a piece of code is. A guess, for names and comments only.

use std::collections::HashMap;

use graph::{Graph, OpId, TensorId};
use program::{Arg, Body, LocalOp};

pub(super) const UNKNOWN: TensorId = TensorId(u32::MAX);

pub(super) struct Hints<'a> {
    graph: &'a Graph,
    /// The operators that read a tensor, and those that read none.
    readers: HashMap<TensorId, Vec<OpId>>,
    sources: Vec<OpId>,
    /// The operator that was found last: the next one is probably further on.
    last: u32,
    needs_grad: Vec<bool>,
}

impl<'a> Hints<'a> {
    pub(super) fn new(graph: &'a Graph) -> Self {
        let mut readers: HashMap<TensorId, Vec<OpId>> = HashMap::new();
        let mut sources = vec![];
        for id in graph.op_ids() {
            let mut inputs = graph.op(id).inputs();
            inputs.sort_unstable();
            inputs.dedup();
            if inputs.is_empty() {
                sources.push(id);
            }
            inputs.into_iter().for_each(|tensor| readers.entry(tensor).or_default().push(id));
        }
        Self { graph, readers, sources, last: 0, needs_grad: graph.needs_grad() }
    }

    /// Sets the operator if one is found, and gives the tensors of its outputs.
    pub(super) fn find(&mut self, body: &Body, op: &mut LocalOp, outputs: usize) -> Vec<TensorId> {
        let tensors: Vec<TensorId> = op.inputs().into_iter().map(|buf| body.buf(buf).tensor).collect();
        // A tensor that few operators read says most.
        let few = tensors.iter().filter_map(|t| self.readers.get(t)).min_by_key(|readers| readers.len());
        let candidates = if tensors.is_empty() { Some(&self.sources) } else { few };
        let best = (candidates.into_iter().flatten())
            .filter_map(|id| self.score(*id, op, &tensors, outputs).map(|score| (score, *id)))
            .max_by_key(|(score, id)| (*score, id.0 > self.last, std::cmp::Reverse(*id)));
        let Some((_, id)) = best else { return vec![UNKNOWN; outputs] };
        op.op = id;
        self.last = id.0;
        self.graph.op(id).outputs.iter().map(|tensor| tensor.unwrap_or(UNKNOWN)).collect()
    }

    fn score(&self, id: OpId, local: &LocalOp, tensors: &[TensorId], outputs: usize) -> Option<u32> {
        let op = self.graph.op(id);
        if op.outputs.len() != outputs {
            return None;
        }
        let inputs = op.inputs();
        let shared = tensors.iter().filter(|tensor| inputs.contains(tensor)).count();
        let same_kind = local.target.split('.').nth(1) == op.target.split('.').nth(1);
        let same_args = op.args.iter().zip(&local.args).filter(|(a, b)| same(a, b)).count();
        let exact = u32::from(op.target == local.target) * 4 + u32::from(same_kind) * 4;
        let named = op.kwargs.iter().zip(&local.kwargs).filter(|(a, b)| a.0 == b.0 && same(&a.1, &b.1));
        Some(8 * u32::try_from(shared).ok()? + exact + u32::try_from(same_args + named.count()).ok()?)
    }

    pub(super) fn needs_grad(&self, tensor: TensorId) -> bool {
        self.needs_grad.get(tensor.index()).copied().unwrap_or(true)
    }
}

fn same(a: &graph::Arg, b: &Arg) -> bool {
    match (a, b) {
        (graph::Arg::None, Arg::None) => true,
        (graph::Arg::Bool(a), Arg::Bool(b)) => a == b,
        (graph::Arg::Int(a), Arg::Int(b)) => a == b,
        (graph::Arg::Float(a), Arg::Float(b)) => a == b,
        (graph::Arg::Str(a), Arg::Str(b)) => a == b,
        (graph::Arg::Dtype(a), Arg::Dtype(b)) => a == b,
        (graph::Arg::List(a), Arg::List(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b)),
        _ => false,
    }
}
