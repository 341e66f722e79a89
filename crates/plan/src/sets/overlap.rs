//! `overlap`: in backward, sums of gradients travel while gradients of parameters are computed, whatever their size. With
//! `overlap:never` none does.

use super::Set;

pub(super) const SET: Set = Set {
    name: "overlap",
    doc: "in backward, gradients are reduced while weight gradients are computed",
    along: None,
    aside: None,
    rounds: None,
    besides: &[
        ("", |_, draft, _| {
            draft.overlap(0);
            Ok(())
        }),
        ("never", |_, draft, _| {
            draft.overlap(u64::MAX);
            Ok(())
        }),
    ],
};
