//! Why a pipeline that was found divides an operator as it does: as that takes least of the operator's stage.

use diag::Result;
use graph::OpId;

use super::ask::Run;
use super::groups::Groups;
use super::segments::Segments;
use crate::constraints::Constraints;
use crate::spmd::{Count, Digits, Divided, Explanation, Messages, Operators, RunClaim, Runs};
use crate::{Question, bound};

/// A block of a pipeline, and what it is least in.
#[derive(Clone, Debug)]
pub struct Claimed {
    pub(crate) run: Run,
    pub(super) way: RunClaim,
    /// How what is tied is divided in it, and across several.
    pub(super) fixed: Option<(Divided, Divided)>,
}

pub(crate) fn explain(
    question: &Question<'_>,
    claimed: &Claimed,
    op: OpId,
    most: usize,
) -> Result<Option<Explanation>> {
    let (segments, groups) = (Segments::new(question), Groups::new(question.cluster, question.devices));
    let cluster = &groups.kinds[groups.kind(claimed.run.devices)];
    let digits = Digits::new(cluster, cluster.devices());
    let messages = Messages::new(cluster, &digits, Count::Alone);
    let operators = Operators::new(question);
    let anywhere = question.constraints.map(Constraints::anywhere);
    let group_question =
        Question { cluster, devices: cluster.devices(), constraints: anywhere.as_ref(), ..*question };
    let cut = (&segments.of[..], &segments.crossing[..]);
    let mut runs = Runs::new(group_question, (&operators, &digits, &messages), cut, bound(question)?);
    if let Some((within, across)) = &claimed.fixed {
        runs.fix(within, across);
    }
    runs.explain(claimed.run.segments, &claimed.way, op, most)
}
