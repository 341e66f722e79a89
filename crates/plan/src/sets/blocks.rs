//! The blocks of a plan with stages: one for each stage, or several.

use diag::{Error, Result};
use graph::{Graph, OpId};

use super::axes::Axis;
use super::{Model, PlanName, Rounds};
use crate::Draft;

/// None where no axis is one of stages.
#[derive(Default)]
pub(super) struct Blocks {
    /// The block of each operator.
    of: Vec<u32>,
    stages: u32,
    rounds: Option<(Rounds, u32)>,
}

pub(super) fn from_axes(name: &PlanName, model: &Model<'_>, axes: &[Axis]) -> Result<Blocks> {
    let mut staged = axes.iter().filter_map(|axis| Some((axis.size, axis.along.stages?)));
    let rounds = name.rounds()?;
    let Some((stages, cut)) = staged.next() else {
        return if rounds.is_some() { Err(without_stages(name)) } else { Ok(Blocks::default()) };
    };
    if staged.next().is_some() {
        return Err(Error::new("SW0310", "a plan has one axis of stages")
            .why("a stage cannot have stages of its own")
            .fix("write the product as the number of stages"));
    }
    let count = |(rounds, said): (Rounds, Option<u32>)| Ok((rounds, (rounds.count)(model, said)?));
    let rounds = rounds.map(count).transpose()?;
    let all = stages.saturating_mul(rounds.map_or(1, |(_, count)| count));
    let count = model.graph.ops.len();
    if all as usize > count {
        let what = format!("{all} stages cannot be made of {count} operators");
        return Err(Error::new("SW0324", what)
            .why("each stage has at least one operator")
            .fix("use fewer stages"));
    }
    let aside = name.aside(model, stages);
    let blocks = match rounds {
        Some((rounds, count)) => (rounds.cut)(model, &aside, stages, count),
        None => cut(model, &aside, stages),
    };
    if let Some(block) = (0..all).find(|block| rounds.is_some() && !blocks.contains(block)) {
        return Err(Error::new("SW0324", format!("block {block} of `{name}` would have no operators"))
            .why(format!("{stages} stages of {} are to have {} blocks each", model.graph.model, all / stages))
            .fix("use fewer stages"));
    }
    Ok(Blocks { of: blocks, stages, rounds })
}

fn without_stages(name: &PlanName) -> Error {
    Error::new("SW0310", format!("`{name}` says how many blocks a stage has, but has no stages"))
        .why("the blocks are those of the stages of a pipeline")
        .fix("say how many stages there are: `stages:2 x interleaved:2`")
}

impl Blocks {
    /// Of an operator, along the axis of stages.
    pub fn stage(&self, op: OpId) -> u32 {
        let block = self.of.get(op.index()).copied().unwrap_or(0);
        self.rounds.map_or(block, |(rounds, _)| (rounds.stage)(block, self.stages))
    }

    /// The operators of each.
    pub fn each(&self, graph: &Graph) -> Vec<Vec<OpId>> {
        let count = self.of.iter().max().map_or(0, |last| last + 1);
        let ops_of = |block: u32| graph.op_ids().filter(|op| self.of[op.index()] == block).collect();
        (0..count).map(ops_of).collect()
    }
}

/// The stages of a draft.
pub(super) struct Stages {
    /// Of each, in their order.
    pub devices: Vec<Vec<u32>>,
    /// The stage of each block: those on the same devices are on one.
    pub of: Vec<usize>,
    /// The block of each operator.
    pub blocks: Vec<u32>,
}

/// Refuses a draft that has none.
pub(super) fn stages(model: &Model<'_>, draft: &Draft<'_>, set: &str) -> Result<Stages> {
    let blocks: Vec<u32> = draft.blocks().iter().flatten().copied().collect();
    if blocks.len() < model.graph.ops.len() {
        return Err(Error::new("SW0310", format!("`{set}` is for a pipeline"))
            .why("it is a schedule of stages, and the plan has no stages")
            .fix(format!("write for example `stages:4 x {set}`")));
    }
    let mut all: Vec<Vec<u32>> = vec![];
    for (op, block) in model.graph.op_ids().zip(&blocks) {
        all.resize(all.len().max(*block as usize + 1), vec![]);
        all[*block as usize].extend(draft.devices_of(op));
    }
    all.iter_mut().for_each(|devices| {
        devices.sort_unstable();
        devices.dedup();
    });
    let mut devices = all.clone();
    devices.sort();
    devices.dedup();
    let stage_of =
        all.iter().map(|block_devices| devices.binary_search(block_devices).unwrap_or(0)).collect();
    Ok(Stages { devices, of: stage_of, blocks })
}
