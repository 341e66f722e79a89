//! What plans of one block may compute again.

use std::sync::LazyLock;

use graph::OpId;
use plan::sets::{SetTerm, auto};
use plan::{PlanName, sets};

use crate::Question;

/// What is recomputed, from nothing to everything.
pub(crate) fn recompute() -> &'static [Option<SetTerm>] {
    static ALL: LazyLock<Vec<Option<SetTerm>>> =
        LazyLock::new(|| std::iter::once(None).chain(auto::recompute().into_iter().map(Some)).collect());
    &ALL
}

/// Whether constraints let these be computed again.
pub(super) fn may_recompute(question: &Question<'_>, spans: &[Vec<OpId>]) -> bool {
    spans.is_empty() || question.constraints.is_none_or(|it| it.no_recompute().is_none())
}

/// What backward computes again; none where the model has no layers for it.
pub(crate) fn spans(question: &Question<'_>, recomputed: Option<SetTerm>) -> Option<Vec<Vec<OpId>>> {
    let name = PlanName::new(vec![SetTerm::bare(auto::alone())].into_iter().chain(recomputed).collect());
    let model = sets::Model::new(question.graph, question.analysis);
    sets::named_of(&name, &model, 1).ok().map(|plan| plan.recompute)
}
