//! Makes the tables of a space, once for what is alike.

mod between;
mod own;
mod part;
mod passing;
mod pieces;
mod signature;

use std::collections::HashMap;
use std::rc::Rc;

use compiler::Kinds;
use graph::{Graph, OpId, TensorId};
use plan::OpPlan;
use plan::classes::Classes;
use rules::Cost;

use super::bundles::{Bundles, Traits, find};
use super::digits::Digits;
use super::kept::{Keeps, Repeated, keeps, repeated, spans_of};
use super::messages::{Messages, Sizes, SizesId};
use super::quick::Map;
use super::respects::marks;
use super::spread::Loops;
use crate::Question;
use crate::bound::arriving;
use part::{Part, part, traits};

/// What is known while a space is made.
pub(super) struct Maker<'q> {
    pub(super) question: Question<'q>,
    pub(super) digits: &'q Digits,
    messages: &'q Messages<'q>,
    pub(super) classes: Rc<Classes>,
    needs_grad: Vec<bool>,
    kinds: Kinds,
    pub(super) traits: Vec<Traits>,
    /// Of each operator as a whole.
    seconds: Vec<f64>,
    texts: Vec<Rc<str>>,
    /// The number of each text.
    likeness: Vec<usize>,
    pub(super) bundles: Bundles,
    keeps: Vec<Keeps>,
    span_of: Vec<Option<usize>>,
    repeated: Repeated,
    /// Operators that nothing needs read nothing.
    readers: Vec<Vec<(OpId, usize)>>,
    wanted: Vec<bool>,
    /// For each tensor whether its gradient can be completed further back, with fewer bytes.
    passes: Vec<bool>,
    /// For each operator its loops under each choice of its bundle.
    pub(super) loops: Vec<Rc<Vec<Loops>>>,
    /// Parts by the number of the operator's text and its loops.
    parts: Map<(usize, Loops), Part>,
    /// The number of each operator within its bundle.
    numbers: Vec<usize>,
}

impl<'q> Maker<'q> {
    pub(super) fn new(
        question: &Question<'q>,
        digits: &'q Digits,
        messages: &'q Messages<'q>,
        (spans, segments): (&[Vec<OpId>], &[usize]),
    ) -> Self {
        let (graph, analysis) = (question.graph, question.analysis);
        let needs_grad = arriving(question);
        let kinds = Kinds::of(graph);
        let whole: Vec<Part> = graph
            .op_ids()
            .map(|op| {
                part(
                    question,
                    (&needs_grad, &kinds, &messages.kinds),
                    op,
                    (&OpPlan::default(), messages.count),
                )
            })
            .collect();
        let traits: Vec<Traits> =
            graph.op_ids().zip(&whole).map(|(op, part)| traits(graph, op, &part.cost)).collect();
        let costs: Vec<Cost> = whole.iter().map(|part| (*part.cost).clone()).collect();
        let classes = Rc::new(Classes::of(graph, analysis));
        let bundles = find(graph, analysis, &traits, marks(question, &classes), segments);
        let wanted = compiler::wanted(graph, question.boundary);
        let mut readers = graph.uses();
        readers.iter_mut().for_each(|all| all.retain(|(op, _)| wanted[op.index()]));
        let span_of = spans_of(graph, spans, &needs_grad);
        let mut maker = Self {
            question: *question,
            digits,
            messages,
            classes,
            passes: passing::passes(graph, &readers, &needs_grad),
            needs_grad,
            kinds,
            traits,
            seconds: whole.iter().map(|part| part.forward + part.backward).collect(),
            texts: vec![],
            likeness: vec![],
            keeps: keeps(graph, &costs, &span_of),
            repeated: repeated(graph, &costs, &span_of),
            span_of,
            readers,
            wanted,
            loops: graph.ops.iter().map(|_| Rc::default()).collect(),
            parts: Map::default(),
            numbers: places(graph, &bundles),
            bundles,
        };
        maker.texts = graph.op_ids().map(|op| maker.signature(op)).collect();
        let mut known: HashMap<Rc<str>, usize> = HashMap::new();
        let number = |text: &Rc<str>| {
            let next = known.len();
            *known.entry(Rc::clone(text)).or_insert(next)
        };
        maker.likeness = maker.texts.iter().map(number).collect();
        maker
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
    let mut found = vec![0; graph.ops.len()];
    for ops in &bundles.all {
        ops.iter().enumerate().for_each(|(number, op)| found[op.index()] = number);
    }
    found
}
