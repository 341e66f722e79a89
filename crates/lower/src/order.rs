//! The order of operators: the model's own, changed where the plan orders two of them, and where parts
//! that run one after another would otherwise wait for each other.

use std::collections::BTreeSet;
use std::rc::Rc;

use diag::{Error, Result};
use graph::{Graph, OpId};
use plan::Plan;

use crate::place::Placement;

pub fn order(graph: &Graph, plan: &Plan) -> Result<Vec<OpId>> {
    if plan.order.is_empty() {
        return Ok(graph.op_ids().collect());
    }
    let mut after: Vec<Vec<OpId>> = vec![vec![]; graph.ops.len()];
    let mut waits = vec![0usize; graph.ops.len()];
    for op in graph.op_ids() {
        for maker in before(graph, plan, op) {
            after[maker.index()].push(op);
            waits[op.index()] += 1;
        }
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

/// The same order, but operators whose parts run one after another follow each other, so that a part
/// goes through as many of them as it can before the next begins. What runs once and stands between
/// them goes before them, or behind them if it needs one of them.
pub fn parts_together(
    graph: &Graph,
    plan: &Plan,
    placements: &[Rc<Placement>],
    order: Vec<OpId>,
) -> Vec<OpId> {
    if !placements.iter().any(|p| p.in_turn) {
        return order;
    }
    let mut done = Vec::with_capacity(order.len());
    let (mut row, mut behind): (Vec<OpId>, Vec<OpId>) = (vec![], vec![]);
    let mut waits = vec![Waits::No; graph.ops.len()];
    for op in order {
        let needed = before(graph, plan, op).map(|o| waits[o.index()]).max().unwrap_or(Waits::No);
        if !placements[op.index()].in_turn {
            if needed == Waits::No {
                done.push(op);
            } else {
                waits[op.index()] = Waits::Behind;
                behind.push(op);
            }
            continue;
        }
        if needed == Waits::Behind {
            done.append(&mut row);
            done.append(&mut behind);
            waits.fill(Waits::No);
        }
        waits[op.index()] = Waits::InRow;
        row.push(op);
    }
    done.append(&mut row);
    done.append(&mut behind);
    done
}

/// Where an operator stands that is not done yet: in the row of those whose parts run one after another,
/// or behind it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Waits {
    No,
    InRow,
    Behind,
}

/// The operators that must run before one: those that make what it reads, and those that the plan says.
fn before(graph: &Graph, plan: &Plan, op: OpId) -> impl Iterator<Item = OpId> {
    let makers = graph.op(op).inputs().into_iter().filter_map(|t| graph.producer(t)).map(|(maker, _)| maker);
    makers.chain(plan.order.iter().filter(move |(_, b)| *b == op).map(|(a, _)| *a))
}
