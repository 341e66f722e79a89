//! Operators that are divided along the same dims: one decision for all of them.
//!
//! What is dear (products, attention, embeddings) begins a bundle, and so does what joins several large values; what
//! follows goes with the value that it reads, and what is made of weights alone with its reader. Operators that read one
//! value in the same way, such as the projections of queries, keys and values, are one bundle.

use std::collections::BTreeMap;
use std::rc::Rc;

use graph::{Graph, OpId, Source, TensorId};
use rules::Analysis;

use super::choices::Choice;
use super::messages::MessagePrice;
use super::param_sharding::DeviceReads;

/// An operator is dear if it has so many operations for each element of what it reads or makes.
const DEAR: u64 = 4;

/// The operators of each bundle, in their order; the bundle of each operator.
pub(super) struct Bundles {
    pub(super) all: Vec<Vec<OpId>>,
    pub(super) of: Vec<usize>,
}

/// One bundle under one choice, for one micro-batch.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Unary {
    /// Seconds in which it computes or copies, and in which it waits for communication.
    pub(super) price: MessagePrice,
    /// Bytes that forward keeps for backward.
    pub(super) kept: f64,
    /// Of a stage, those that one of its operators reads and makes, at most, parameters apart.
    pub(super) working: f64,
    /// And those that it keeps once it is recomputed.
    pub(super) recomputed: f64,
    /// Of each parameter that it reads.
    pub(super) held: Vec<DeviceReads>,
}

pub(super) struct Bundle {
    pub(super) ops: Vec<OpId>,
    pub(super) dims: Vec<usize>,
    pub(super) choices: Rc<Vec<Choice>>,
    pub(super) unary: Rc<Vec<Unary>>,
    /// The parameters that it reads first.
    pub(super) params: Vec<TensorId>,
}

/// What it takes to bring values from one bundle to another, and gradients back.
pub(super) struct Edge {
    pub(super) ends: (usize, usize),
    pub(super) prices: Rc<EdgePrices>,
}

/// For each choice of the first bundle and of the second. Most choices write, or read, as others do, and count once.
#[derive(Default)]
pub(super) struct EdgePrices {
    pub(super) writing_of: Vec<usize>,
    pub(super) reading_of: Vec<usize>,
    /// Of each way to write it those to read it.
    pub(super) table: Vec<Vec<MessagePrice>>,
}

impl EdgePrices {
    pub(super) fn price(&self, from: usize, to: usize) -> &MessagePrice {
        &self.table[self.writing_of[from]][self.reading_of[to]]
    }

    /// A number of each price, for all choices of the first bundle one after another.
    pub(super) fn each(&self, number: impl Fn(&MessagePrice) -> f64) -> Rc<[f64]> {
        let numbers: Vec<Vec<f64>> =
            self.table.iter().map(|prices| prices.iter().map(&number).collect()).collect();
        let mut all = Vec::with_capacity(self.writing_of.len() * self.reading_of.len());
        for writing in &self.writing_of {
            all.extend(self.reading_of.iter().map(|reading| numbers[*writing][*reading]));
        }
        all.into()
    }
}

/// What is known of an operator.
pub(super) struct Traits {
    /// Operations of forward, of the whole.
    pub(super) operations: u64,
    /// Elements of the largest operand or result.
    pub(super) largest: u64,
}

impl Traits {
    pub(super) fn is_dear(&self) -> bool {
        self.operations > DEAR * self.largest
    }
}

/// An operator of which something is demanded begins a bundle, unless the one that it would go with has the same mark. No
/// bundle has operators of two segments, which are given by operator; of what is made of weights alone it does not matter.
pub(super) fn find(
    graph: &Graph,
    analysis: &Analysis,
    traits: &[Traits],
    marks: Vec<String>,
    segments: &[usize],
) -> Bundles {
    let mut made = MadeBundle {
        segments,
        graph,
        analysis,
        traits,
        marks,
        of: vec![None; graph.ops.len()],
        begun: vec![],
        siblings: BTreeMap::new(),
    };
    graph.op_ids().for_each(|op| made.place(op));
    made.finish()
}

struct MadeBundle<'g> {
    graph: &'g Graph,
    analysis: &'g Analysis,
    traits: &'g [Traits],
    marks: Vec<String>,
    /// The segment of each operator; none if there is one.
    segments: &'g [usize],
    /// None of what is made of weights alone, until it is read.
    of: Vec<Option<usize>>,
    /// Of each bundle the operator that it begins with.
    begun: Vec<OpId>,
    /// Bundles that begin with operators of a kind that read a value at a position.
    siblings: BTreeMap<(TensorId, usize, String, usize), usize>,
}

impl MadeBundle<'_> {
    fn place(&mut self, op: OpId) {
        let inputs = self.graph.op(op).inputs();
        if self.is_of_weights(&inputs) {
            return;
        }
        let large = self.large(&inputs);
        let is_dear = self.traits[op.index()].is_dear();
        let bundle = match large[..] {
            [(one, value)] if !is_dear => {
                self.within(op, one, &inputs).unwrap_or_else(|| self.sibling(op, value, &inputs))
            }
            [(_, value)] => self.sibling(op, value, &inputs),
            _ => self.next(op),
        };
        self.of[op.index()] = Some(bundle);
        self.takes_along(&inputs, bundle);
    }

    fn segment(&self, op: OpId) -> usize {
        self.segments.get(op.index()).copied().unwrap_or(0)
    }

    fn is_marked_as(&self, op: OpId, bundle: usize) -> bool {
        let mark = &self.marks[op.index()];
        mark.is_empty() || *mark == self.marks[self.begun[bundle].index()]
    }

    /// A bundle that goes on with an operator; where that is in another segment, one of this segment that it reads, too.
    fn within(&self, op: OpId, bundle: usize, inputs: &[TensorId]) -> Option<usize> {
        let is_here = |bundle: &usize| self.segment(self.begun[*bundle]) == self.segment(op);
        let maker = |tensor: &TensorId| self.of[self.graph.producer(*tensor)?.0.index()];
        let mut all = std::iter::once(bundle).chain(inputs.iter().filter_map(maker));
        all.find(is_here).filter(|bundle| self.is_marked_as(op, *bundle))
    }

    fn next(&mut self, op: OpId) -> usize {
        self.begun.push(op);
        self.begun.len() - 1
    }

    fn is_of_weights(&self, inputs: &[TensorId]) -> bool {
        !inputs.is_empty()
            && inputs.iter().all(|tensor| match &self.graph.tensor(*tensor).source {
                Source::Op { op, .. } => self.of[op.index()].is_none(),
                Source::Input { .. } => false,
                _ => true,
            })
    }

    /// The bundles that make the largest values that are read, each with one of these.
    fn large(&self, inputs: &[TensorId]) -> Vec<(usize, TensorId)> {
        let size = |tensor: TensorId| self.graph.tensor(tensor).numel();
        let bundle = |tensor: &TensorId| {
            let (op, _) = self.graph.producer(*tensor)?;
            Some((self.of[op.index()]?, *tensor))
        };
        let all: Vec<(usize, TensorId)> = inputs.iter().filter_map(bundle).collect();
        let most = all.iter().map(|(_, tensor)| size(*tensor)).max().unwrap_or(0);
        let mut largest: Vec<(usize, TensorId)> = vec![];
        for (bundle, tensor) in all.into_iter().filter(|(_, tensor)| 2 * size(*tensor) >= most) {
            if !largest.iter().any(|(known, _)| *known == bundle) {
                largest.push((bundle, tensor));
            }
        }
        largest
    }

    fn sibling(&mut self, op: OpId, value: TensorId, inputs: &[TensorId]) -> usize {
        let position = inputs.iter().position(|tensor| *tensor == value).unwrap_or(0);
        let rule = self.analysis.rules[op.index()].as_ref().map(ToString::to_string).unwrap_or_default();
        let mark = &self.marks[op.index()];
        let key = (value, position, format!("{} {rule} {mark}", self.graph.op(op).target), self.segment(op));
        if let Some(known) = self.siblings.get(&key) {
            return *known;
        }
        let next = self.next(op);
        self.siblings.insert(key, next);
        next
    }

    /// What is made of weights goes with its first reader.
    fn takes_along(&mut self, inputs: &[TensorId], bundle: usize) {
        for tensor in inputs {
            if let Some((op, _)) = self.graph.producer(*tensor) {
                if self.of[op.index()].is_none() && self.is_marked_as(op, bundle) {
                    self.of[op.index()] = Some(bundle);
                    let before = self.graph.op(op).inputs();
                    self.takes_along(&before, bundle);
                }
            }
        }
    }

    fn finish(mut self) -> Bundles {
        let mut all = vec![];
        let mut numbers = BTreeMap::new();
        let mut bundle_of = vec![];
        for op in self.graph.op_ids() {
            let bundle = match self.of[op.index()] {
                Some(bundle) => bundle,
                None => self.next(op),
            };
            let number = *numbers.entry(bundle).or_insert_with(|| {
                all.push(vec![]);
                all.len() - 1
            });
            all[number].push(op);
            bundle_of.push(number);
        }
        Bundles { all, of: bundle_of }
    }
}
