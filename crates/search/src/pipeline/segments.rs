//! Where a model can be cut: in the order of operators, where little is alive.

use graph::{Graph, OpId, TensorId};
use plan::sets;

use crate::Question;

/// With more of them fewer of the places are looked at: those between modules that repeat.
const MOST: usize = 96;

pub(super) struct Segments {
    /// The segment of each operator.
    pub(super) of: Vec<usize>,
    pub(super) count: usize,
    /// For each segment the largest of the values that learn which it, or a later one, reads of those before.
    pub(super) crossing: Vec<Option<TensorId>>,
}

impl Segments {
    pub(super) fn new(question: &Question<'_>) -> Self {
        let graph = question.graph;
        let mut places = sets::cuts(graph, question.analysis);
        if places.len() >= MOST {
            let layers = sets::layers(graph, question.analysis);
            places.retain(|place| !layers.iter().any(|span| is_within(span, *place)));
        }
        let segment_of =
            (0..graph.ops.len()).map(|op| places.iter().filter(|place| **place <= op).count()).collect();
        let needs_grad = question.boundary.needs_grad(graph);
        let crossing = |place: usize| crossing(graph, &needs_grad, place);
        let crossing = [0].iter().chain(&places).map(|place| crossing(*place)).collect();
        Self { of: segment_of, count: places.len() + 1, crossing }
    }
}

fn is_within(span: &[OpId], place: usize) -> bool {
    span.iter().any(|op| op.index() < place) && span.iter().any(|op| op.index() >= place)
}

fn crossing(graph: &Graph, needs_grad: &[bool], place: usize) -> Option<TensorId> {
    let read = graph.op_ids().skip(place).flat_map(|op| graph.op(op).inputs());
    let crosses = |tensor: &TensorId| {
        let is_before = graph.producer(*tensor).is_some_and(|(maker, _)| maker.index() < place);
        is_before && needs_grad[tensor.index()]
    };
    let size = |tensor: &TensorId| {
        let it = graph.tensor(*tensor);
        it.numel().unsigned_abs() * it.dtype.bytes() as u64
    };
    read.filter(crosses).max_by_key(|tensor| (size(tensor), std::cmp::Reverse(*tensor)))
}
