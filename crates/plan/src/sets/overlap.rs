//! `overlap`: in backward, sums of gradients travel while gradients of parameters are computed, whatever their size. With
//! `overlap:never` none does.

use super::Set;

pub(super) const SET: Set = Set {
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
    examples: &["megatron x overlap"],
    ..Set::new("overlap", "in backward, gradients are reduced while weight gradients are computed")
};
