//! Makes the tables of a space, once for what is alike.

mod between;
mod operators;
mod own;
mod part;
mod passing;
mod pieces;
mod signature;

use std::rc::Rc;

use graph::{Graph, OpId, TensorId};
use hashing::Map;
use rules::Cost;

use super::bundles::{Bundles, Traits, find};
use super::demanded::marks;
use super::digits::Digits;
use super::kept::{Keeps, Repeated, SpanReads, keeps, repeated, spans_of};
use super::messages::{Messages, Sizes, SizesId};
use super::sharding::Loops;
use crate::Question;
pub(crate) use operators::Operators;
use part::{PartTimes, traits};

/// Of which operators, on which devices, and what is sent between these.
pub(super) type Ground<'q> = (&'q Operators<'q>, &'q Digits, &'q Messages<'q>);

/// What is known while a space is made.
pub(super) struct Maker<'q> {
    pub(super) question: Question<'q>,
    pub(super) operators: &'q Operators<'q>,
    pub(super) digits: &'q Digits,
    messages: &'q Messages<'q>,
    /// The number of the kinds of devices.
    devices: usize,
    pub(super) traits: Vec<Traits>,
    /// Of each operator as a whole, and of all.
    seconds: Vec<f64>,
    of_all: f64,
    pub(super) bundles: Bundles,
    /// By operator, where runs of segments are stages.
    segments: Vec<usize>,
    keeps: Vec<Keeps>,
    /// The same if nothing is recomputed, where runs of segments are stages.
    keeps_all: Vec<Keeps>,
    span_of: Vec<Option<usize>>,
    repeated: Repeated,
    /// For each operator its loops under each choice of its bundle.
    pub(super) loops: Vec<Rc<Vec<Loops>>>,
    /// Parts by the number of the operator's text and its loops.
    parts: Map<(usize, Loops), PartTimes>,
    /// The number of each operator within its bundle.
    numbers: Vec<usize>,
    /// For each tensor the other bundles that read it, in order.
    others: Vec<Vec<usize>>,
}

impl<'q> Maker<'q> {
    pub(super) fn new(
        question: &Question<'q>,
        (operators, digits, messages): Ground<'q>,
        spans: &[Vec<OpId>],
        segments: &[usize],
    ) -> Self {
        let (graph, analysis) = (question.graph, question.analysis);
        let devices = operators.devices(messages);
        let whole: Vec<PartTimes> =
            graph.op_ids().map(|op| operators.part(op, devices, messages.count, vec![])).collect();
        let traits: Vec<Traits> =
            graph.op_ids().zip(&whole).map(|(op, part)| traits(graph, op, &part.cost)).collect();
        let costs: Vec<Cost> = whole.iter().map(|part| (*part.cost).clone()).collect();
        let bundles = find(graph, analysis, &traits, marks(question, &operators.classes), segments);
        let span_of = spans_of(graph, spans, &operators.needs_grad);
        let seconds: Vec<f64> = whole.iter().map(|part| part.forward + part.backward).collect();
        Self {
            question: *question,
            operators,
            digits,
            messages,
            devices,
            traits,
            of_all: seconds.iter().sum(),
            seconds,
            keeps: keeps(graph, &costs, &span_of, SpanReads::Any),
            keeps_all: match segments {
                [] => vec![],
                _ => keeps(graph, &costs, &vec![None; graph.ops.len()], SpanReads::Any),
            },
            repeated: repeated(graph, &costs, &span_of),
            span_of,
            loops: graph.ops.iter().map(|_| Rc::default()).collect(),
            parts: Map::default(),
            numbers: places(graph, &bundles),
            others: graph.tensor_ids().map(|tensor| others(operators, &bundles, tensor)).collect(),
            segments: segments.to_vec(),
            bundles,
        }
    }

    fn graph(&self) -> &'q Graph {
        self.question.graph
    }

    fn sizes(&self, tensor: TensorId) -> SizesId {
        self.messages.sizes(self.sizes_of(tensor))
    }

    fn sizes_of(&self, tensor: TensorId) -> Sizes {
        let width = self.graph().tensor(tensor).dtype.bytes() as u64;
        Sizes { factors: self.question.analysis.flat(tensor), width }
    }
}

/// The place of each operator in its bundle.
fn places(graph: &Graph, bundles: &Bundles) -> Vec<usize> {
    let mut places = vec![0; graph.ops.len()];
    for ops in &bundles.all {
        ops.iter().enumerate().for_each(|(number, op)| places[op.index()] = number);
    }
    places
}

fn others(operators: &Operators<'_>, bundles: &Bundles, tensor: TensorId) -> Vec<usize> {
    let Some((maker, _)) = operators.graph.producer(tensor) else { return vec![] };
    let bundle = bundles.of[maker.index()];
    let readers = operators.readers[tensor.index()].iter().map(|(op, _)| bundles.of[op.index()]);
    let mut others: Vec<usize> = readers.filter(|other| *other != bundle).collect();
    others.sort_unstable();
    others.dedup();
    others
}
