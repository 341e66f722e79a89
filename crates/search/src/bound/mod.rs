//! What no plan can beat.
//!
//! However a model is divided, each operator is computed once for each micro-batch, forward and backward, and parameters
//! are updated once: parts have together at least the operations and the bytes of the whole, or of half of it where they
//! leave out what a causal mask hides and the whole does not. Let an operator alone take
//! `t_d` seconds on device d. If devices get weights `y_d` that sum to one, a step takes at least the sum over all
//! operators of the least `y_d t_d`: by linear duality, for any weights. For devices that are equal this is all work
//! divided by their number. A part of an operator reaches no more of a device's peak than the whole. Communication, waiting, and what several devices compute alike come on top. What is updated
//! may be so by a device's host, if that is quicker. Where memory is short, something is recomputed or offloaded besides ([`memory`]).

mod memory;

use check::{Masters, held_as};
use cluster::{Cluster, Device, Direction, OpCost, Sort};
use compiler::{Costs, Kinds, updated};
use diag::Result;
use graph::{Dtype, Graph, OpId, Source, TensorId};
use plan::{On, OpPlan, Split};
use rules::families::exchanged;
use rules::{Cost, Kind};

use crate::Question;

/// Seconds of a step.
pub fn bound(question: &Question<'_>) -> Result<f64> {
    let devices: Vec<&Device> = (0..question.devices).map(|at| question.cluster.device(at)).collect();
    let kinds: Vec<&Device> = kinds(question.cluster, question.devices);
    let operators = Kinds::new(question.graph);
    let needs_grad = arriving(question);
    let costs_of = |op| Costs::new(question.graph, question.analysis, op, &needs_grad);
    let mut costs: Vec<Costs<'_>> = question.graph.op_ids().map(costs_of).collect();
    let work = work(question, &operators, &needs_grad, &mut costs)?;
    // For each kind how long it takes for each piece of work.
    let seconds: Vec<Vec<f64>> =
        kinds.iter().map(|kind| work.iter().map(|it| it.on(kind)).collect()).collect();
    let all: Vec<f64> = seconds.iter().map(|each| each.iter().sum()).collect();
    let kind_of = |device: &Device| kinds.iter().position(|kind| *kind == device).expect("it is among them");
    let together: f64 = devices.iter().map(|device| 1.0 / all[kind_of(device)]).sum();
    let weight = |kind: usize| 1.0 / all[kind] / together;
    let least = |at: usize| {
        (0..kinds.len()).map(|kind| weight(kind) * seconds[kind][at]).fold(f64::INFINITY, f64::min)
    };
    let total: f64 = (0..work.len()).map(least).sum();
    if !total.is_finite() {
        return Ok(0.0);
    }
    let mut once_more = vec![0.0; question.graph.ops.len()];
    for (at, it) in work.iter().enumerate() {
        if let Some(op) = it.forward {
            once_more[op.index()] = least(at);
        }
    }
    let costs: Vec<Cost> = costs.iter_mut().map(|costs| costs.whole().cost.clone()).collect();
    let needs = memory::Needs::new(question, &costs, &once_more);
    let trained = trained(question.graph, question.masters, &needs_grad);
    memory::with_memory(question, total, &needs, trained)
}

/// The different ones among the first devices.
pub(crate) fn kinds(cluster: &Cluster, devices: u32) -> Vec<&Device> {
    let mut kinds: Vec<&Device> = vec![];
    for device in (0..devices).map(|at| cluster.device(at)) {
        if !kinds.contains(&device) {
            kinds.push(device);
        }
    }
    kinds
}

/// Something that is done so many times in a step.
struct RepeatedWork<'k> {
    op_cost: OpCost,
    dtype: Dtype,
    /// What it is, unless it may be computed by kernels of other kinds.
    sort: Option<Sort<'k>>,
    times: f64,
    /// The operator whose forward it is.
    forward: Option<OpId>,
    /// Whether the device's host may do it instead.
    may_be_offloaded: bool,
}

impl RepeatedWork<'_> {
    /// Each operator is started on one device at least; what may be done by others in its place is not counted.
    fn on(&self, device: &Device) -> f64 {
        let here = match self.sort {
            Some(sort) => device.lower_bound(self.op_cost, sort),
            None => (device.seconds(self.op_cost, self.dtype) - device.overhead).max(0.0),
        };
        let offload = if self.may_be_offloaded { device.seconds_on_host(self.op_cost.bytes) } else { here };
        self.times * here.min(offload)
    }
}

fn work<'k>(
    question: &Question<'_>,
    operators: &'k Kinds,
    needs_grad: &[bool],
    costs: &mut [Costs<'_>],
) -> Result<Vec<RepeatedWork<'k>>> {
    let graph = question.graph;
    let wanted = compiler::wanted(graph, question.boundary);
    let mut pieces = vec![];
    for op in graph.op_ids().filter(|op| wanted[op.index()]) {
        let costs = &mut costs[op.index()];
        let share = if is_triangle(question, op, costs) { 0.5 } else { 1.0 };
        let cost = &costs.whole().cost;
        let dtype = graph.computes_in(op).unwrap_or(Dtype::F32);
        let has_own = can_be_replaced(question, op);
        let mut add = |operations: u64, bytes: compiler::Bytes, direction: Direction| {
            let bytes = share * (bytes.read + bytes.written) as f64;
            let op_cost = OpCost { operations: share * operations as f64, bytes };
            pieces.push(RepeatedWork {
                op_cost,
                dtype,
                sort: (!has_own).then(|| operators.sort(Some(op), dtype, direction)),
                times: f64::from(question.batches),
                forward: (direction == Direction::Forward).then_some(op),
                may_be_offloaded: false,
            });
        };
        add(cost.flops, cost.forward, Direction::Forward);
        add(cost.gradients.iter().sum(), cost.backward, Direction::Backward);
    }
    let bytes = updated(trained(graph, question.masters, needs_grad), question.optimizer)? as f64;
    let op_cost = OpCost { operations: 0.0, bytes };
    let (dtype, sort) = (Dtype::F32, Some(Sort::UPDATE));
    pieces.push(RepeatedWork { op_cost, dtype, sort, times: 1.0, forward: None, may_be_offloaded: true });
    Ok(pieces)
}

/// Whether a plan may have others in the place of an operator.
fn can_be_replaced(question: &Question<'_>, op: OpId) -> bool {
    question.analysis.op(op).loops.iter().any(|it| it.kind == Kind::Own)
        || exchanged(&question.graph.op(op).target).is_some()
}

/// Whether parts of an operator leave out what the whole computes: of causal attention, keys behind their last query.
/// The more parts there are the more they leave out, up to half of all scores.
fn is_triangle(question: &Question<'_>, op: OpId, costs: &mut Costs<'_>) -> bool {
    let Some(rule) = &question.analysis.rules[op.index()] else { return false };
    let loops = question.analysis.op(op).loops.iter().enumerate();
    let placed = loops.filter(|(_, it)| rule.dim(it.dim).contiguous && it.kind == Kind::Map && it.size > 1);
    let whole = costs.whole().cost.flops;
    let halved =
        |at: usize| OpPlan { splits: vec![Split { on: On::Loop(at), parts: 2 }], devices: [].into() };
    placed.map(|(at, _)| halved(at)).any(|plan| {
        let split_backward = [0, 1].map(|part| costs.part(&plan, part).cost.flops);
        split_backward.iter().sum::<u64>() < whole
    })
}

/// For each tensor whether a gradient comes to it.
pub(crate) fn arriving(question: &Question<'_>) -> Vec<bool> {
    let needs_grad = question.boundary.needs_grad(question.graph);
    compiler::arriving(question.graph, question.analysis, question.boundary, &needs_grad)
}

/// Bytes of the parameters that are trained.
fn trained(graph: &Graph, masters: &Masters, needs_grad: &[bool]) -> u64 {
    let bytes = |id: TensorId| {
        let tensor = graph.tensor(id);
        let is_trained = matches!(tensor.source, Source::Param { frozen: false, .. });
        let bytes = || tensor.numel().unsigned_abs() * held_as(tensor, masters).bytes() as u64;
        if is_trained && needs_grad[id.index()] { bytes() } else { 0 }
    };
    graph.tensor_ids().map(bytes).sum()
}
