//! What the devices of a plan compute in a step, and what several of them repeat.
//!
//! Only products count: contractions, convolutions, attention, experts, two operations for each product
//! that is summed. All else is little beside them.

use std::collections::BTreeSet;

use graph::{Graph, OpId};
use plan::{On, OpPlan, Plan};
use rules::families::{cost_of, family_of};
use rules::{Analysis, Interval, View};

const PRODUCTS: [&str; 4] = ["contraction", "convolution", "attention", "experts"];

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Work {
    /// Operations of the model in a step, forward and backward.
    pub model: f64,
    /// For each device those that it computes.
    pub devices: Vec<f64>,
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
    let mut work = Work { devices: vec![0.0; plan.devices as usize], ..Work::default() };
    for op in graph.op_ids() {
        let operations = operations(graph, op, &needs_grad);
        if operations == 0.0 {
            continue;
        }
        work.model += operations;
        let shares = shares(analysis, op, plan.op(op), plan.devices);
        for (device, share) in work.devices.iter_mut().zip(&shares) {
            *device += share * operations;
        }
        if shares.iter().sum::<f64>() > 1.0 + 1e-9 {
            let most = shares.iter().copied().fold(0.0, f64::max);
            let even = 1.0 / f64::from(plan.devices);
            work.repeated.push(Repeated { op, operations: (most - even) * operations });
        }
    }
    work
}

/// The operations of an operator in a step, whole; none for what is no product.
fn operations(graph: &Graph, op: OpId, needs_grad: &[bool]) -> f64 {
    let view = View::new(graph, op);
    if !family_of(&view.op.target).is_some_and(|family| PRODUCTS.contains(&family.name)) {
        return 0.0;
    }
    let cost = cost_of(view);
    let learns = !view.op.no_grad && view.op.outputs.iter().flatten().any(|t| needs_grad[t.index()]);
    cost.flops * if learns { 1.0 + cost.backward } else { 1.0 }
}

/// The share of an operator that each device computes. Copies on one device are one.
fn shares(analysis: &Analysis, op: OpId, plan: &OpPlan, devices: u32) -> Vec<f64> {
    let whole = analysis.op(op).whole();
    let mut shares = vec![0.0; devices as usize];
    let mut known: BTreeSet<(u32, Vec<u32>)> = BTreeSet::new();
    for (&device, index) in plan.devices.iter().zip(0..) {
        let digits = plan.digits(index);
        let split = |(split, digit): (&plan::Split, &u32)| if split.on == On::Copies { 0 } else { *digit };
        let part = plan.splits.iter().zip(&digits).map(split).collect();
        if known.insert((device, part)) {
            let at = plan.intervals(&whole, &digits);
            let length = |(part, all): (&Interval, &Interval)| part.len() as f64 / all.len().max(1) as f64;
            shares[device as usize] += at.iter().zip(&whole).map(length).product::<f64>();
        }
    }
    shares
}
