//! Where a model can be cut: in the order of operators, where little is alive.

use graph::{Graph, OpId};
use plan::sets;

use crate::Question;

/// With more of them fewer of the places are looked at: those between modules that repeat.
const MOST: usize = 96;

pub(super) struct Segments {
    /// The segment of each operator.
    pub(super) of: Vec<usize>,
    pub(super) count: usize,
    /// For each place between two segments the bytes of the largest value that crosses it and learns.
    pub(super) crossing: Vec<f64>,
}

impl Segments {
    pub(super) fn new(question: &Question<'_>) -> Self {
        let graph = question.graph;
        let mut places = sets::cuts(graph);
        if places.len() >= MOST {
            let layers = sets::named("replicate x recompute", graph, question.analysis, 1);
            let spans = layers.map_or_else(|_| vec![], |plan| plan.recompute);
            places.retain(|place| !spans.iter().any(|span| is_within(span, *place)));
        }
        let of = (0..graph.ops.len()).map(|op| places.iter().filter(|place| **place <= op).count()).collect();
        let needs_grad = question.boundary.needs_grad(graph);
        let crossing = |place: usize| crossing(graph, &needs_grad, place);
        let crossing = [0].iter().chain(&places).map(|place| crossing(*place)).collect();
        Self { of, count: places.len() + 1, crossing }
    }
}

fn is_within(span: &[OpId], place: usize) -> bool {
    span.iter().any(|op| op.index() < place) && span.iter().any(|op| op.index() >= place)
}

fn crossing(graph: &Graph, needs_grad: &[bool], place: usize) -> f64 {
    let mut most = 0_u64;
    for op in graph.op_ids().skip(place) {
        for tensor in graph.op(op).inputs() {
            let made = graph.producer(tensor).is_some_and(|(maker, _)| maker.index() < place);
            if made && needs_grad[tensor.index()] {
                let it = graph.tensor(tensor);
                most = most.max(it.numel().unsigned_abs() * it.dtype.bytes() as u64);
            }
        }
    }
    most as f64
}
