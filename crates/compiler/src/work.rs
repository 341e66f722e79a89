//! What the devices of a plan compute in a step, and what several of them repeat.

use std::collections::BTreeSet;

use graph::{Graph, OpId};
use plan::{On, OpPlan, Plan};
use rules::{Analysis, Cost};

use crate::cost::Costs;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Work {
    /// Operations of the model in a step, forward and backward.
    pub model: f64,
    /// For each device those that it computes.
    pub devices: Vec<f64>,
    /// How many of these it computes a second time, for backward: whatever the plan recomputes.
    pub recomputed: Vec<f64>,
    pub repeated: Vec<Repeated>,
}

/// An operator that several devices compute alike, wholly or in part.
#[derive(Clone, Debug, PartialEq)]
pub struct Repeated {
    pub op: OpId,
    /// What the device that computes most of it computes beyond an even share.
    pub operations: f64,
}

pub fn work(graph: &Graph, analysis: &Analysis, plan: &Plan) -> Work {
    let needs_grad = graph.needs_grad();
    let none = vec![0.0; plan.devices as usize];
    let mut work = Work { devices: none.clone(), recomputed: none, ..Work::default() };
    let mut spans = vec![0_u32; graph.ops.len()];
    plan.recompute.iter().flatten().for_each(|op| spans[op.index()] += 1);
    for op in graph.op_ids() {
        let mut costs = Costs::new(graph, analysis, op, &needs_grad);
        let whole = of_cost(&costs.whole().cost);
        work.model += whole;
        let computed = computed(&mut costs, plan.op(op), plan.devices, of_cost);
        for (device, operations) in work.devices.iter_mut().zip(&computed) {
            *device += operations;
        }
        if spans[op.index()] > 0 {
            let forward = |cost: &Cost| cost.flops as f64 * f64::from(spans[op.index()]);
            let recomputed = self::computed(&mut costs, plan.op(op), plan.devices, forward);
            for (device, operations) in recomputed.into_iter().enumerate() {
                work.recomputed[device] += operations;
                work.devices[device] += operations;
            }
        }
        if computed.iter().sum::<f64>() > whole * (1.0 + 1e-9) {
            let most = computed.iter().copied().fold(0.0, f64::max);
            work.repeated.push(Repeated { op, operations: most - whole / f64::from(plan.devices) });
        }
    }
    work
}

/// Operations of the model in a micro-batch, forward and backward.
pub(crate) fn operations(graph: &Graph, analysis: &Analysis) -> f64 {
    operations_of_each(graph, analysis).iter().sum()
}

/// The same of each operator.
pub fn operations_of_each(graph: &Graph, analysis: &Analysis) -> Vec<f64> {
    let needs_grad = graph.needs_grad();
    let operations_of = |op: OpId| of_cost(&Costs::new(graph, analysis, op, &needs_grad).whole().cost);
    graph.op_ids().map(operations_of).collect()
}

/// Forward and backward.
fn of_cost(cost: &Cost) -> f64 {
    (cost.flops + cost.gradients.iter().sum::<u64>()) as f64
}

/// What each device computes of an operator. Copies on one device are one.
fn computed(
    costs: &mut Costs<'_>,
    plan: &OpPlan,
    devices: u32,
    operations: impl Fn(&Cost) -> f64,
) -> Vec<f64> {
    let mut all = vec![0.0; devices as usize];
    let mut known: BTreeSet<(u32, Vec<u32>)> = BTreeSet::new();
    for (&device, index) in plan.devices.iter().zip(0..) {
        let same = |(split, digit): (&plan::Split, u32)| if split.on == On::Copies { 0 } else { digit };
        let part = plan.splits.iter().zip(plan.digits(index)).map(same).collect();
        if known.insert((device, part)) {
            all[device as usize] += operations(&costs.part(plan, index).cost);
        }
    }
    all
}
