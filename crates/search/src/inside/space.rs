//! All ways to divide a model within a block, and what each costs: a table for each bundle and for each two of which one
//! reads the other's values.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use check::held_as;
use cluster::Effort;
use compiler::Costs;
use diag::Result;
use graph::{Arg, Dtype, Graph, OpId, Source, TensorId};
use plan::classes::Classes;
use plan::{On, OpPlan};
use rules::Cost;

use super::bundles::{Bundles, Traits, find};
use super::choices::{Choice, choices, dims, loops};
use super::digits::{COPIES, Digits, PARTIAL, Set};
use super::homes::Held;
use super::kept::{Keeps, keeps};
use super::messages::{Messages, Price, Sizes};
use super::spread::{Loops, Read, complete, elements, learns, read, splits, written};
use crate::Question;

/// What takes less of the work than this is copied, and not worth a decision,
const SMALL: f64 = 1e-4;
/// if what it makes has so many times fewer elements than what it is read with: positions, masks.
const BESIDE: u64 = 16;

/// One bundle under one choice, for one micro-batch.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Unary {
    /// Seconds in which it computes or copies, and in which it waits for communication.
    pub(super) price: Price,
    /// Bytes that forward keeps for backward.
    pub(super) kept: f64,
    /// Of each parameter that it reads.
    pub(super) held: Vec<Held>,
}

pub(super) struct Bundle {
    pub(super) ops: Vec<OpId>,
    pub(super) dims: Vec<usize>,
    pub(super) choices: Rc<Vec<Choice>>,
    pub(super) unary: Rc<Vec<Unary>>,
    /// The parameters that it reads first.
    pub(super) params: Vec<TensorId>,
}

/// What it takes to bring values from one bundle to another, and gradients back: a row for each choice of the first.
pub(super) struct Edge {
    pub(super) ends: (usize, usize),
    pub(super) prices: Rc<Vec<Price>>,
}

pub(super) struct Space<'q> {
    pub(super) question: Question<'q>,
    pub(super) digits: &'q Digits,
    pub(super) messages: &'q Messages<'q>,
    pub(super) classes: Classes,
    pub(super) bundles: Vec<Bundle>,
    pub(super) edges: Vec<Edge>,
}

/// A part of an operator: seconds of forward and backward, and bytes that are kept.
#[derive(Clone, Debug)]
struct Part {
    forward: f64,
    backward: f64,
    cost: Rc<Cost>,
}

/// What is known while a space is made.
struct Maker<'q> {
    question: Question<'q>,
    digits: &'q Digits,
    messages: &'q Messages<'q>,
    classes: Classes,
    needs_grad: Vec<bool>,
    whole: Vec<Part>,
    bundles: Bundles,
    keeps: Vec<Keeps>,
    span_of: Vec<Option<usize>>,
    readers: Vec<Vec<(OpId, usize)>>,
    /// For each operator its loops under each choice of its bundle.
    loops: Vec<Rc<Vec<Loops>>>,
    /// Parts by the operator's signature and its loops.
    parts: HashMap<(Rc<str>, Loops), Part>,
    /// The number of each operator within its bundle.
    numbers: Vec<usize>,
}

impl<'q> Space<'q> {
    pub(super) fn new(
        question: &Question<'q>,
        digits: &'q Digits,
        messages: &'q Messages<'q>,
        spans: &[Vec<OpId>],
    ) -> Result<Self> {
        let mut maker = Maker::new(question, digits, messages, spans);
        let texts: Vec<Rc<str>> = question.graph.op_ids().map(|op| maker.signature(op)).collect();
        let mut bundles: Vec<Bundle> = vec![];
        let mut signatures: Vec<Rc<str>> = vec![];
        let mut known: HashMap<Rc<str>, usize> = HashMap::new();
        let seconds: Vec<f64> = maker.whole.iter().map(|part| part.forward + part.backward).collect();
        let all: f64 = seconds.iter().sum();
        for (number, ops) in maker.bundles.all.clone().into_iter().enumerate() {
            let own: f64 = ops.iter().map(|op| seconds[op.index()]).sum();
            let dims = if own < SMALL * all && maker.is_beside(number, &ops) {
                vec![]
            } else {
                dims(question.analysis, &maker.classes, &ops, &seconds)
            };
            let signature: Rc<str> = maker.bundle_signature(number, &ops, &dims, &texts).into();
            let params = maker.params(&ops);
            if let Some(&same) = known.get(&signature) {
                for (op, other) in ops.iter().zip(bundles[same].ops.clone()) {
                    maker.loops[op.index()] = Rc::clone(&maker.loops[other.index()]);
                }
                let (choices, unary) = (Rc::clone(&bundles[same].choices), Rc::clone(&bundles[same].unary));
                let choices = if bundles[same].dims == dims {
                    choices
                } else {
                    Rc::new(renamed(&choices, &bundles[same].dims, &dims))
                };
                bundles.push(Bundle { ops, dims, choices, unary, params });
            } else {
                let is_dear = ops.iter().any(|op| maker.is_dear(*op));
                let choices = Rc::new(choices(digits, &dims, is_dear));
                for op in &ops {
                    let of = |choice| {
                        loops(question.graph, question.analysis, &maker.classes, digits, *op, choice)
                    };
                    maker.loops[op.index()] = Rc::new(choices.iter().map(of).collect());
                }
                let unary = (0..choices.len()).map(|at| maker.unary(&ops, &params, &texts, at)).collect();
                bundles.push(Bundle { ops, dims, choices, unary: Rc::new(unary), params });
                known.insert(Rc::clone(&signature), number);
            }
            signatures.push(signature);
        }
        let edges = maker.edges(&bundles, &signatures);
        Ok(Self { question: *question, digits, messages, classes: maker.classes, bundles, edges })
    }

    /// What an edge costs under choices of all bundles.
    pub(super) fn price<'e>(&self, edge: &'e Edge, values: &[usize]) -> &'e Price {
        let (from, to) = edge.ends;
        &edge.prices[values[from] * self.bundles[to].choices.len() + values[to]]
    }

    /// The loops that an operator's digits divide under a choice of its bundle.
    pub(super) fn loops(&self, op: OpId, choice: &Choice) -> Loops {
        loops(self.question.graph, self.question.analysis, &self.classes, self.digits, op, choice)
    }
}

/// Choices along other dims in the same places.
fn renamed(choices: &[Choice], from: &[usize], to: &[usize]) -> Vec<Choice> {
    let name = |dim: usize| to[from.iter().position(|it| *it == dim).expect("one of the dims")];
    choices.iter().map(|choice| choice.iter().map(|it| it.map(name)).collect()).collect()
}

impl<'q> Maker<'q> {
    fn new(
        question: &Question<'q>,
        digits: &'q Digits,
        messages: &'q Messages<'q>,
        spans: &[Vec<OpId>],
    ) -> Self {
        let (graph, analysis) = (question.graph, question.analysis);
        let needs_grad = question.boundary.needs_grad(graph);
        let seconds = |op: OpId| part(question, &needs_grad, op, &OpPlan::default());
        let whole: Vec<Part> = graph.op_ids().map(seconds).collect();
        let traits: Vec<Traits> =
            graph.op_ids().map(|op| traits(graph, op, &whole[op.index()].cost)).collect();
        let bundles = find(graph, analysis, &traits);
        let costs: Vec<Cost> = whole.iter().map(|part| (*part.cost).clone()).collect();
        let mut span_of = vec![None; graph.ops.len()];
        for (number, span) in spans.iter().enumerate() {
            span.iter().for_each(|op| span_of[op.index()] = Some(number));
        }
        let mut numbers = vec![0; graph.ops.len()];
        for ops in &bundles.all {
            ops.iter().enumerate().for_each(|(number, op)| numbers[op.index()] = number);
        }
        Self {
            question: *question,
            digits,
            messages,
            classes: Classes::of(graph, analysis),
            whole,
            keeps: keeps(graph, &costs, spans),
            bundles,
            needs_grad,
            span_of,
            readers: graph.uses(),
            loops: graph.ops.iter().map(|_| Rc::default()).collect(),
            parts: HashMap::new(),
            numbers,
        }
    }

    fn graph(&self) -> &'q Graph {
        self.question.graph
    }

    fn is_dear(&self, op: OpId) -> bool {
        let cost = &self.whole[op.index()].cost;
        cost.flops > 4 * traits(self.graph(), op, cost).largest
    }

    /// Whether what a bundle makes is small beside what others read with it.
    fn is_beside(&self, bundle: usize, ops: &[OpId]) -> bool {
        let size = |tensor: TensorId| self.graph().tensor(tensor).numel().unsigned_abs();
        let made = || ops.iter().flat_map(|op| self.graph().op(*op).outputs.iter().flatten().copied());
        let readers = made().flat_map(|tensor| &self.readers[tensor.index()]).map(|(op, _)| *op);
        let others = readers.filter(|op| self.bundles.of[op.index()] != bundle);
        let beside = others.flat_map(|op| self.graph().op(op).inputs()).map(size).max().unwrap_or(0);
        made().map(size).max().unwrap_or(0).saturating_mul(BESIDE) < beside
    }

    /// All that an operator's parts and their costs depend on, but for what its operands are.
    fn signature(&self, op: OpId) -> Rc<str> {
        let (graph, analysis) = (self.graph(), self.question.analysis);
        let it = graph.op(op);
        let of = |tensor: &TensorId| {
            let held = graph.tensor(*tensor);
            (analysis.flat(*tensor), &held.shape, held.dtype, self.needs_grad[tensor.index()])
        };
        let inputs: Vec<_> = it.inputs().iter().map(of).collect();
        let outputs: Vec<_> = it.outputs.iter().map(|tensor| tensor.as_ref().map(of)).collect();
        let (args, dims) = (plain(&it.args), analysis.op(op));
        let kwargs: Vec<_> =
            it.kwargs.iter().map(|(name, arg)| (name, plain(std::slice::from_ref(arg)))).collect();
        format!("{} {args} {kwargs:?} {dims:?} {inputs:?} {outputs:?} {}", it.target, it.no_grad).into()
    }

    /// The same of a bundle: its operators, how they are connected, and along which of its dims they go.
    fn bundle_signature(&self, number: usize, ops: &[OpId], dims: &[usize], texts: &[Rc<str>]) -> String {
        let mut text = format!("{}", dims.len());
        let first_span = ops.iter().find_map(|op| self.span_of[op.index()]);
        for op in ops {
            let source = |tensor: &TensorId| match &self.graph().tensor(*tensor).source {
                Source::Op { op, output } if self.bundles.of[op.index()] == number => {
                    format!("{}.{output}", self.numbers[op.index()])
                }
                Source::Op { op, .. } => format!("x{}", u8::from(self.span_of[op.index()] == first_span)),
                Source::Input { .. } => "i".into(),
                Source::Param { frozen, .. } => {
                    let held = held_as(self.graph().tensor(*tensor), self.question.masters);
                    format!("p{}{held:?}", u8::from(*frozen))
                }
                _ => "c".into(),
            };
            let inputs: Vec<String> = self.graph().op(*op).inputs().iter().map(source).collect();
            let along = |index| {
                let class = self.classes.of_loop(*op, index);
                dims.iter().position(|dim| *dim == class)
            };
            let along: Vec<_> = (0..self.question.analysis.op(*op).loops.len()).map(along).collect();
            let span = self.span_of[op.index()].map(|span| Some(span) == first_span);
            let leaves = self.graph().op(*op).outputs.iter().flatten().any(|tensor| self.leaves(*tensor));
            text += &format!(
                "\n{} {inputs:?} {along:?} {:?} {span:?} {leaves}",
                texts[op.index()],
                self.keeps[op.index()]
            );
        }
        text
    }

    /// Whether a tensor is needed whole on all devices.
    fn leaves(&self, tensor: TensorId) -> bool {
        let all = self.graph().outputs.iter().zip(&self.question.boundary.outputs);
        all.into_iter().any(|(it, how)| *it == Some(tensor) && *how == program::Output::Whole)
    }

    /// The parameters of which some operators are the first readers.
    fn params(&self, ops: &[OpId]) -> Vec<TensorId> {
        let mut found = vec![];
        for op in ops {
            for tensor in self.graph().op(*op).inputs() {
                let first = self.readers[tensor.index()].first().is_some_and(|(reader, _)| reader == op);
                let is_param = matches!(self.graph().tensor(tensor).source, Source::Param { .. });
                if is_param && first && !found.contains(&tensor) {
                    found.push(tensor);
                }
            }
        }
        found
    }

    fn part(&mut self, op: OpId, text: &Rc<str>, loops: &Loops) -> Part {
        let key = (Rc::clone(text), loops.clone());
        if let Some(known) = self.parts.get(&key) {
            return known.clone();
        }
        let plan = OpPlan { splits: splits(self.digits, loops), devices: vec![] };
        let made = part(&self.question, &self.needs_grad, op, &plan);
        self.parts.insert(key, made.clone());
        made
    }

    fn unary(&mut self, ops: &[OpId], params: &[TensorId], texts: &[Rc<str>], at: usize) -> Unary {
        let mut all = Unary::default();
        for op in ops {
            let loops = self.loops[op.index()][at].clone();
            let part = self.part(*op, &texts[op.index()], &loops);
            let again = if self.span_of[op.index()].is_some() { part.forward } else { 0.0 };
            let back = part.backward + again;
            all.price = all.price + Price { line: 0.0, work: part.forward + back, back };
            all.kept += self.kept(*op, &loops, &part.cost);
            let outputs: Vec<TensorId> = self.graph().op(*op).outputs.iter().flatten().copied().collect();
            for tensor in outputs {
                let own = self.bundles.of[op.index()];
                all.price = all.price + self.moved(tensor, own, (at, at));
                if self.leaves(tensor) {
                    let from = self.written(tensor, at);
                    all.price = all.price
                        + self.messages.between(&self.sizes(tensor), &from, &vec![COPIES; from.len()]);
                }
            }
        }
        all.held = params.iter().map(|tensor| self.held(*tensor, at)).collect();
        all
    }

    fn kept(&self, op: OpId, loops: &Loops, cost: &Cost) -> f64 {
        let (keeps, it) = (&self.keeps[op.index()], self.graph().op(op));
        let analysis = self.question.analysis;
        let inputs = it.inputs();
        let bytes = |tensor: TensorId, spread: &Vec<u8>| {
            let sizes = self.sizes(tensor);
            elements(&sizes.factors, self.digits, spread) * sizes.width as f64
        };
        let read = keeps.inputs.iter().map(|(at, (own, all))| {
            bytes(inputs[*at], &read(analysis, op, *at, loops).value) * *own as f64 / *all as f64
        });
        let made = keeps.outputs.iter().filter_map(|at| Some((it.outputs[*at]?, *at)));
        let made = made.map(|(tensor, at)| bytes(tensor, &written(analysis, op, at, loops)));
        read.sum::<f64>() + made.sum::<f64>() + if keeps.more { cost.kept.more as f64 } else { 0.0 }
    }

    fn sizes(&self, tensor: TensorId) -> Sizes {
        let width = self.graph().tensor(tensor).dtype.bytes() as u64;
        Sizes { factors: self.question.analysis.flat(tensor), width }
    }

    /// How a tensor lies that an operator makes, under a choice of its bundle.
    fn written(&self, tensor: TensorId, at: usize) -> Vec<u8> {
        let (op, output) = self.graph().producer(tensor).expect("an operator makes it");
        written(self.question.analysis, op, output, &self.loops[op.index()][at])
    }

    /// How a bundle reads a tensor under a choice: each way once, and whether gradients come back, and whether forward does
    /// it twice.
    fn reads(&self, tensor: TensorId, bundle: usize, at: usize) -> Vec<(Read, bool, bool)> {
        let (maker, _) = self.graph().producer(tensor).expect("an operator makes it");
        let mut found: Vec<(Read, bool, bool)> = vec![];
        for (op, input) in &self.readers[tensor.index()] {
            if self.bundles.of[op.index()] != bundle {
                continue;
            }
            let read = read(self.question.analysis, *op, *input, &self.loops[op.index()][at]);
            let learns = learns(self.graph(), &self.needs_grad, *op, *input);
            let span = self.span_of[op.index()];
            let again = span.is_some() && span == self.span_of[maker.index()];
            let same = |it: &&mut (Read, bool, bool)| {
                it.0.value == read.value && (it.0.gradient == read.gradient || !learns || !it.1)
            };
            match found.iter_mut().find(same) {
                Some(known) if learns && !known.1 => *known = (read, true, known.2 || again),
                Some(known) => known.2 |= again,
                None => found.push((read, learns, again)),
            }
        }
        found
    }

    /// What it takes to bring a tensor to a bundle, and gradients back, where makers and readers have made their choices.
    fn moved(&self, tensor: TensorId, reader: usize, (from, to): (usize, usize)) -> Price {
        let (sizes, written) = (self.sizes(tensor), self.written(tensor, from));
        self.reads(tensor, reader, to)
            .iter()
            .map(|way| self.way(&sizes, &written, way))
            .fold(Price::default(), |a, b| a + b)
    }

    fn way(&self, sizes: &Sizes, written: &Vec<u8>, (read, learns, again): &(Read, bool, bool)) -> Price {
        let forward = self.messages.between(sizes, written, &read.value);
        let again = if *again { forward.backward() } else { Price::default() };
        if !*learns {
            return forward + again;
        }
        forward + again + self.messages.between(sizes, &read.gradient, &complete(written)).backward()
    }

    fn held(&self, tensor: TensorId, at: usize) -> Held {
        let it = self.graph().tensor(tensor);
        let (op, input) = self.readers[tensor.index()][0];
        let read = read(self.question.analysis, op, input, &self.loops[op.index()][at]);
        let sizes = self.sizes(tensor);
        let width = held_as(it, self.question.masters).bytes() as f64;
        let partial = Set::of((0..self.digits.len()).filter(|at| read.gradient[*at] == PARTIAL));
        Held {
            bytes: elements(&sizes.factors, self.digits, &read.value) * width,
            partial,
            longest: it.shape.iter().copied().max().unwrap_or(1),
            is_trained: matches!(it.source, Source::Param { frozen: false, .. })
                && self.needs_grad[tensor.index()],
        }
    }

    fn edges(&self, bundles: &[Bundle], signatures: &[Rc<str>]) -> Vec<Edge> {
        let mut between: BTreeMap<(usize, usize), Vec<(TensorId, usize)>> = BTreeMap::new();
        for tensor in self.graph().tensor_ids() {
            let Some((maker, _)) = self.graph().producer(tensor) else { continue };
            let own = self.bundles.of[maker.index()];
            let mut others: Vec<usize> =
                self.readers[tensor.index()].iter().map(|(op, _)| self.bundles.of[op.index()]).collect();
            others.sort_unstable();
            others.dedup();
            others.retain(|other| *other != own);
            for other in &others {
                between.entry((own, *other)).or_default().push((tensor, others.len()));
            }
        }
        let mut known: HashMap<String, Rc<Vec<Price>>> = HashMap::new();
        let mut edges = vec![];
        for (ends, tensors) in between {
            let text = self.edge_signature(ends, &tensors, signatures);
            let prices = known.entry(text).or_insert_with(|| Rc::new(self.prices(bundles, ends, &tensors)));
            edges.push(Edge { ends, prices: Rc::clone(prices) });
        }
        edges
    }

    fn edge_signature(
        &self,
        (from, to): (usize, usize),
        tensors: &[(TensorId, usize)],
        signatures: &[Rc<str>],
    ) -> String {
        let mut text = format!("{}\n{}", signatures[from], signatures[to]);
        for (tensor, shared) in tensors {
            let (op, output) = self.graph().producer(*tensor).expect("an operator makes it");
            let readers =
                self.readers[tensor.index()].iter().filter(|(op, _)| self.bundles.of[op.index()] == to);
            let readers: Vec<_> = readers
                .map(|(reader, input)| {
                    let span = self.span_of[reader.index()];
                    (self.numbers[reader.index()], input, span.is_some() && span == self.span_of[op.index()])
                })
                .collect();
            text += &format!("\n{} {output} {readers:?} {shared}", self.numbers[op.index()]);
        }
        text
    }

    /// Of what several bundles read each bears its share: if all read it alike, it is moved once.
    fn prices(
        &self,
        bundles: &[Bundle],
        (from, to): (usize, usize),
        tensors: &[(TensorId, usize)],
    ) -> Vec<Price> {
        let (rows, columns) = (bundles[from].choices.len(), bundles[to].choices.len());
        let mut all = vec![Price::default(); rows * columns];
        for (tensor, shared) in tensors {
            let sizes = self.sizes(*tensor);
            let (writes, of_row) = distinct((0..rows).map(|at| self.written(*tensor, at)));
            let (reads, of_column) = distinct((0..columns).map(|at| self.reads(*tensor, to, at)));
            let price = |written: &Vec<u8>, ways: &Vec<(Read, bool, bool)>| {
                ways.iter().map(|way| self.way(&sizes, written, way)).fold(Price::default(), |a, b| a + b)
            };
            let table: Vec<Vec<Price>> = writes
                .iter()
                .map(|written| reads.iter().map(|ways| price(written, ways)).collect())
                .collect();
            let share = 1.0 / *shared as f64;
            for (row, write) in of_row.iter().enumerate() {
                for (column, read) in of_column.iter().enumerate() {
                    let Price { line, work, back } = table[*write][*read];
                    let sum = &mut all[row * columns + column];
                    *sum = *sum + Price { line: line * share, work: work * share, back: back * share };
                }
            }
        }
        all
    }
}

/// What is different among many, and which of these each is.
fn distinct<T: Eq + std::hash::Hash + Clone>(all: impl Iterator<Item = T>) -> (Vec<T>, Vec<usize>) {
    let mut known: HashMap<T, usize> = HashMap::new();
    let (mut found, mut of) = (vec![], vec![]);
    for it in all {
        let next = found.len();
        let at = *known.entry(it).or_insert_with_key(|it| {
            found.push(it.clone());
            next
        });
        of.push(at);
    }
    (found, of)
}

fn traits(graph: &Graph, op: OpId, cost: &Cost) -> Traits {
    let it = graph.op(op);
    let sizes = it.inputs().into_iter().chain(it.outputs.iter().flatten().copied());
    let largest = sizes.map(|tensor| graph.tensor(tensor).numel().unsigned_abs()).max().unwrap_or(0);
    Traits { operations: cost.flops, largest }
}

/// The first part of an operator, which is the largest, on the slowest device.
fn part(question: &Question<'_>, needs_grad: &[bool], op: OpId, plan: &OpPlan) -> Part {
    debug_assert!(plan.splits.iter().all(|split| split.on != On::Value));
    let mut costs = Costs::new(question.graph, question.analysis, op, needs_grad);
    let cost = Rc::new(costs.part(plan, 0).cost.clone());
    let dtype = question.graph.computes_in(op).unwrap_or(Dtype::F32);
    let slowest = |operations: u64, bytes: compiler::Bytes| {
        let effort = Effort { operations: operations as f64, bytes: (bytes.read + bytes.written) as f64 };
        question.cluster.kinds.iter().map(|kind| kind.seconds(effort, dtype)).fold(0.0, f64::max)
    };
    Part {
        forward: slowest(cost.flops, cost.forward),
        backward: slowest(cost.gradients.iter().sum(), cost.backward),
        cost,
    }
}

/// Arguments without the tensors among them.
fn plain(args: &[Arg]) -> String {
    let one = |arg: &Arg| match arg {
        Arg::Tensor(_) => "t".to_owned(),
        Arg::List(items) => plain(items),
        other => format!("{other:?}"),
    };
    format!("[{}]", args.iter().map(one).collect::<Vec<_>>().join(","))
}
