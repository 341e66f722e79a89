//! What is said of a plan before anything is drawn.

use graph::Source;
use plan::{Gather, Reduce};
use serde_json::{Value, json};

use super::Subject;
use crate::param_sharding::{KeptParams, kept};

pub(super) fn overview(subject: &Subject<'_>) -> Value {
    let (compiled, step, about) = (subject.compiled, subject.step, subject.about);
    let estimate = &step.estimate;
    let divided = compiled.summary.divided;
    let fullest = fullest(subject);
    json!({
        "model": subject.graph.model,
        "digest": compiled.program.digest,
        "plan": subject.plan.name,
        "plan_text": plan::print_folded(subject.plan, subject.graph, subject.analysis),
        "devices": subject.plan.devices,
        "cluster": cluster(subject),
        "micro_batches": subject.batches,
        "optimizer": subject.optimizer,
        "seconds": estimate.simulation.seconds,
        "operations": estimate.operations,
        "utilisation": estimate.utilisation,
        "rows_of_inputs": rows_of_inputs(subject),
        "tokens": tokens(subject),
        "parameters": parameters(subject),
        "operators": {
            "split": divided.split, "replicated": divided.replicated, "single": divided.single,
            "without_rule": compiled.summary.unknown,
        },
        "blocks": subject.plan.block_count(),
        "recomputed": subject.plan.recompute.iter().map(Vec::len).sum::<usize>(),
        "offloaded": subject.plan.offload.iter().map(Vec::len).sum::<usize>(),
        "sharded_parameters": kept(subject.graph, subject.plan).iter().map(sharded).collect::<Vec<_>>(),
        "memory": {
            "rank": fullest,
            "needed": estimate.memory[fullest].total(),
            "there": subject.cluster.device(fullest as u32).memory,
        },
        "bound": about.compared.as_ref().map(|compared| compared.bound).filter(|bound| *bound > 0.0),
        "proof": compiled.proof.to_string(),
        "command": about.command,
        "version": about.version,
    })
}

/// The rank that uses most of its memory.
fn fullest(subject: &Subject<'_>) -> usize {
    let memory = &subject.step.estimate.memory;
    let used = |rank: usize| memory[rank].total() as f64 / subject.cluster.device(rank as u32).memory as f64;
    (0..memory.len()).fold(0, |most, rank| if used(rank) > used(most) { rank } else { most })
}

fn cluster(subject: &Subject<'_>) -> Value {
    let cluster = subject.cluster;
    let first = cluster.device(0);
    json!({
        "name": cluster.name,
        "devices": cluster.devices(),
        "nodes": cluster.nodes.len(),
        "device": first.name,
        "memory": first.memory,
        "link": cluster.nodes.first().map(|node| node.link.bandwidth),
        "network": cluster.network.bandwidth,
    })
}

fn sharded(params: &KeptParams) -> Value {
    json!({
        "over": params.over, "gather": Gather::name(params.gather), "reduce": Reduce::name(params.reduce),
        "count": params.count, "bytes": params.bytes,
    })
}

/// The length of the first dim of the first input that has one: rows of a micro-batch.
fn rows_of_inputs(subject: &Subject<'_>) -> Option<i64> {
    let is_input = |it: &&graph::Tensor| matches!(it.source, Source::Input { .. });
    subject.graph.tensors.iter().filter(is_input).find_map(|it| it.shape.first().copied())
}

/// Numbers of the first input of two dims that are whole ones, tokens say.
fn tokens(subject: &Subject<'_>) -> Option<i64> {
    let is_input = |it: &&graph::Tensor| matches!(it.source, Source::Input { .. });
    let tokens = |it: &&graph::Tensor| !it.dtype.is_float() && it.shape.len() == 2;
    let input = subject.graph.tensors.iter().filter(is_input).find(tokens)?;
    Some(input.numel() * i64::from(subject.batches))
}

/// How many numbers all parameters have.
fn parameters(subject: &Subject<'_>) -> i64 {
    let is_param = |it: &&graph::Tensor| matches!(it.source, Source::Param { .. });
    subject.graph.tensors.iter().filter(is_param).map(graph::Tensor::numel).sum()
}
