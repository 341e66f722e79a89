//! `whole-updates`: where devices hold parts of a parameter, one of them computes its update of the whole, for
//! optimizers that look at more of it than each element by itself.

use diag::Result;

use super::{AxisPlace, Model, Set};
use crate::Draft;

pub(super) const SET: Set = Set {
    besides: &[("", all)],
    examples: &["zero3 x whole-updates"],
    ..Set::new(
        "whole-updates",
        "the update of each sharded parameter is computed whole, on one of the devices that hold it",
    )
};

fn all(model: &Model<'_>, draft: &mut Draft<'_>, _: &AxisPlace<'_>) -> Result<()> {
    model.graph.tensor_ids().for_each(|tensor| draft.update_whole(tensor, true));
    Ok(())
}
