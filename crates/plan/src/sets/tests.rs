//! What sets choose of an attention, for the tests in their files.

use graph::{Graph, OpId};
use rules::Analysis;

use super::named;
use crate::{On, Plan};

/// The operators that a plan splits, by what they make, each with the dims that are split: `qkv n.1, qh h`.
pub(super) fn splits(name: &str, devices: u32) -> String {
    let (graph, analysis, plan) = planned(name, devices);
    let dims = |op: OpId| -> Vec<&str> {
        let loops = plan.op(op).splits.iter().filter_map(|split| match split.on {
            On::Loop(index) => Some(&analysis.op(op).loops[index].name[..]),
            _ => None,
        });
        loops.collect()
    };
    let made = |op: OpId| graph.op(op).outputs[0].map(|id| &graph.tensor(id).name[..]);
    let split = graph.op_ids().filter(|op| !dims(*op).is_empty());
    let split = split.map(|op| format!("{} {}", made(op).unwrap_or_default(), dims(op).join(" ")));
    split.collect::<Vec<_>>().join(", ")
}

/// The device of each part of the attention itself.
pub(super) fn devices_of_attention(name: &str, devices: u32) -> Vec<u32> {
    let (graph, _, plan) = planned(name, devices);
    let op = graph.op_ids().find(|op| graph.op(*op).target.contains("attention")).expect("an attention");
    plan.op(op).devices.to_vec()
}

fn planned(name: &str, devices: u32) -> (Graph, Analysis, Plan) {
    let graph: Graph = include_str!("../../tests/attention.graph").parse().expect("it parses");
    let analysis = Analysis::new(&graph);
    let plan = named(name, &graph, &analysis, devices).expect("a plan");
    (graph, analysis, plan)
}
