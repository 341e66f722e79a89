//! Solves tables: how large these may be, and how much memory a plan may need.

use elimination::{Least, Problem, Solver};

use crate::Question;

/// No table has more entries than this times the values of a variable.
pub(super) const MOST: f64 = 4e8;

/// The least sum; none where it is too large, or late.
pub(super) fn solved(question: &Question<'_>, problem: &Problem) -> Option<Least> {
    Solver::default().solve_until(problem, MOST, &|| question.stop.is_late())
}

/// The same; where it is too large, what is as good as that of fewer values.
pub(super) fn solved_nearly(question: &Question<'_>, problem: &Problem) -> Option<Least> {
    Solver::default().solve_nearly(problem, MOST, &|| question.stop.is_late())
}

/// The least sum of so many values of each variable, those that promise most.
pub(super) fn solved_among(question: &Question<'_>, problem: &Problem, count: usize) -> Option<Least> {
    Solver::default().solve_among(problem, count, &[], MOST, &|| question.stop.is_late())
}

/// Bytes of the device that has fewest.
pub fn limit(question: &Question<'_>) -> u64 {
    (0..question.devices).map(|rank| question.there(rank)).min().unwrap_or(0)
}
