//! The order in which operators run: that of the plan, without those that no result and no buffer needs,
//! changed where parts that run one after another would otherwise wait for each other.

use std::rc::Rc;

use diag::Result;
use graph::{Graph, OpId};
use plan::Plan;
use program::Boundary;

use crate::boundary;
use crate::placement::Placement;

/// Replicas, which are those behind the model's so many operators, are the first in their block.
pub fn order(graph: &Graph, plan: &Plan, boundary: &Boundary, originals: usize) -> Result<Vec<OpId>> {
    let wanted = boundary::wanted(graph, boundary);
    let mut order = plan::order(graph, plan)?;
    order.retain(|op| wanted[op.index()]);
    order.sort_by_key(|op| (plan.block(*op), op.index() < originals));
    Ok(order)
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
    let mut block = 0;
    for op in order {
        if std::mem::replace(&mut block, plan.block(op)) != plan.block(op) {
            done.append(&mut row);
            done.append(&mut behind);
            waits.fill(Waits::No);
        }
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
