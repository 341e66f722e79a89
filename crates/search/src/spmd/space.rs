//! All ways to divide a model within a block, and what each costs: a table for each bundle and for each two of which one
//! reads the other's values.

use std::collections::HashMap;
use std::rc::Rc;

use graph::OpId;
use plan::classes::Classes;

use super::bundles::{Bundle, Edge};
use super::choices::{Choice, loops};
use super::demanded::own_marks;
use super::digits::Digits;
use super::maker::{Ground, Maker};
use super::messages::{MessagePrice, Messages};
use super::respects::{Ties, left};
use super::sharding::Loops;
use crate::Question;

pub(super) struct Space<'q> {
    pub(super) question: Question<'q>,
    pub(super) digits: &'q Digits,
    pub(super) messages: &'q Messages<'q>,
    pub(super) classes: Rc<Classes>,
    pub(super) bundles: Vec<Bundle>,
    pub(super) edges: Vec<Edge>,
    pub(super) ties: Ties,
}

impl<'q> Space<'q> {
    /// None if constraints leave some bundle no choice, or it is late.
    pub(super) fn new(question: &Question<'q>, ground: Ground<'q>, spans: &[Vec<OpId>]) -> Option<Self> {
        let Begun { mut space, rest } = Begun::new(question, ground, spans, &[])?;
        space.edges = rest.edges(&space.bundles)?;
        Some(space)
    }

    /// What an edge costs under choices of all bundles.
    pub(super) fn price<'e>(&self, edge: &'e Edge, values: &[usize]) -> &'e MessagePrice {
        let (from, to) = edge.ends;
        edge.prices.price(values[from], values[to])
    }

    /// The loops that an operator's digits divide under a choice of its bundle.
    pub(super) fn loops(&self, op: OpId, choice: &Choice) -> Loops {
        loops(self.question.graph, self.question.analysis, &self.classes, self.digits, op, choice)
    }
}

/// A space of which is known so far what bundles cost by themselves.
pub(super) struct Begun<'q> {
    /// Without edges.
    pub(super) space: Space<'q>,
    pub(super) rest: Rest<'q>,
}

/// What is between bundles, which is asked for where what they cost by themselves does not decide.
pub(super) struct Rest<'q> {
    maker: Maker<'q>,
    /// For each bundle the first one that costs the same.
    same: Vec<usize>,
}

impl<'q> Begun<'q> {
    /// No bundle has operators of two segments, if these are given by operator; then, where a bundle has no choice, runs
    /// without it can be divided.
    pub(super) fn new(
        question: &Question<'q>,
        ground: Ground<'q>,
        spans: &[Vec<OpId>],
        segments: &[usize],
    ) -> Option<Self> {
        let mut maker = Maker::new(question, ground, spans, segments);
        let (_, digits, messages) = ground;
        let (mut bundles, mut firsts): (Vec<Bundle>, Vec<usize>) = (vec![], vec![]);
        let mut known: HashMap<Signature, usize> = HashMap::new();
        for number in 0..maker.bundles.all.len() {
            let dims = maker.dims(number);
            let signature = marked(&maker, number, &dims);
            let bundle = match known.get(&signature) {
                Some(&same) => equal(&mut maker, number, dims, &bundles[same]),
                None => fresh(&mut maker, number, dims),
            };
            if question.stop.is_late() || bundle.choices.is_empty() && segments.is_empty() {
                return None;
            }
            firsts.push(*known.entry(signature).or_insert(number));
            bundles.push(bundle);
        }
        let (ties, classes) = (Ties::new(&maker, &bundles), Rc::clone(&maker.operators.classes));
        let space = Space { question: *question, digits, messages, classes, bundles, edges: vec![], ties };
        Some(Self { space, rest: Rest { maker, same: firsts } })
    }
}

impl Rest<'_> {
    /// None where it is late.
    pub(super) fn edges(&self, bundles: &[Bundle]) -> Option<Vec<Edge>> {
        self.maker.edges(bundles, &self.same)
    }
}

/// What a bundle's costs depend on, and what is demanded of its operators.
type Signature = (Vec<usize>, Option<String>);

fn marked(maker: &Maker<'_>, number: usize, dims: &[usize]) -> Signature {
    (maker.bundle_signature(number, dims), own_marks(&maker.question, &maker.bundles.all[number]))
}

/// A bundle as none before it.
fn fresh(maker: &mut Maker<'_>, number: usize, dims: Vec<usize>) -> Bundle {
    let ops = maker.bundles.all[number].clone();
    let choices = Rc::new(left(maker, &ops, &dims));
    let (graph, analysis) = (maker.question.graph, maker.question.analysis);
    for op in &ops {
        let loops_of = |choice| loops(graph, analysis, &maker.operators.classes, maker.digits, *op, choice);
        maker.loops[op.index()] = Rc::new(choices.iter().map(loops_of).collect());
    }
    let params = maker.params(&ops);
    let unary = (0..choices.len()).map(|at| maker.unary(&ops, &params, at)).collect();
    Bundle { ops, dims, choices, unary: Rc::new(unary), params }
}

/// A bundle of which all costs are known of another.
fn equal(maker: &mut Maker<'_>, number: usize, dims: Vec<usize>, other: &Bundle) -> Bundle {
    let ops = maker.bundles.all[number].clone();
    for (op, same) in ops.iter().zip(&other.ops) {
        maker.loops[op.index()] = Rc::clone(&maker.loops[same.index()]);
    }
    let choices = match other.dims == dims {
        true => Rc::clone(&other.choices),
        false => Rc::new(renamed(&other.choices, &other.dims, &dims)),
    };
    Bundle { params: maker.params(&ops), ops, dims, choices, unary: Rc::clone(&other.unary) }
}

/// Choices along other dims in the same places.
fn renamed(choices: &[Choice], from: &[usize], to: &[usize]) -> Vec<Choice> {
    let name = |dim: usize| to[from.iter().position(|it| *it == dim).expect("one of the dims")];
    choices.iter().map(|choice| choice.iter().map(|it| it.map(name)).collect()).collect()
}
