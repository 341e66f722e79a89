//! `offload`: what a rank does not need for a while is on the host. With `offload:activations` that is what is kept
//! of each layer that repeats, or of each segment of a model without layers, from its forward to its backward; with `offload:state` the optimizer's state, between
//! steps; with `offload:parameters` the parameters themselves, between uses; else all of these.

use diag::Result;

use super::recompute::layers_or_segments;
use super::{Argument, Auto, AxisPlace, Model, Set};
use crate::Draft;

pub(super) const SET: Set = Set {
    besides: &[("", all), ("activations", activations), ("state", state), ("parameters", parameters)],
    auto: Auto::Offload(&[Argument::Word("activations"), Argument::Word("state")]),
    saves: &[Argument::Word("activations"), Argument::Word("state"), Argument::Word("parameters")],
    examples: &["zero3 x offload"],
    ..Set::new("offload", "what is not needed for a while is offloaded to the host")
};

fn all(model: &Model<'_>, draft: &mut Draft<'_>, place: &AxisPlace<'_>) -> Result<()> {
    activations(model, draft, place)?;
    state(model, draft, place)?;
    parameters(model, draft, place)
}

fn state(_: &Model<'_>, draft: &mut Draft<'_>, _: &AxisPlace<'_>) -> Result<()> {
    draft.offload_state("\"*\"")
}

fn parameters(_: &Model<'_>, draft: &mut Draft<'_>, _: &AxisPlace<'_>) -> Result<()> {
    draft.offload_parameters("\"*\"")
}

fn activations(model: &Model<'_>, draft: &mut Draft<'_>, _: &AxisPlace<'_>) -> Result<()> {
    layers_or_segments(model, "offload")?.iter().for_each(|layer| draft.offload(layer.clone()));
    Ok(())
}
