//! `replicate`: every device computes everything.

use super::{Along, Set};

pub(super) const SET: Set = Set {
    name: "replicate",
    doc: "every device computes everything",
    along: Some(Along {
        must_find: false,
        ..Along::of(
            |model, _| vec![None; model.graph.ops.len()],
            |_, _, _| "every device computes everything".into(),
        )
    }),
    aside: None,
    rounds: None,
    besides: &[],
};
