//! `tokens`: the sequence of a causal model goes through the stages of a pipeline in slices, so that a stage works on one
//! while the next stage works on the one before. A slice attends to the keys and values of those before it.

use diag::Result;

use super::blocks::stages;
use super::{AxisPlace, Model, NUMBER, Set};
use crate::Draft;

pub(super) const SET: Set = Set {
    besides: &[("", as_many_as_stages), (NUMBER, |model, draft, place| in_slices(model, draft, place.size))],
    examples: &["stages:2 x tokens:4"],
    ..Set::new(
        "tokens",
        "slices of the sequence flow through a pipeline, for models in which no token needs later ones",
    )
};

fn as_many_as_stages(model: &Model<'_>, draft: &mut Draft<'_>, _: &AxisPlace<'_>) -> Result<()> {
    let count = stages(model, draft, SET.name)?.devices.len();
    in_slices(model, draft, u32::try_from(count).unwrap_or(u32::MAX))
}

fn in_slices(model: &Model<'_>, draft: &mut Draft<'_>, count: u32) -> Result<()> {
    stages(model, draft, SET.name)?;
    draft.tokens(count);
    Ok(())
}
