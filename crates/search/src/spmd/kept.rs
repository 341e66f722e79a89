//! What forward keeps for backward: which operator's account each value is on.

use std::collections::BTreeSet;

use graph::{Graph, OpId, Source, TensorId};
use rules::Cost;

/// For each operator what it keeps: inputs and outputs by position, and whether it keeps what nothing else has.
#[derive(Clone, Debug, Default)]
pub(crate) struct Keeps {
    /// With the share of its elements that are there: of what is expanded it is less.
    pub(crate) inputs: Vec<(usize, KeptPart)>,
    pub(crate) outputs: Vec<usize>,
    pub(crate) more: bool,
}

impl Keeps {
    /// The values that are on this operator's account.
    pub(crate) fn tensors<'k>(&'k self, graph: &'k Graph, op: OpId) -> impl Iterator<Item = TensorId> + 'k {
        let it = graph.op(op);
        let inputs = it.inputs();
        let read = self.inputs.iter().map(move |(at, _)| inputs[*at]);
        read.chain(self.outputs.iter().filter_map(|at| it.outputs[*at]))
    }
}

/// So many elements of so many.
pub(crate) type KeptPart = (i64, i64);

/// Which of the values that a span reads of others it keeps.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum SpanReads {
    /// All, if backward needs something of it.
    Any,
    /// Those that it surely reads again.
    Surely,
}

/// A value is on the account of the first that keeps it; what lies in another's memory is the other.
pub(crate) fn keeps(
    graph: &Graph,
    costs: &[Cost],
    span_of: &[Option<usize>],
    reads: SpanReads,
) -> Vec<Keeps> {
    let repeated = repeated(graph, costs, span_of);
    let recomputed = repeated.spans(graph, span_of);
    let lies_in = lies_in(graph, costs);
    let mut seen: BTreeSet<TensorId> = BTreeSet::new();
    let mut kept = vec![];
    for op in graph.op_ids() {
        let (it, cost, op_span) = (graph.op(op), &costs[op.index()], span_of[op.index()]);
        let inputs = it.inputs();
        let mut first = |tensor: TensorId| {
            let root = lies_in[tensor.index()];
            let made = match graph.tensor(root).source {
                Source::Op { op, .. } => Some(span_of[op.index()]),
                Source::Input { .. } => Some(None),
                _ => None,
            };
            // What its own span computes again is not kept, and what another does is given to what is dear.
            made.is_some_and(|made| if op_span.is_some() { made != op_span } else { made.is_none() })
                && seen.insert(root)
        };
        let mut keeps = Keeps { more: op_span.is_none(), ..Keeps::default() };
        let is_read = match reads {
            SpanReads::Any => op_span.is_some_and(|span| recomputed.contains(&span)),
            SpanReads::Surely => repeated.ops[op.index()],
        };
        let read = (0..inputs.len()).filter(|at| cost.kept.inputs.contains(at) || is_read);
        let sizes = |tensor: TensorId| {
            let (all, stored) = (graph.tensor(tensor).numel(), graph.tensor(lies_in[tensor.index()]).numel());
            (stored.min(all), all.max(1))
        };
        keeps.inputs = read.filter(|at| first(inputs[*at])).map(|at| (at, sizes(inputs[at]))).collect();
        let made = |at: &usize| it.outputs[*at].is_some_and(&mut first);
        keeps.outputs = cost.kept.outputs.iter().copied().filter(made).collect();
        kept.push(keeps);
    }
    kept
}

/// For each value the one in whose memory it lies: most lie in their own.
pub(crate) fn lies_in(graph: &Graph, costs: &[Cost]) -> Vec<TensorId> {
    let mut lies_in: Vec<TensorId> = graph.tensor_ids().collect();
    for op in graph.op_ids() {
        let (it, cost) = (graph.op(op), &costs[op.index()]);
        let inputs = it.inputs();
        for (output, tensor) in it.outputs.iter().enumerate() {
            if let (Some(tensor), Some(input)) = (tensor, cost.lies_in.get(output).copied().flatten()) {
                lies_in[tensor.index()] = lies_in[inputs[input].index()];
            }
        }
    }
    lies_in
}

/// The span of each operator. What leads to no gradient is in none, and neither is what reads a buffer or parameter
/// that forward updates.
pub(crate) fn spans_of(graph: &Graph, spans: &[Vec<OpId>], needs_grad: &[bool]) -> Vec<Option<usize>> {
    let mut span_of = vec![None; graph.ops.len()];
    for (number, span) in spans.iter().enumerate() {
        span.iter().for_each(|op| span_of[op.index()] = Some(number));
    }
    let is_updated = |tensor: &TensorId| graph.new_value(*tensor).is_some();
    let mut teaches = needs_grad.to_vec();
    for op in graph.op_ids().rev() {
        let (made, inputs) = (&graph.op(op).outputs, graph.op(op).inputs());
        if !made.iter().flatten().any(|tensor| teaches[tensor.index()]) {
            span_of[op.index()] = None;
            continue;
        }
        inputs.iter().for_each(|tensor| teaches[tensor.index()] = true);
        if inputs.iter().any(is_updated) {
            span_of[op.index()] = None;
        }
    }
    span_of
}

/// For each operator whether backward computes it again, and for each of its inputs whether it is brought again.
pub(super) struct Repeated {
    pub(super) ops: Vec<bool>,
    pub(super) inputs: Vec<Vec<bool>>,
}

impl Repeated {
    /// The spans of which backward needs something again.
    fn spans(&self, graph: &Graph, span_of: &[Option<usize>]) -> BTreeSet<usize> {
        let needs = |op: &OpId| self.ops[op.index()] || self.inputs[op.index()].contains(&true);
        graph.op_ids().filter(needs).filter_map(|op| span_of[op.index()]).collect()
    }
}

/// What is in a span and needed again: by its own backward, by that of others in the span, or because these are computed
/// again. What others read of it is not counted.
pub(super) fn repeated(graph: &Graph, costs: &[Cost], span_of: &[Option<usize>]) -> Repeated {
    let mut repeated = Repeated { ops: vec![false; graph.ops.len()], inputs: vec![vec![]; graph.ops.len()] };
    let mut read_again = vec![false; graph.tensors.len()];
    for op in graph.op_ids().rev() {
        let (it, kept, op_span) = (graph.op(op), &costs[op.index()].kept, span_of[op.index()]);
        let is_read = it.outputs.iter().flatten().any(|tensor| read_again[tensor.index()]);
        let is_repeated = op_span.is_some() && (is_read || kept.more > 0 || !kept.outputs.is_empty());
        let mut brought = vec![];
        for (at, tensor) in it.inputs().into_iter().enumerate() {
            let span = graph.producer(tensor).and_then(|(maker, _)| span_of[maker.index()]);
            let recomputed = span.is_some() && op_span == span && (is_repeated || kept.inputs.contains(&at));
            brought.push(recomputed);
            read_again[tensor.index()] |= recomputed;
        }
        (repeated.ops[op.index()], repeated.inputs[op.index()]) = (is_repeated, brought);
    }
    repeated
}
