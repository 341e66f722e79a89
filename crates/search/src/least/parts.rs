//! What parts of operators cost: of parts that differ, the smallest one.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use cluster::{Device, Effort};
use compiler::Costs;
use graph::{Arg, Dtype, Graph, OpId};
use plan::{On, Plan, Split};
use rules::{Analysis, Kind};

use crate::Question;

/// Of one part of an operator.
#[derive(Clone, Debug)]
pub(super) struct Cost {
    pub(super) forward: Effort,
    pub(super) backward: Effort,
    dtype: Dtype,
    /// Bytes of each input and output; nothing of an operator that is rewritten.
    pub(super) inputs: Vec<u64>,
    pub(super) outputs: Vec<u64>,
    /// The inputs that backward needs, and whether it needs something else that forward made.
    pub(super) kept: Vec<usize>,
    pub(super) keeps_own: bool,
}

/// All of the operators of a graph. Those that are alike have one number, and cost the same.
pub(super) struct Parts<'q> {
    graph: &'q Graph,
    analysis: &'q Analysis,
    needs_grad: Vec<bool>,
    numbers: Vec<u32>,
    known: HashMap<(u32, Vec<Split>), Rc<Cost>>,
    kinds: Vec<&'q Device>,
}

impl<'q> Parts<'q> {
    pub(super) fn new(question: &'q Question<'q>, needs_grad: &[bool]) -> Self {
        let (graph, cluster) = (question.graph, question.cluster);
        let mut known: BTreeMap<String, u32> = BTreeMap::new();
        let number = |op: OpId| {
            let next = u32::try_from(known.len()).unwrap_or(u32::MAX);
            *known.entry(likeness(graph, op, needs_grad)).or_insert(next)
        };
        let mut kinds: Vec<&Device> = vec![];
        for at in 0..question.devices {
            let device = cluster.device(at);
            if !kinds.iter().any(|kind| kind.name == device.name) {
                kinds.push(device);
            }
        }
        Self {
            graph,
            analysis: question.analysis,
            numbers: graph.op_ids().map(number).collect(),
            needs_grad: needs_grad.to_vec(),
            known: HashMap::new(),
            kinds,
        }
    }

    pub(super) fn of_all(&mut self, plan: &Plan) -> Vec<Rc<Cost>> {
        self.graph.op_ids().map(|op| self.of(plan, op)).collect()
    }

    fn of(&mut self, plan: &Plan, op: OpId) -> Rc<Cost> {
        let parts = plan.op(op);
        let key = (self.numbers[op.index()], parts.splits.clone());
        if let Some(found) = self.known.get(&key) {
            return Rc::clone(found);
        }
        let loops = &self.analysis.op(op).loops;
        let own = |split: &Split| matches!(split.on, On::Loop(at) if loops[at].kind == Kind::Own);
        let found = if parts.splits.iter().any(own) { self.rewritten(op) } else { self.smallest(plan, op) };
        Rc::clone(self.known.entry(key).or_insert(Rc::new(found)))
    }

    fn smallest(&self, plan: &Plan, op: OpId) -> Cost {
        let graph = self.graph;
        let mut costs = Costs::new(graph, self.analysis, op, &self.needs_grad);
        let part = costs.cheapest(plan.op(op));
        let cost = &part.cost;
        let effort = |operations: u64, bytes: compiler::Bytes| Effort {
            operations: operations as f64,
            bytes: (bytes.read + bytes.written) as f64,
        };
        let bytes = |shape: &Vec<i64>, dtype: Dtype| {
            shape.iter().map(|size| size.unsigned_abs()).product::<u64>() * dtype.bytes() as u64
        };
        let read = graph.op(op).inputs();
        let sizes = part.inputs.iter().zip(&read);
        let made = part.outputs.iter().zip(&graph.op(op).outputs);
        Cost {
            forward: effort(cost.flops, cost.forward),
            backward: effort(cost.gradients.iter().sum(), cost.backward),
            dtype: graph.computes_in(op).unwrap_or(Dtype::F32),
            inputs: sizes.map(|(shape, tensor)| bytes(shape, graph.tensor(*tensor).dtype)).collect(),
            outputs: made
                .map(|(shape, tensor)| tensor.map_or(0, |tensor| bytes(shape, graph.tensor(tensor).dtype)))
                .collect(),
            kept: cost.kept.inputs.clone(),
            keeps_own: cost.kept.more > 0 || !cost.kept.outputs.is_empty(),
        }
    }

    /// In its place are others, of which nothing is known here.
    fn rewritten(&self, op: OpId) -> Cost {
        let (inputs, outputs) = (self.graph.op(op).inputs().len(), self.graph.op(op).outputs.len());
        Cost {
            forward: Effort::default(),
            backward: Effort::default(),
            dtype: Dtype::F32,
            inputs: vec![0; inputs],
            outputs: vec![0; outputs],
            kept: vec![],
            keeps_own: false,
        }
    }

    /// Forward and backward.
    pub(super) fn seconds(&self, cost: &Cost) -> (f64, f64) {
        let of = |effort: Effort| self.least_on_any(|device| device.seconds(effort, cost.dtype));
        (of(cost.forward), of(cost.backward))
    }

    pub(super) fn least_on_any(&self, seconds: impl Fn(&Device) -> f64) -> f64 {
        self.kinds.iter().map(|kind| seconds(kind)).fold(f64::INFINITY, f64::min)
    }
}

/// What the cost of an operator follows from.
fn likeness(graph: &Graph, op: OpId, needs_grad: &[bool]) -> String {
    let given = graph.op(op);
    let tensors = given.inputs().into_iter().map(Some).chain(given.outputs.iter().copied());
    let tensors: Vec<_> = tensors
        .map(|tensor| {
            tensor.map(|tensor| {
                let it = graph.tensor(tensor);
                (it.dtype, &it.shape, needs_grad[tensor.index()], graph.producer(tensor).is_none())
            })
        })
        .collect();
    let args: Vec<String> = given.args.iter().map(literal).collect();
    let kwargs: Vec<_> = given.kwargs.iter().map(|(name, arg)| (name, literal(arg))).collect();
    format!("{} {args:?} {kwargs:?} {tensors:?} {}", given.target, given.no_grad)
}

fn literal(arg: &Arg) -> String {
    match arg {
        Arg::Tensor(_) => "%".into(),
        Arg::List(all) => all.iter().map(literal).collect::<Vec<_>>().join(" "),
        other => format!("{other:?}"),
    }
}
