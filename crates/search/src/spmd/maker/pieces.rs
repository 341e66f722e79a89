//! Operators that are divided along a dim with their own algorithm: what is executed in their place.

use std::collections::BTreeMap;

use compiler::{Costs, Kinds};
use diag::Result;
use graph::{Arg, Graph, OpId, Source, Tensor, TensorId};
use plan::{Draft, On, OpPlan, Split};
use rules::{Analysis, Kind, Loop, rewrite};

/// Whether a plan divides an operator along a dim with its own algorithm.
pub(super) fn is_rewritten(analysis: &Analysis, op: OpId, plan: &OpPlan) -> bool {
    let loops = &analysis.op(op).loops;
    plan.splits.iter().any(|split| matches!(split.on, On::Loop(at) if loops[at].kind == Kind::Own))
}

/// The first part of each of those that lowering puts in its place: a graph of them alone, with what kinds they are, and for
/// each operator how it is divided.
pub(super) struct FirstPieces {
    pub(super) graph: Graph,
    pub(super) analysis: Analysis,
    pub(super) kinds: Kinds,
    pub(super) needs_grad: Vec<bool>,
    pub(super) plans: Vec<OpPlan>,
}

impl FirstPieces {
    pub(super) fn new(
        graph: &Graph,
        analysis: &Analysis,
        needs_grad: &[bool],
        op: OpId,
        plan: &OpPlan,
    ) -> Result<Self> {
        let alone = alone(graph, needs_grad, op);
        let alone_analysis = Analysis::new(&alone);
        let first = OpId::new(0);
        let splits = same(&analysis.op(op).loops, &alone_analysis.op(first).loops, &plan.splits);
        let devices = splits.iter().map(|split| split.parts).product();
        let mut draft = Draft::new(&alone, &alone_analysis, "", devices);
        draft.set(first, splits);
        draft.place(first, (0..devices).collect::<Vec<_>>())?;
        let plan = draft.finish()?;
        let rewritten = rewrite(&alone, &plan::rewritings(&alone, &alone_analysis, &plan))?;
        let fresh = Analysis::new(&rewritten.graph);
        let plans = plan::carried(&plan, &alone_analysis, &rewritten, &fresh).ops;
        let graph = rewritten.graph.into_owned();
        Ok(Self { kinds: Kinds::new(&graph), needs_grad: graph.needs_grad(), graph, analysis: fresh, plans })
    }

    /// Each operator with its costs and how it is divided.
    pub(super) fn each(&self) -> impl Iterator<Item = (OpId, Costs<'_>, &OpPlan)> {
        self.graph
            .op_ids()
            .zip(&self.plans)
            .map(|(op, plan)| (op, Costs::new(&self.graph, &self.analysis, op, &self.needs_grad), plan))
    }
}

/// A model that is one operator.
fn alone(graph: &Graph, needs_grad: &[bool], op: OpId) -> Graph {
    let mut made = graph.op(op).clone();
    let mut numbers: BTreeMap<TensorId, TensorId> = BTreeMap::new();
    let mut tensors: Vec<Tensor> = vec![];
    for tensor in made.inputs() {
        numbers.entry(tensor).or_insert_with(|| {
            let source = Source::Input { position: tensors.len(), grad: needs_grad[tensor.index()] };
            tensors.push(Tensor { source, ..graph.tensor(tensor).clone() });
            TensorId::new(tensors.len() - 1)
        });
    }
    let args = made.args.iter_mut().chain(made.kwargs.iter_mut().map(|(_, arg)| arg));
    args.for_each(|arg| renumber(arg, &numbers));
    for (output, tensor) in made.outputs.iter_mut().enumerate() {
        let Some(old) = *tensor else { continue };
        let source = Source::Op { op: OpId::new(0), output };
        tensors.push(Tensor { source, ..graph.tensor(old).clone() });
        *tensor = Some(TensorId::new(tensors.len() - 1));
    }
    Graph {
        model: graph.model.clone(),
        outputs: made.outputs.clone(),
        tensors,
        ops: vec![made],
        ..Graph::default()
    }
}

fn renumber(arg: &mut Arg, numbers: &BTreeMap<TensorId, TensorId>) {
    match arg {
        Arg::Tensor(id) => *id = numbers[id],
        Arg::List(items) => items.iter_mut().for_each(|item| renumber(item, numbers)),
        _ => {}
    }
}

/// The same splits where a dim has other factors, since no neighbour divides it.
fn same(from: &[Loop], to: &[Loop], splits: &[Split]) -> Vec<Split> {
    let mut left: Vec<i64> = to.iter().map(|it| it.size).collect();
    let mut same_split = |split: &Split| {
        let wanted = match split.on {
            On::Loop(at) => from[at].dim,
            other => return Split { on: other, parts: split.parts },
        };
        let place = (0..to.len()).find(|at| to[*at].dim == wanted && left[*at] >= i64::from(split.parts));
        let on = place.map_or(On::Copies, |at| {
            left[at] /= i64::from(split.parts);
            On::Loop(at)
        });
        Split { on, parts: split.parts }
    };
    splits.iter().map(&mut same_split).collect()
}
