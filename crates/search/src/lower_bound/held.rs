//! Parameters: what ranks hold of them, gather, sum gradients of, and update.

use std::collections::BTreeSet;

use check::{Memory, held_as};
use cluster::{Collective, Device, OpCost, Sort};
use compiler::{SUM, states, updated, with_optimizer};
use diag::Result;
use graph::{OpId, Source, TensorId};
use plan::{Gather, ParamSharding, Reduce, has_state_on_host, lives_on_host, param_sharding_of};

use super::chains::Chains;
use super::stages::{Axes, loop_of};
use super::{Ground, Load};
use crate::Question;

/// Bytes of a rank of one stage.
#[derive(Clone, Debug, Default)]
struct Totals {
    held: u64,
    gradients: u64,
    trained: u64,
    /// Of what is trained, whose state comes from the host for that; and what lives on the host, and is trained there.
    from_host: u64,
    on_host: u64,
    /// Gradients to which those of further micro-batches are added.
    added: u64,
    /// For each set of axes: gradients summed once a step into whole ones and into parts, and into parts with each
    /// micro-batch.
    sums: Vec<[u64; 3]>,
    /// And parameters that are gathered once a step, and for each pass of each micro-batch.
    gathers: Vec<[u64; 2]>,
}

/// The question is one about the graph on whose ground this is.
type On<'o> = (&'o Question<'o>, &'o Ground);

pub(super) fn hold(it: On<'_>, chains: &Chains<'_>, loads: &mut [Load]) -> Result<()> {
    let sets = 1 << chains.line.axes;
    let none = Totals { sums: vec![[0; 3]; sets], gathers: vec![[0; 2]; sets], ..Totals::default() };
    let mut all = vec![none; loads.len()];
    let (question, ground) = it;
    for tensor in question.graph.tensor_ids() {
        if let Source::Param { frozen, .. } = question.graph.tensor(tensor).source {
            parameter(it, chains, tensor, !frozen, &mut all);
        }
    }
    let optimizer = question.optimizer;
    for (stage, (load, all)) in loads.iter_mut().zip(&all).enumerate() {
        let state = Memory { trained: (0, all.trained - all.from_host), ..Memory::default() };
        let state = with_optimizer(&[state], optimizer)?[0].total();
        if chains.plan.held_on_host.is_empty() {
            load.memory = all.held + all.gradients + state;
            load.gradients = all.gradients;
        }
        let least = |device: &Device, bytes: f64, sort: Sort<'_>| {
            device.lower_bound(OpCost { operations: 0.0, bytes }, sort)
        };
        let (here, there) =
            (updated(all.trained, optimizer)? as f64, updated(all.on_host, optimizer)? as f64);
        let comes = (all.from_host * states(optimizer)?) as f64;
        load.update = ground.parts.least_on_any(|device| {
            // What is to live on the host may have to stay on the device.
            let there = device.seconds_on_host(there).min(least(device, there, Sort::UPDATE));
            least(device, here, Sort::UPDATE) + 2.0 * device.seconds_to_host(comes) + there
        });
        let added = |device: &Device| least(device, SUM * all.added as f64, Sort::SUM);
        load.added = if all.added > 0 { ground.parts.least_on_any(added) } else { 0.0 };
        for (axis, bytes) in (0..chains.line.axes).map(|axis| (axis, all.sums[1 << axis][0])) {
            load.sums.0 += chains.line.seconds(stage, axis, Collective::AllReduce, bytes);
        }
        for (set, (sums, gathers)) in all.sums.iter().zip(&all.gathers).enumerate() {
            let seconds = |bytes: u64| {
                if bytes == 0 { 0.0 } else { chains.line.scattered(stage, set, bytes as f64) }
            };
            load.sums.0 += seconds(sums[1]);
            load.sums.1 += seconds(sums[2]);
            load.gathers.0 += seconds(gathers[0]);
            load.gathers.1 += seconds(gathers[1]);
        }
    }
    Ok(())
}

fn parameter(
    (question, ground): On<'_>,
    chains: &Chains<'_>,
    tensor: TensorId,
    trained: bool,
    all: &mut [Totals],
) {
    let graph = question.graph;
    let uses = &ground.uses[tensor.index()];
    // What several blocks read is not divided.
    let is_shared = uses.iter().any(|(op, _)| chains.plan.block(*op) != chains.plan.block(uses[0].0));
    let wanted = param_sharding_of(chains.plan, graph, tensor).filter(|_| !is_shared);
    let is_on_host = lives_on_host(chains.plan, graph, tensor);
    for (stage, totals) in all.iter_mut().enumerate() {
        let here = || uses.iter().filter(|(op, _)| chains.stages.of[op.index()] == stage);
        let pieces = |(op, input): &(OpId, usize)| pieces(chains, stage, *op, *input);
        let size = |it: &(OpId, usize)| chains.costs[it.0.index()].inputs[it.1] * pieces(it);
        let Some(bytes) = here().map(size).min() else { continue };
        // What a device reads in several pieces is not divided.
        let sharding = wanted.filter(|_| is_on_host || here().all(|it| pieces(it) == 1));
        let read = graph.tensor(tensor);
        let held = bytes / read.dtype.bytes() as u64 * held_as(read, question.masters).bytes() as u64;
        let shard = sharding.map_or(held, |sharding| held / parts(sharding));
        // Where it is gathered for a while it may be gone when most is held.
        let is_gone = sharding.is_some_and(|sharding| sharding.gather == Gather::Pass);
        totals.held += if is_gone { shard } else { held };
        if trained {
            totals.gradients += shard;
            // Of what is sent with each micro-batch a part adds up.
            let adds =
                if sharding.is_some_and(|sharding| sharding.reduce == Reduce::Each) { shard } else { held };
            if is_on_host {
                totals.on_host += shard;
            } else {
                totals.trained += shard;
                totals.added += if ground.kept.arriving[tensor.index()] { adds } else { 0 };
                let comes = has_state_on_host(chains.plan, graph, tensor);
                totals.from_host += if comes { shard } else { 0 };
            }
        }
        let [(op, input)] = here().copied().collect::<Vec<_>>()[..] else { continue };
        let axes = summed(chains, op, input);
        match sharding {
            // Along several axes they may be summed in any order, and then there is less of them.
            None if trained && axes.is_power_of_two() => totals.sums[axes][0] += held,
            None => {}
            Some(sharding) => {
                let within = |set: &Axes| set & !axes == 0 && chains.line.are(stage, *set, &sharding.groups);
                let Some(set) = (1..=axes).find(within) else { continue };
                if trained {
                    // Those that lie along other axes are summed besides, before or after.
                    totals.sums[axes][if sharding.reduce == Reduce::Last { 1 } else { 2 }] += held;
                }
                let (cost, once) = (&chains.costs[op.index()], sharding.gather == Gather::Step);
                let passes = if !once && trained && cost.kept.contains(&input) { 2 } else { 1 };
                totals.gathers[set][usize::from(!once)] += bytes * passes;
            }
        }
    }
}

/// In how many pieces the first device of a stage reads an input, one after the other.
fn pieces(chains: &Chains<'_>, stage: usize, op: OpId, input: usize) -> u64 {
    let (op_plan, [first, last]) = (chains.plan.op(op), chains.stages.ends[stage]);
    if op_plan.devices.len() <= (last - first) as usize + 1 {
        return 1;
    }
    let carried = &chains.analysis.op(op).inputs[input];
    let piece = |index: u32| {
        let (mut rest, mut stride, mut piece) = (index, 1, 0);
        for split in op_plan.splits.iter().rev() {
            if loop_of(*split).is_some_and(|at| carried.contains(&Some(at))) {
                piece += rest % split.parts * stride;
            }
            (rest, stride) = (rest / split.parts, stride * split.parts);
        }
        piece
    };
    let here = (0..).zip(op_plan.devices.iter()).filter(|(_, device)| **device == first);
    here.map(|(index, _)| piece(index)).collect::<BTreeSet<u32>>().len().max(1) as u64
}

fn parts(sharding: &ParamSharding) -> u64 {
    sharding.groups.iter().map(Vec::len).max().unwrap_or(1).max(1) as u64
}

/// The axes along which the gradients of a parameter are summed: its reader is split, and reads all of it.
fn summed(chains: &Chains<'_>, op: OpId, input: usize) -> Axes {
    let carried = &chains.analysis.op(op).inputs[input];
    let splits = &chains.plan.op(op).splits;
    let split = |axis: &usize| loop_of(splits[*axis]).is_some_and(|at| !carried.contains(&Some(at)));
    (0..chains.line.axes).filter(split).map(|axis| 1 << axis).sum()
}
