//! `replicate`: every device computes everything.

use super::{Along, Auto, Set};

pub(super) const SET: Set = Set {
    along: Some(Along {
        must_find: false,
        ..Along::new(
            |model, _| vec![None; model.graph.ops.len()],
            |_, _, _| "every device computes everything".into(),
        )
    }),
    auto: Auto::Alone,
    ..Set::new("replicate", "every device computes everything")
};
