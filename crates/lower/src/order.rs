//! The order of operators: the model's own, changed only where the plan orders two of them.

use std::collections::BTreeSet;

use diag::{Error, Result};
use graph::{Graph, OpId};
use plan::Plan;

pub fn order(graph: &Graph, plan: &Plan) -> Result<Vec<OpId>> {
    if plan.order.is_empty() {
        return Ok(graph.op_ids().collect());
    }
    let mut after: Vec<Vec<OpId>> = vec![vec![]; graph.ops.len()];
    let mut waits = vec![0usize; graph.ops.len()];
    let needs = graph.op_ids().flat_map(|op| {
        let makers = graph.op(op).inputs().into_iter().filter_map(|t| graph.producer(t));
        makers.map(move |(maker, _)| (maker, op)).collect::<Vec<_>>()
    });
    for (a, b) in needs.chain(plan.order.iter().copied()) {
        after[a.index()].push(b);
        waits[b.index()] += 1;
    }
    let mut ready: BTreeSet<OpId> = graph.op_ids().filter(|op| waits[op.index()] == 0).collect();
    let mut order = Vec::with_capacity(graph.ops.len());
    while let Some(op) = ready.pop_first() {
        order.push(op);
        for &next in &after[op.index()] {
            waits[next.index()] -= 1;
            if waits[next.index()] == 0 {
                ready.insert(next);
            }
        }
    }
    if order.len() == graph.ops.len() {
        return Ok(order);
    }
    let stuck = graph.op_ids().find(|op| waits[op.index()] > 0).expect("an operator is left");
    Err(Error::new("SW0401", format!("the plan's order cannot be kept: {}", graph.describe(stuck)))
        .at(graph.op(stuck).line.clone())
        .why("it would have to run before something that it needs")
        .fix("remove one of the `order` lines"))
}
