//! Which operator of the graph a piece of code is: a guess from what it reads and from its arguments.
//!
//! Parts of several operators may read alike, such as `torch.arange(0, 3)` as a part of two ranges.
//! Where the guess would miss, the tables tell the operator: [`missed`].

use std::collections::{BTreeMap, HashMap};

use graph::{Graph, OpId, TensorId};
use program::{Arg, Body, Boundary, LocalOp};

pub(crate) const UNKNOWN: TensorId = TensorId(u32::MAX);

pub(crate) struct Hints<'a> {
    graph: &'a Graph,
    /// The operators that read a tensor, and those that read none.
    readers: HashMap<TensorId, Vec<OpId>>,
    sources: Vec<OpId>,
    /// The operator that was found last: the next one is probably further on.
    last: u32,
    /// Operators that the tables tell, by the position of the code in its role.
    told: BTreeMap<usize, OpId>,
    position: usize,
    needs_grad: Vec<bool>,
}

impl<'a> Hints<'a> {
    pub(crate) fn new(graph: &'a Graph, boundary: &Boundary, operators: BTreeMap<usize, OpId>) -> Self {
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
        let needs_grad = boundary.needs_grad(graph);
        Self { graph, readers, sources, last: 0, told: operators, position: 0, needs_grad }
    }

    /// Sets the operator if one is found, and gives the tensors of its outputs.
    pub(crate) fn find(&mut self, body: &Body, op: &mut LocalOp, outputs: usize) -> Vec<TensorId> {
        let candidate = self.told.get(&self.position).copied().or_else(|| self.guess(body, op, outputs));
        self.position += 1;
        let Some(id) = candidate else { return vec![UNKNOWN; outputs] };
        op.op = id;
        self.last = id.0;
        let tensors = self.graph.op(id).outputs.iter().map(|tensor| tensor.unwrap_or(UNKNOWN));
        tensors.chain(std::iter::repeat(UNKNOWN)).take(outputs).collect()
    }

    fn guess(&self, body: &Body, op: &LocalOp, outputs: usize) -> Option<OpId> {
        let tensors: Vec<TensorId> = op.inputs().map(|buf| body.buf(buf).tensor).collect();
        // A tensor that few operators read says most.
        let few = tensors.iter().filter_map(|t| self.readers.get(t)).min_by_key(|readers| readers.len());
        let candidates = if tensors.is_empty() { Some(&self.sources) } else { few };
        let best = (candidates.into_iter().flatten())
            .filter_map(|id| self.score(*id, op, &tensors, outputs).map(|score| (score, *id)))
            .max_by_key(|(score, id)| (*score, id.0 > self.last, std::cmp::Reverse(*id)));
        best.map(|(_, id)| id)
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

    pub(crate) fn needs_grad(&self, tensor: TensorId) -> bool {
        self.needs_grad.get(tensor.index()).copied().unwrap_or(true)
    }
}

/// The operators of a role's code, by position, that reading it would not guess.
pub(crate) fn missed(graph: &Graph, boundary: &Boundary, body: &Body) -> BTreeMap<usize, OpId> {
    let mut hints = Hints::new(graph, boundary, BTreeMap::new());
    let calls = body.calls();
    let mut missed = BTreeMap::new();
    for (position, op) in calls.flat_map(|call| &call.ops).enumerate() {
        let guessed = hints.guess(body, op, op.outputs.len());
        let known = (op.op.index() < graph.ops.len()).then_some(op.op);
        if let Some(op) = known.filter(|op| Some(*op) != guessed) {
            missed.insert(position, op);
        }
        hints.last = known.or(guessed).map_or(hints.last, |op| op.0);
    }
    missed
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
