//! What nobody would laugh at: rules of thumb that the chosen plan obeys, each with the arithmetic behind it.
//!
//! The models are as wide as the real ones and have few layers. Each rule has a plan that breaks it, which shows that the
//! test would see one.

mod devices;
mod memory;
mod nodes;
mod stages;

use cluster::Cluster;
use compiler::{Setting, estimate};
use graph::Source;
use plan::{Gather, On, Plan};
use rules::Region;
use search::{Evaluated, Question, best};

use crate::model::Model;

/// Four layers of a GPT that is 1,024 wide, with 16 sequences of 1,024: 170M parameters.
fn gpt() -> Model {
    Model::new(include_str!("../graphs/full_gpt.graph"))
}

/// Four layers of Llama-3-8B, with 16 sequences of 4,096: 1.9B parameters.
fn llama() -> Model {
    Model::new(include_str!("../graphs/full_llama.graph"))
}

/// Two layers of Mixtral 8x7B, with 16 sequences of 4,096: 3.2B parameters.
fn mixtral() -> Model {
    Model::new(include_str!("../graphs/full_mixtral.graph"))
}

fn read(text: &str) -> Cluster {
    cluster::read(text, "thumb.toml").expect("it reads")
}

/// So many nodes of so many devices, with gigabits a second between them for each device.
fn nodes(count: u32, devices: &str, gigabits: u32) -> Cluster {
    read(&format!(
        "[network]\nbandwidth = \"{gigabits} Gbit/s\"\nlatency = \"14 us\"\n\
         [[nodes]]\ncount = {count}\ndevices = \"{devices}\"\n"
    ))
}

/// The quickest plan that fits.
fn chosen(question: &Question<'_>) -> Evaluated {
    best(question, None, &mut |_| ()).expect("a plan").rows.swap_remove(0)
}

/// A named plan: what it is, and seconds of its step.
fn named(question: &Question<'_>, name: &str) -> (Plan, f64) {
    let plan = plan::sets::named(name, question.graph, question.analysis, question.devices).expect(name);
    let Question { cluster, batches, optimizer, masters, .. } = *question;
    let setting = Setting { cluster, batches, optimizer, masters, compiled: false };
    let stats = estimate(question.graph, question.analysis, &plan, question.boundary, &setting).expect(name);
    (plan, stats.simulation.seconds)
}

/// What is chosen is not so, and quicker than a plan that is.
fn never(question: &Question<'_>, is_so: &dyn Fn(&Plan) -> bool, laughable: &str) {
    let (plan, seconds) = named(question, laughable);
    assert!(is_so(&plan), "{laughable} is what nobody would choose");
    let chosen = chosen(question);
    let who = format!("{} on {}, {}", question.graph.model, question.cluster.name, question.batches);
    assert!(!is_so(&chosen.plan), "{who}: {}", chosen.plan.name);
    assert!(chosen.seconds() < seconds, "{who}: {} and {laughable}", chosen.plan.name);
}

fn has_stages(plan: &Plan) -> bool {
    plan.block_count() > 1
}

fn recomputes(plan: &Plan) -> bool {
    !plan.recompute.is_empty()
}

fn offloads(plan: &Plan) -> bool {
    !plan.offload.is_empty() || !plan.state_on_host.is_empty() || !plan.held_on_host.is_empty()
}

/// Whether parameters are gathered anew for each micro-batch, as ZeRO-3 does.
fn gathers_again(plan: &Plan) -> bool {
    plan.param_shardings.values().any(|it| it.gather == Gather::Pass)
}

/// Whether operators of one node read other parts of a parameter than those of another, of parameters that are asked for.
fn differ_between_nodes(question: &Question<'_>, plan: &Plan, of: &dyn Fn(&str) -> bool) -> bool {
    let (graph, analysis) = (question.graph, question.analysis);
    let node = |device: &u32| question.cluster.node(*device);
    graph.op_ids().any(|op| {
        let (dims, sharded) = (analysis.op(op), plan.op(op));
        let mut operands = graph.op(op).inputs().into_iter().zip(&dims.inputs);
        operands.any(|(tensor, carried)| {
            let is_asked = match &graph.tensor(tensor).source {
                Source::Param { names, .. } => of(&names[0]),
                _ => false,
            };
            let regions = || {
                (0..sharded.count()).zip(sharded.devices.iter()).map(|(part, device)| {
                    let mut at = dims.whole();
                    for (split, position) in sharded.splits.iter().zip(sharded.digits(part)) {
                        if let On::Loop(index) | On::Exchange { experts: index, .. } = split.on {
                            at[index] = at[index].part(position, split.parts);
                        }
                    }
                    (node(device), analysis.region(tensor, carried, &at))
                })
            };
            is_asked && !are_equal(&regions().collect::<Vec<_>>())
        })
    })
}

/// Whether all nodes have the same regions.
fn are_equal(parts: &[(usize, Region)]) -> bool {
    let of_node = |node: usize| {
        let mut regions: Vec<&Region> =
            parts.iter().filter(|(other, _)| *other == node).map(|(_, region)| region).collect();
        regions.sort();
        regions.dedup();
        regions
    };
    parts.iter().all(|(node, _)| of_node(*node) == of_node(parts[0].0))
}
