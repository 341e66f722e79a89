//! Parameters: what ranks hold of them, gather, sum gradients of, and update.

use check::{Memory, held_as};
use cluster::{Effort, Pattern};
use compiler::{updated, with_optimizer};
use diag::Result;
use graph::{Dtype, OpId, Source, TensorId};
use plan::{Gather, Home, Reduce, home_of};

use super::chains::Chains;
use super::stages::loop_of;
use super::{Leasts, Load};

/// Bytes of a rank of one stage.
#[derive(Clone, Debug, Default)]
struct Totals {
    held: u64,
    gradients: u64,
    trained: u64,
    /// For each axis: gradients summed once a step into whole ones and into parts, and into parts with each micro-batch.
    sums: Vec<[u64; 3]>,
    /// And parameters that are gathered once a step, and for each pass of each micro-batch.
    gathers: Vec<[u64; 2]>,
}

pub(super) fn hold(it: &Leasts<'_>, chains: &Chains<'_>, loads: &mut [Load]) -> Result<()> {
    let axes = chains.line.groups.first().map_or(0, Vec::len);
    let none = Totals { sums: vec![[0; 3]; axes], gathers: vec![[0; 2]; axes], ..Totals::default() };
    let mut all = vec![none; loads.len()];
    for tensor in it.question.graph.tensor_ids() {
        if let Source::Param { frozen, .. } = it.question.graph.tensor(tensor).source {
            parameter(it, chains, (tensor, !frozen), &mut all);
        }
    }
    let optimizer = it.question.optimizer;
    for (stage, (load, all)) in loads.iter_mut().zip(&all).enumerate() {
        let state = Memory { trained: (0, all.trained), ..Memory::default() };
        let away = !chains.plan.state_on_host.is_empty();
        let state = if away { 0 } else { with_optimizer(&[state], optimizer)?[0].total() };
        if chains.plan.held_on_host.is_empty() {
            load.memory = all.held + all.gradients + state;
            load.gradients = all.gradients;
        }
        let bytes = updated(all.trained, optimizer)? as f64;
        let effort = Effort { operations: 0.0, bytes };
        load.update = it.parts.least_on_any(|device| device.seconds(effort, Dtype::F32));
        for axis in 0..axes {
            let seconds = |pattern, bytes| chains.line.seconds((stage, axis), pattern, bytes);
            let (sums, gathers) = (all.sums[axis], all.gathers[axis]);
            load.sums.0 += seconds(Pattern::AllReduce, sums[0]) + seconds(Pattern::ReduceScatter, sums[1]);
            load.sums.1 += seconds(Pattern::ReduceScatter, sums[2]);
            load.gathers.0 += seconds(Pattern::AllGather, gathers[0]);
            load.gathers.1 += seconds(Pattern::AllGather, gathers[1]);
        }
    }
    Ok(())
}

fn parameter(it: &Leasts<'_>, chains: &Chains<'_>, (tensor, trained): (TensorId, bool), all: &mut [Totals]) {
    let graph = it.question.graph;
    let uses = &it.uses[tensor.index()];
    let home = home_of(chains.plan, graph, tensor);
    for (stage, totals) in all.iter_mut().enumerate() {
        let here = || uses.iter().filter(|(op, _)| chains.stages.of[op.index()] == stage);
        let size = |(op, input): &(OpId, usize)| chains.costs[op.index()].inputs[*input];
        let Some(bytes) = here().map(size).min() else { continue };
        let read = graph.tensor(tensor);
        let held = bytes / read.dtype.bytes() as u64 * held_as(read, it.question.masters).bytes() as u64;
        let own = home.map_or(held, |home| held / parts(home));
        // Where it is gathered for a while it may be gone when most is held.
        totals.held += if home.is_some_and(|home| home.gather == Gather::Pass) { own } else { held };
        if trained {
            totals.trained += own;
            totals.gradients += own;
        }
        let [(op, input)] = here().copied().collect::<Vec<_>>()[..] else { continue };
        let axes = summed(chains, op, input);
        // Along several axes they may be summed in any order, and then there is less of them.
        let only = if axes.len() == 1 { axes.first().copied() } else { None };
        match (home, only) {
            (None, Some(axis)) if trained => totals.sums[axis][0] += held,
            (Some(home), _) => {
                let Some(axis) = axes.into_iter().find(|axis| along(chains, home, (stage, *axis))) else {
                    continue;
                };
                if trained && only.is_some() {
                    totals.sums[axis][if home.reduce == Reduce::Last { 1 } else { 2 }] += held;
                }
                let (cost, once) = (&chains.costs[op.index()], home.gather == Gather::Step);
                let passes = if !once && trained && cost.kept.contains(&input) { 2 } else { 1 };
                totals.gathers[axis][usize::from(!once)] += bytes * passes;
            }
            _ => {}
        }
    }
}

fn parts(home: &Home) -> u64 {
    home.groups.iter().map(Vec::len).max().unwrap_or(1).max(1) as u64
}

/// The axes along which the gradients of a parameter are summed: its reader is split, and reads all of it.
fn summed(chains: &Chains<'_>, op: OpId, input: usize) -> Vec<usize> {
    let carried = &chains.analysis.op(op).inputs[input];
    let splits = &chains.plan.op(op).splits;
    let split = |axis: &usize| loop_of(splits[*axis]).is_some_and(|at| !carried.contains(&Some(at)));
    (0..chains.line.groups.first().map_or(0, Vec::len)).filter(split).collect()
}

/// Whether the devices that divide a parameter are those of an axis.
fn along(chains: &Chains<'_>, home: &Home, (stage, axis): (usize, usize)) -> bool {
    let groups = &chains.line.groups[stage][axis];
    groups.iter().all(|group| home.groups.contains(group))
}
