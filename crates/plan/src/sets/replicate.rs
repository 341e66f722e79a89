//! `replicate`: every device computes everything.

use super::{Along, Set};

pub(super) const SET: Set = Set {
    name: "replicate",
    doc: "every device computes everything",
    along: Some(Along {
        why: |_, _, _| "every device computes everything".into(),
        choose: |model, _| vec![None; model.graph.ops.len()],
        turns: None,
        must_find: false,
        stages: None,
        places: None,
        exchange: None,
    }),
    aside: None,
    rounds: None,
    besides: &[],
};
