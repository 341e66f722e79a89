//! What constraints demand of operators.

use std::collections::BTreeSet;

use graph::OpId;
use plan::classes::Classes;

use crate::Question;

/// For each operator what is demanded of it along the model's dims: equal of those that can be one decision.
pub(super) fn marks(question: &Question<'_>, classes: &Classes) -> Vec<String> {
    let mark_of = |op: OpId| {
        let class = |index| classes.of_loop(op, index);
        question.constraints.map_or_else(String::new, |it| it.mark(op, class))
    };
    question.graph.op_ids().map(mark_of).collect()
}

/// What is demanded of operators along their own loops: equal of bundles that have the same choices.
pub(super) fn own_marks(question: &Question<'_>, ops: &[OpId]) -> Option<String> {
    let constraints = question.constraints?;
    let marks: Vec<String> = ops.iter().map(|op| constraints.mark(*op, |index| index)).collect();
    marks.iter().any(|mark| !mark.is_empty()).then(|| format!("{marks:?}"))
}

/// The dims along which constraints have operators divided.
pub(super) fn pinned(question: &Question<'_>, classes: &Classes, ops: &[OpId]) -> BTreeSet<usize> {
    let Some(constraints) = question.constraints else { return BTreeSet::new() };
    let classes_of =
        |op: &OpId| constraints.divides(*op).map(|index| classes.of_loop(*op, index)).collect::<Vec<_>>();
    ops.iter().flat_map(classes_of).collect()
}
