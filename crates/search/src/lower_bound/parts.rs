//! What parts of operators cost: of parts that differ, the smallest one.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use cluster::{Device, Direction, OpCost};
use compiler::{Costs, Kinds, PartCost};
use graph::{Arg, Dtype, Graph, OpId};
use plan::{On, OpPlan, Plan, Split};
use rules::{Analysis, Kind};

use crate::Question;

/// Of one part of an operator.
#[derive(Clone, Debug)]
pub(super) struct OperatorCost {
    pub(super) forward: OpCost,
    pub(super) backward: OpCost,
    /// Of which operator, and in which type.
    of: (OpId, Dtype),
    /// Bytes of each input and output; nothing of an operator that is rewritten.
    pub(super) inputs: Vec<u64>,
    pub(super) outputs: Vec<u64>,
    /// The inputs that backward needs, and whether it needs something else that forward made.
    pub(super) kept: Vec<usize>,
    pub(super) keeps_own: bool,
    /// Bytes that it keeps for backward and nothing else has.
    pub(super) more: u64,
    /// The most bytes in its backward, besides what is given and what results.
    pub(super) meanwhile: u64,
}

/// All of the operators of a graph. Those that are alike have one number, and cost the same.
pub(super) struct Parts {
    numbers: Vec<u32>,
    known: HashMap<(u32, Vec<Split>), Rc<OperatorCost>>,
    /// Seconds of parts by their number.
    of_parts: HashMap<(u32, Vec<Split>, u32), (f64, f64)>,
    kinds: Vec<Device>,
    /// What operators are.
    operators: Kinds,
}

impl Parts {
    pub(super) fn new(question: &Question<'_>, needs_grad: &[bool]) -> Self {
        let (graph, cluster) = (question.graph, question.cluster);
        let mut known: BTreeMap<String, u32> = BTreeMap::new();
        let number = |op: OpId| {
            let next = u32::try_from(known.len()).unwrap_or(u32::MAX);
            *known.entry(signature(graph, op, needs_grad)).or_insert(next)
        };
        let mut kinds: Vec<Device> = vec![];
        for at in 0..question.devices {
            let device = cluster.device(at);
            if !kinds.iter().any(|kind| kind.name == device.name) {
                kinds.push(device.clone());
            }
        }
        let numbers = graph.op_ids().map(number).collect();
        Self { numbers, known: HashMap::new(), of_parts: HashMap::new(), kinds, operators: Kinds::new(graph) }
    }

    pub(super) fn costs(&mut self, facts: GraphFacts<'_>, plan: &Plan) -> Vec<Rc<OperatorCost>> {
        facts.graph.op_ids().map(|op| self.cost(facts, plan, op)).collect()
    }

    fn cost(&mut self, facts: GraphFacts<'_>, plan: &Plan, op: OpId) -> Rc<OperatorCost> {
        let parts = plan.op(op);
        let key = (self.numbers[op.index()], parts.splits.clone());
        if let Some(cost) = self.known.get(&key) {
            return Rc::clone(cost);
        }
        let cost = if facts.is_own(plan, op) { facts.rewritten(op) } else { facts.smallest(plan, op) };
        Rc::clone(self.known.entry(key).or_insert(Rc::new(cost)))
    }

    /// Seconds of all parts of an operator on a device, forward and backward; of one that has none, nothing.
    pub(super) fn on(&mut self, facts: GraphFacts<'_>, plan: &Plan, op: OpId, device: u32) -> (f64, f64) {
        let op_plan = plan.op(op);
        if facts.is_own(plan, op) {
            return (0.0, 0.0);
        }
        let mut sum = (0.0, 0.0);
        for index in indices(&op_plan.devices, device) {
            let key = (self.numbers[op.index()], op_plan.splits.clone(), index);
            let (forward, backward) = match self.of_parts.get(&key) {
                Some(known) => *known,
                None => {
                    let seconds = self.seconds(&facts.part(plan, op, index));
                    self.of_parts.insert(key, seconds);
                    seconds
                }
            };
            sum = (sum.0 + forward, sum.1 + backward);
        }
        sum
    }

    /// Forward and backward.
    pub(super) fn seconds(&self, cost: &OperatorCost) -> (f64, f64) {
        let (op, dtype) = cost.of;
        let bound = |work: OpCost, pass| {
            let sort = self.operators.sort(Some(op), dtype, pass);
            self.least_on_any(|device| device.lower_bound(work, sort))
        };
        (bound(cost.forward, Direction::Forward), bound(cost.backward, Direction::Backward))
    }

    pub(super) fn least_on_any(&self, seconds: impl Fn(&Device) -> f64) -> f64 {
        self.kinds.iter().map(seconds).fold(f64::INFINITY, f64::min)
    }
}

/// Which parts are on a device. Most lists go up by one, so a part is where its device says; where another one is there as
/// well, it is not counted, and what is told is less.
fn indices(devices: &[u32], device: u32) -> Vec<u32> {
    let guess =
        devices.first().and_then(|first| device.checked_sub(*first)).map_or(usize::MAX, |at| at as usize);
    let near = |at: usize| devices.get(at).copied();
    let is_row = devices.last().copied() == devices.first().map(|first| first + devices.len() as u32 - 1);
    let is_next =
        |at: usize| near(at.wrapping_sub(1)) != Some(device) && near(at.wrapping_add(1)) != Some(device);
    if is_row && near(guess) == Some(device) && is_next(guess) {
        return vec![guess as u32];
    }
    (0..).zip(devices).filter(|(_, other)| **other == device).map(|(at, _)| at).collect()
}

/// A graph, and for each of its tensors whether it needs a gradient.
#[derive(Clone, Copy)]
pub(super) struct GraphFacts<'g> {
    pub(super) graph: &'g Graph,
    pub(super) analysis: &'g Analysis,
    pub(super) needs_grad: &'g [bool],
}

impl GraphFacts<'_> {
    /// Whether others are in the place of an operator.
    fn is_own(self, plan: &Plan, op: OpId) -> bool {
        let loops = &self.analysis.op(op).loops;
        let on_own_loop = |split: &Split| matches!(split.on, On::Loop(at) if loops[at].kind == Kind::Own);
        plan.op(op).splits.iter().any(on_own_loop)
    }

    fn smallest(self, plan: &Plan, op: OpId) -> OperatorCost {
        let mut costs = Costs::new(self.graph, self.analysis, op, self.needs_grad);
        self.cost(op, plan.op(op), costs.cheapest(plan.op(op)))
    }

    fn part(self, plan: &Plan, op: OpId, index: u32) -> OperatorCost {
        let mut costs = Costs::new(self.graph, self.analysis, op, self.needs_grad);
        self.cost(op, plan.op(op), costs.part(plan.op(op), index))
    }

    fn cost(self, op: OpId, plan: &OpPlan, part: &PartCost) -> OperatorCost {
        let (graph, cost) = (self.graph, &part.cost);
        let op_cost = |operations: u64, bytes: compiler::Bytes| OpCost {
            operations: operations as f64,
            bytes: (bytes.read + bytes.written) as f64,
        };
        let bytes = |shape: &Vec<i64>, dtype: Dtype| {
            shape.iter().map(|size| size.unsigned_abs()).product::<u64>() * dtype.bytes() as u64
        };
        let read = graph.op(op).inputs();
        let sizes = part.inputs.iter().zip(&read).enumerate();
        let made = part.outputs.iter().zip(&graph.op(op).outputs);
        OperatorCost {
            forward: op_cost(cost.flops, cost.forward),
            backward: op_cost(cost.gradients.iter().sum(), cost.backward),
            of: (op, graph.computes_in(op).unwrap_or(Dtype::F32)),
            inputs: sizes
                .map(|(at, (shape, tensor))| {
                    bytes(shape, graph.tensor(*tensor).dtype) / self.shares(op, plan, at)
                })
                .collect(),
            outputs: made
                .map(|(shape, tensor)| tensor.map_or(0, |tensor| bytes(shape, graph.tensor(tensor).dtype)))
                .collect(),
            kept: cost.kept.inputs.clone(),
            keeps_own: cost.kept.more > 0 || !cost.kept.outputs.is_empty(),
            more: cost.kept.more,
            meanwhile: cost.meanwhile.backward,
        }
    }

    /// Of how many parts each has its own experts of an input, where rows are exchanged: a part computes as much as of all
    /// experts, and has those alone.
    fn shares(self, op: OpId, plan: &OpPlan, input: usize) -> u64 {
        let carried = &self.analysis.op(op).inputs[input];
        let parts = |split: &Split| match split.on {
            On::Exchange { experts, .. } if carried.contains(&Some(experts)) => u64::from(split.parts),
            _ => 1,
        };
        plan.splits.iter().map(parts).product()
    }

    /// In its place are others in each slice of the sequence, of which nothing is known here.
    fn rewritten(self, op: OpId) -> OperatorCost {
        let (inputs, outputs) = (self.graph.op(op).inputs().len(), self.graph.op(op).outputs.len());
        OperatorCost {
            forward: OpCost::default(),
            backward: OpCost::default(),
            of: (op, Dtype::F32),
            inputs: vec![0; inputs],
            outputs: vec![0; outputs],
            kept: vec![],
            keeps_own: false,
            more: 0,
            meanwhile: 0,
        }
    }
}

/// What the cost of an operator follows from.
fn signature(graph: &Graph, op: OpId, needs_grad: &[bool]) -> String {
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
