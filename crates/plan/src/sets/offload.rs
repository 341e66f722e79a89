//! `offload`: what a rank does not need for a while is on the host. With `offload:activations` that is what is kept
//! of each layer that repeats, from its forward to its backward; with `offload:state` the optimizer's state, between
//! steps; else both.

use diag::Result;

use super::recompute::layers_for;
use super::{Model, Place, Set};
use crate::Draft;

pub(super) const SET: Set = Set {
    name: "offload",
    doc: "what is not needed for a while is on the host",
    along: None,
    rounds: None,
    besides: &[("", both), ("activations", activations), ("state", state)],
};

fn both(model: &Model<'_>, draft: &mut Draft<'_>, place: &Place<'_>) -> Result<()> {
    activations(model, draft, place)?;
    state(model, draft, place)
}

fn state(_: &Model<'_>, draft: &mut Draft<'_>, _: &Place<'_>) -> Result<()> {
    draft.offload_state("\"*\"")
}

fn activations(model: &Model<'_>, draft: &mut Draft<'_>, _: &Place<'_>) -> Result<()> {
    layers_for(model, "offload")?.into_iter().for_each(|layer| draft.offload(layer));
    Ok(())
}
