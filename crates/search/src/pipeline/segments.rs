//! Where a model can be cut: in the order of operators, where little is alive.

use std::collections::BTreeSet;

use graph::{Graph, OpId, TensorId};
use plan::sets;
use rules::of_constants;

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
        let segment = |op: usize| places.iter().filter(|place| **place <= op).count();
        let mut segment_of: Vec<usize> = (0..graph.ops.len()).map(segment).collect();
        let needs_grad = question.boundary.needs_grad(graph);
        join_readers(graph, &needs_grad, &mut segment_of);
        let count = number_anew(&mut segment_of, &of_constants(graph, question.analysis));
        let crossing = (0..count).map(|at| crossing(graph, &needs_grad, &segment_of, at)).collect();
        Self { of: segment_of, count, crossing }
    }
}

/// Without segments that have no operators or nothing but constants, which go with the next one; how many there are.
fn number_anew(segment_of: &mut [usize], constant: &[bool]) -> usize {
    let all = segment_of.iter().zip(constant);
    let used: BTreeSet<usize> =
        all.filter(|(_, constant)| !**constant).map(|(segment, _)| *segment).collect();
    let last = used.len().saturating_sub(1);
    segment_of.iter_mut().for_each(|segment| *segment = used.range(..*segment).count().min(last));
    last + 1
}

/// What reads a parameter that an earlier segment reads as well joins that, if it waits for nothing that learns: then one
/// stage less may hold the parameter. A decoder looks its tokens up where the encoder does.
fn join_readers(graph: &Graph, needs_grad: &[bool], segment_of: &mut [usize]) {
    let uses = graph.uses();
    for tensor in graph.tensor_ids().filter(|tensor| graph.is_parameter(*tensor)) {
        let readers = || uses[tensor.index()].iter().map(|(op, _)| *op);
        let Some(first) = readers().map(|op| segment_of[op.index()]).min() else { continue };
        for op in readers() {
            if let Some(before) =
                before(graph, needs_grad, (op, tensor), &|op| segment_of[op.index()] > first)
            {
                before.into_iter().for_each(|op| segment_of[op.index()] = first);
            }
        }
    }
}

/// A reader of a parameter and all that it waits for among some operators, if nothing of that learns or reads another
/// parameter: what is frozen may be most of a model.
fn before(
    graph: &Graph,
    needs_grad: &[bool],
    (reader, param): (OpId, TensorId),
    is_among: &dyn Fn(OpId) -> bool,
) -> Option<Vec<OpId>> {
    let (mut ops, mut at) = (vec![reader], 0);
    while let Some(op) = ops.get(at).copied().filter(|op| is_among(*op)) {
        for tensor in graph.op(op).inputs().into_iter().filter(|tensor| *tensor != param) {
            if needs_grad[tensor.index()] || graph.is_parameter(tensor) {
                return None;
            }
            let maker = graph.producer(tensor).map(|(maker, _)| maker);
            ops.extend(maker.filter(|maker| is_among(*maker) && !ops.contains(maker)));
        }
        at += 1;
    }
    (at > 0).then_some(ops)
}

fn is_within(span: &[OpId], place: usize) -> bool {
    span.iter().any(|op| op.index() < place) && span.iter().any(|op| op.index() >= place)
}

fn crossing(graph: &Graph, needs_grad: &[bool], segment_of: &[usize], segment: usize) -> Option<TensorId> {
    let later = graph.op_ids().filter(|op| segment_of[op.index()] >= segment);
    let crosses = |tensor: &TensorId| {
        let is_before = graph.producer(*tensor).is_some_and(|(maker, _)| segment_of[maker.index()] < segment);
        is_before && needs_grad[tensor.index()]
    };
    let size = |tensor: &TensorId| graph.tensor(*tensor).bytes();
    let read = later.flat_map(|op| graph.op(op).inputs()).filter(crosses);
    read.max_by_key(|tensor| (size(tensor), std::cmp::Reverse(*tensor)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An encoder and a decoder that look tokens up in one table.
    const TWO: &str = r#"shardwright-graph 1
model "Two"
in_spec "{\"tree\":[1,{\"type\":\"builtins.tuple\",\"context\":\"null\",\"children_spec\":[]}],\"leaves\":[]}"
out_spec "{\"tree\":[1,{\"type\":null,\"context\":null,\"children_spec\":[]}],\"leaves\":[\"*\"]}"
module "" "Two"
input %words i64[4,8] 0
input %labels i64[4,8] 1
param %table f32[32,16] "table"
param %up f32[16,16] "up"
op %x f32[4,8,16] = aten.embedding.default(%table, %words) in "" at "two.py:1"
op %u f32[4,8,16] = aten.linear.default(%x, %up) in "" at "two.py:2"
op %is_none bool[4,8] = aten.eq.Scalar(%labels, -100) in "" at "two.py:3"
op %known i64[4,8] = aten.masked_fill.Scalar(%labels, %is_none, 0) in "" at "two.py:3"
op %y f32[4,8,16] = aten.embedding.default(%table, %known) in "" at "two.py:4"
op %z f32[4,8,16] = aten.add.Tensor(%y, %u) in "" at "two.py:5"
op %logits f32[4,8,32] = aten.linear.default(%z, %table) in "" at "two.py:6"
op %loss f32[] = aten.sum.default(%logits) in "" at "two.py:7"
output %loss
"#;

    #[test]
    fn what_waits_for_nothing_joins_the_first_reader_of_its_parameter() {
        let graph: Graph = TWO.parse().expect("it parses");
        let mut segments = vec![0, 1, 2, 2, 2, 2, 3, 3];
        join_readers(&graph, &graph.needs_grad(), &mut segments);
        // The head reads the table as well, but waits for all others.
        assert_eq!(segments, [0, 1, 0, 0, 0, 2, 3, 3]);
        segments[5] = 3;
        assert_eq!(number_anew(&mut segments, &[false; 8]), 3);
        assert_eq!(segments, [0, 1, 0, 0, 0, 2, 2, 2]);
        // What the decoder looks up crosses from the first segment to the last.
        let crossing = |at| crossing(&graph, &graph.needs_grad(), &segments, at);
        assert_eq!(
            [0, 1, 2].map(crossing).map(|it| it.map(|it| graph.tensor(it).name.as_str())),
            [None, Some("x"), Some("u")]
        );
    }

    #[test]
    fn what_reads_other_parameters_stays() {
        let text = TWO.replace("param %up", "param %none i64[8] \"none\" frozen\nparam %up");
        let text = text.replace("aten.eq.Scalar(%labels, -100)", "aten.eq.Tensor(%labels, %none)");
        let graph: Graph = text.parse().expect("it parses");
        let mut segments = vec![0, 1, 2, 2, 2, 2, 3, 3];
        join_readers(&graph, &graph.needs_grad(), &mut segments);
        assert_eq!(segments, [0, 1, 2, 2, 2, 2, 3, 3]);
    }

    #[test]
    fn no_segment_is_nothing_but_constants() {
        let mut segments = vec![0, 0, 1, 3, 3, 4];
        let constant = [false, true, true, false, false, true];
        assert_eq!(number_anew(&mut segments, &constant), 2);
        assert_eq!(segments, [0, 0, 1, 1, 1, 1]);
    }
}
