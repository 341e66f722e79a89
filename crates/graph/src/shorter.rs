//! The same model with fewer of the layers that it repeats.
//!
//! What is asked of a deep model can often be asked of a shallow one: what a plan costs grows by as much with each
//! layer. Layers are found by what they do, not by their names: operators that repeat themselves after so many others,
//! each of which reads what the one before it read, or what the one a layer earlier made.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::{Arg, Graph, Op, OpId, Source, TensorId};

/// Operators that repeat: from `begin` on, `period` of them, so many `times`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repeats {
    pub begin: usize,
    pub period: usize,
    pub times: usize,
}

impl Repeats {
    /// One past the last operator.
    pub fn end(self) -> usize {
        self.begin + self.period * self.times
    }
}

/// The runs of layers of a model, in its order. Those that repeat fewer times than `minimum` are none.
pub fn repeats(graph: &Graph, minimum: usize) -> Vec<Repeats> {
    let signatures: Vec<u64> = graph.ops.iter().map(|op| signature(graph, op)).collect();
    let mut runs = vec![];
    let mut open = vec![(0, graph.ops.len())];
    while let Some((begin, end)) = open.pop() {
        if let Some(run) = longest(graph, &signatures, begin, end, minimum.max(2)) {
            open.extend([(begin, run.begin), (run.end(), end)]);
            runs.push(run);
        }
    }
    runs.sort_by_key(|run| run.begin);
    runs
}

/// The model with so many layers less of a run, or nothing if what comes later reads one of those.
pub fn shorter(graph: &Graph, run: Repeats, less: usize) -> Option<Graph> {
    assert!(less + 2 <= run.times, "a run has its first and its last layer");
    let removed = run.begin + run.period..run.begin + run.period * (1 + less);
    let back = run.period * less;
    let mut tensors: HashMap<TensorId, TensorId> = HashMap::new();
    // What a layer gives to the next one, the last layer that is left gives.
    for id in removed.end..run.end() {
        let (later, earlier) = (graph.ops[id].inputs(), graph.ops[id - back].inputs());
        for (reads, instead) in later.into_iter().zip(earlier) {
            if graph.producer(reads).is_some_and(|(op, _)| removed.contains(&op.index())) {
                let known = *tensors.entry(reads).or_insert(instead);
                let kept = graph.producer(instead).is_none_or(|(op, _)| !removed.contains(&op.index()));
                if known != instead || !kept {
                    return None;
                }
            }
        }
    }
    // What comes after the last layer reads that one, or none.
    let reads_removed = |op: &Op| {
        let made = op.inputs().into_iter().filter_map(|id| graph.producer(id));
        made.into_iter().any(|(op, _)| removed.contains(&op.index()))
    };
    if graph.ops[run.end()..].iter().any(reads_removed) {
        return None;
    }
    let kept: Vec<usize> = (0..graph.ops.len()).filter(|id| !removed.contains(id)).collect();
    Rewired { graph, kept: &kept, instead: &tensors }.graph()
}

/// The longest run of operators between two.
fn longest(graph: &Graph, signatures: &[u64], begin: usize, end: usize, minimum: usize) -> Option<Repeats> {
    let mut best: Option<Repeats> = None;
    for period in 1..=(end - begin) / minimum {
        let covers = |run: Repeats| run.period * run.times;
        let mut at = begin;
        while at + period < end {
            let same = |id: &usize| {
                signatures[*id] == signatures[id + period] && is_same(graph, *id, id + period, period)
            };
            let count = (at..end - period).take_while(same).count();
            let run = Repeats { begin: at, period, times: count / period + 1 };
            // Of the same operators a shorter period says more.
            if run.times >= minimum && best.is_none_or(|known| covers(known) < covers(run)) {
                best = Some(run);
            }
            at += count + 1;
        }
    }
    best
}

/// Whether an operator does what one a period earlier does.
fn is_same(graph: &Graph, one: usize, other: usize, period: usize) -> bool {
    let (one, other) = (&graph.ops[one], &graph.ops[other]);
    let are_same = |a: &[Arg], b: &[Arg]| {
        a.len() == b.len() && a.iter().zip(b).all(|(a, b)| is_same_arg(graph, a, b, period))
    };
    let kwargs = |op: &Op| op.kwargs.iter().map(|(_, arg)| arg.clone()).collect::<Vec<_>>();
    one.target == other.target && are_same(&one.args, &other.args) && are_same(&kwargs(one), &kwargs(other))
}

fn is_same_arg(graph: &Graph, a: &Arg, b: &Arg, period: usize) -> bool {
    match (a, b) {
        (Arg::Tensor(a), Arg::Tensor(b)) => a == b || moves_on(graph, *a, *b, period),
        (Arg::List(a), Arg::List(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| is_same_arg(graph, a, b, period))
        }
        (a, b) => a == b,
    }
}

/// Whether a tensor is to one layer what another one is to the layer before.
fn moves_on(graph: &Graph, a: TensorId, b: TensorId, period: usize) -> bool {
    let (one, other) = (graph.tensor(a), graph.tensor(b));
    let are_equivalent = match (&one.source, &other.source) {
        (Source::Op { op: a, output: x }, Source::Op { op: b, output: y }) => {
            a.index() + period == b.index() && x == y
        }
        (Source::Param { frozen: a, names: x }, Source::Param { frozen: b, names: y }) => {
            a == b && x.len() == y.len()
        }
        (Source::Buffer { persistent: a, .. }, Source::Buffer { persistent: b, .. }) => a == b,
        (Source::Const { .. }, Source::Const { .. }) => true,
        _ => false,
    };
    are_equivalent && one.dtype == other.dtype && one.shape == other.shape
}

/// What of an operator does not depend on where it is.
fn signature(graph: &Graph, op: &Op) -> u64 {
    let mut hasher = DefaultHasher::new();
    let shape = |id: TensorId| (graph.tensor(id).dtype.short(), &graph.tensor(id).shape);
    op.target.hash(&mut hasher);
    (op.no_grad, op.spans.len(), &op.order).hash(&mut hasher);
    op.inputs().into_iter().map(shape).for_each(|it| it.hash(&mut hasher));
    op.outputs.iter().map(|id| id.map(shape)).for_each(|it| it.hash(&mut hasher));
    op.kwargs.iter().for_each(|(key, _)| key.hash(&mut hasher));
    hasher.finish()
}

/// Some operators of a graph, that read some tensors instead of others.
struct Rewired<'g> {
    graph: &'g Graph,
    kept: &'g [usize],
    instead: &'g HashMap<TensorId, TensorId>,
}

impl Rewired<'_> {
    fn graph(&self) -> Option<Graph> {
        let Graph { outputs, updates, .. } = self.graph;
        let places: HashMap<usize, usize> = self.kept.iter().enumerate().map(|(at, id)| (*id, at)).collect();
        let is_read = self.is_read();
        let is_kept = |id: TensorId| match self.graph.tensor(id).source {
            Source::Op { op, .. } => places.contains_key(&op.index()),
            Source::Input { .. } => true,
            _ => is_read.contains_key(&id),
        };
        let tensors: Vec<TensorId> = self.graph.tensor_ids().filter(|id| is_kept(*id)).collect();
        let numbers: HashMap<TensorId, TensorId> =
            tensors.iter().enumerate().map(|(at, id)| (*id, TensorId::new(at))).collect();
        let number = |id: TensorId| numbers.get(self.instead.get(&id).unwrap_or(&id)).copied();
        let source = |id: &TensorId| {
            let mut tensor = self.graph.tensor(*id).clone();
            if let Source::Op { op, .. } = &mut tensor.source {
                *op = OpId::new(places[&op.index()]);
            }
            tensor
        };
        let op = |id: &usize| {
            let mut op = self.graph.ops[*id].clone();
            let args = op.args.iter_mut().chain(op.kwargs.iter_mut().map(|(_, arg)| arg));
            args.into_iter().try_for_each(|arg| renumber(arg, &number))?;
            op.outputs.iter_mut().flatten().try_for_each(|it| number(*it).map(|to| *it = to))?;
            Some(op)
        };
        // What leaves the model comes of the layers that are left.
        let leaves = |id: TensorId| numbers.get(&id).copied();
        Some(Graph {
            tensors: tensors.iter().map(source).collect(),
            ops: self.kept.iter().map(op).collect::<Option<_>>()?,
            outputs: outputs
                .iter()
                .map(|id| id.map_or(Some(None), |id| leaves(id).map(Some)))
                .collect::<Option<_>>()?,
            updates: updates.iter().filter_map(|(name, id)| Some((name.clone(), leaves(*id)?))).collect(),
            ..self.graph.clone()
        })
    }

    /// The tensors that operators read, and those that leave the model.
    fn is_read(&self) -> HashMap<TensorId, ()> {
        let read = self.kept.iter().flat_map(|id| self.graph.ops[*id].inputs());
        let read = read.map(|id| *self.instead.get(&id).unwrap_or(&id));
        read.chain(self.graph.outputs.iter().flatten().copied()).map(|id| (id, ())).collect()
    }
}

fn renumber(arg: &mut Arg, number: &impl Fn(TensorId) -> Option<TensorId>) -> Option<()> {
    match arg {
        Arg::Tensor(id) => *id = number(*id)?,
        Arg::List(items) => items.iter_mut().try_for_each(|item| renumber(item, number))?,
        _ => {}
    }
    Some(())
}
