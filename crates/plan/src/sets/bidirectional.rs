//! `bidirectional`: one half of each micro-batch goes through the stages from the first to the last, the other one through
//! stages on the same devices from the last to the first. Each device has two stages, so that it waits less for the first
//! micro-batch and after the last one; parameters are held twice, and their gradients summed over both.

use diag::Result;
use graph::OpId;

use super::blocks::{Stages, stages};
use super::{AxisPlace, Model, Set, data};
use crate::{Draft, On, Split, legal};

pub(super) const SET: Set = Set {
    besides: &[("", both_ways)],
    examples: &["stages:2 x bidirectional"],
    ..Set::new(
        "bidirectional",
        "half of each micro-batch flows through the pipeline one way, half the other way",
    )
};

fn both_ways(model: &Model<'_>, draft: &mut Draft<'_>, _: &AxisPlace<'_>) -> Result<()> {
    let stages = stages(model, draft, SET.name)?;
    let batch = data::choose(model, 2);
    for op in model.graph.op_ids() {
        let devices = draft.devices_of(op);
        let opposite = stages.opposite(op, &devices);
        let splits = |on: On| [&[Split { on, parts: 2 }], draft.splits_of(op)].concat();
        let halves = batch[op.index()].map(|index| splits(On::Loop(index)));
        let halves = halves.filter(|halves| legal(model.graph, model.analysis, op, halves).is_ok());
        if halves.is_none() && devices == opposite {
            continue;
        }
        draft.set(op, halves.unwrap_or_else(|| splits(On::Copies)));
        draft.place(op, [devices, opposite].concat())?;
    }
    Ok(())
}

impl Stages {
    /// Where the other half of an operator runs: on devices in the same places of the stage as far from the end.
    fn opposite(&self, op: OpId, devices: &[u32]) -> Vec<u32> {
        let stage = self.of[self.blocks[op.index()] as usize];
        let (here, there) = (&self.devices[stage], &self.devices[self.devices.len() - 1 - stage]);
        let place = |device: &u32| here.iter().position(|it| it == device).unwrap_or(0);
        devices.iter().map(|device| there.get(place(device)).copied().unwrap_or(*device)).collect()
    }
}
