//! The order of operators: the model's own, changed only where the plan orders two of them.

use std::collections::BTreeSet;

use diag::{Error, Result};
use graph::{Graph, OpId};

use crate::{Plan, place};

/// The most operators of a way that a message names.
const NAMED: usize = 4;

/// An operator that must run before another.
#[derive(Clone, Copy)]
struct Edge {
    before: OpId,
    after: OpId,
    /// The plan says so; else the second needs what the first makes.
    planned: bool,
}

/// All operators in an order that the graph and the plan allow; or the circle that forbids it.
pub fn order(graph: &Graph, plan: &Plan) -> Result<Vec<OpId>> {
    if plan.order.is_empty() {
        return Ok(graph.op_ids().collect());
    }
    let edges = edges(graph, plan);
    let mut after: Vec<Vec<OpId>> = vec![vec![]; graph.ops.len()];
    let mut waits = vec![0usize; graph.ops.len()];
    for edge in &edges {
        after[edge.before.index()].push(edge.after);
        waits[edge.after.index()] += 1;
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
    let stuck = graph.op_ids().find(|op| waits[op.index()] > 0);
    stuck.map_or(Ok(order), |op| Err(impossible(graph, &circle(&edges, &waits, op))))
}

fn edges(graph: &Graph, plan: &Plan) -> Vec<Edge> {
    let mut edges = vec![];
    for after in graph.op_ids() {
        let makers = graph.op(after).inputs().into_iter().filter_map(|t| graph.producer(t));
        edges.extend(makers.map(|(before, _)| Edge { before, after, planned: false }));
    }
    edges.extend(plan.order.iter().map(|&(before, after)| Edge { before, after, planned: true }));
    edges
}

/// A circle of operators that wait for each other, in the order in which they would have to run. Each
/// that waits has another that waits before it, so going back meets one twice.
fn circle(edges: &[Edge], waits: &[usize], stuck: OpId) -> Vec<Edge> {
    let back = |op: OpId| edges.iter().find(|e| e.after == op && waits[e.before.index()] > 0).copied();
    let mut way: Vec<Edge> = vec![];
    let mut op = stuck;
    while let Some(edge) = back(op) {
        if let Some(start) = way.iter().position(|e| e.after == op) {
            let mut circle = way.split_off(start);
            circle.reverse();
            return circle;
        }
        way.push(edge);
        op = edge.before;
    }
    way
}

fn impossible(graph: &Graph, circle: &[Edge]) -> Error {
    // It begins with what the plan says.
    let start = circle.iter().position(|e| e.planned).unwrap_or(0);
    let turned: Vec<Edge> = circle[start..].iter().chain(&circle[..start]).copied().collect();
    let mut said: Vec<String> = vec![];
    for run in turned.chunk_by(|a, b| !a.planned && !b.planned) {
        let (first, last) = (run[0], run[run.len() - 1]);
        let (before, after) = (name(graph, first.before), name(graph, last.after));
        let way: Vec<OpId> = run[1..].iter().map(|e| e.before).collect();
        said.push(match first.planned {
            true => format!("the plan puts {before} before {after}"),
            false => format!("{after} needs {before}{}", by_way_of(graph, &way)),
        });
    }
    let op = turned[0].before;
    Error::new("SW0401", format!("the plan's order cannot be kept: {}", graph.describe(op)))
        .at(place(graph, op))
        .why(said.join("; "))
        .fix("remove one of the `order` lines")
}

fn by_way_of(graph: &Graph, way: &[OpId]) -> String {
    if way.is_empty() {
        return String::new();
    }
    let named: Vec<String> = way.iter().take(NAMED).map(|op| name(graph, *op)).collect();
    let more = if way.len() > NAMED { format!(" and {} more", way.len() - NAMED) } else { String::new() };
    format!(" by way of {}{more}", named.join(", "))
}

fn name(graph: &Graph, op: OpId) -> String {
    let made = graph.op(op).outputs.iter().flatten().next();
    made.map_or_else(|| format!("operator {}", op.index()), |t| format!("%{}", graph.tensor(*t).name))
}
