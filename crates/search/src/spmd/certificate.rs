//! What no plan of one block can beat: the least of the same tables with costs that no lowering goes below.

use diag::Result;
use graph::{OpId, Source, Tensor};

use super::digits::Digits;
use super::maker::Operators;
use super::messages::{Count, Messages};
use super::objective::{FIRST, Objective, UNIT, Weights};
use super::solved::{limit, solved};
use super::space::Space;
use crate::Question;

/// What was looked at of the plans that compute the same again.
pub(super) struct Searched {
    pub(super) spans: Vec<Vec<OpId>>,
    /// Under which the least was largest.
    pub(super) weights: Option<Weights>,
    /// Whether a plan was left out because it does not fit.
    pub(super) is_tight: bool,
}

impl Searched {
    /// Under which weights the least is a bound. Without a price for bytes it is one for all that compute more again, too.
    fn weights(&self, is_priced: bool) -> Weights {
        match self.weights {
            Some(weights) if self.is_tight && is_priced => weights,
            Some(Weights { look, .. }) => Weights { look, byte: 0.0 },
            None => Weights { look: FIRST[0], byte: 0.0 },
        }
    }
}

/// Seconds of a step. What `looked` leaves out computes more again than the last of it, which was not tight.
pub(super) fn bound(
    question: &Question<'_>,
    operators: &Operators<'_>,
    digits: &Digits,
    looked: &[Searched],
    sums: &mut f64,
) -> Result<f64> {
    let messages = Messages::new(question.cluster, digits, Count::Least);
    // Plans with names divide what is frozen, too, and then need fewer bytes than any in the space.
    let frozen = |it: &Tensor| matches!(it.source, Source::Param { frozen: true, .. });
    let is_priced = !question.graph.tensors.iter().any(frozen);
    let (limit, mut bound) = (limit(question) as f64, f64::INFINITY);
    for fallback in looked {
        let Some(space) = Space::new(question, (operators, digits, &messages), &fallback.spans) else {
            continue;
        };
        let weights = fallback.weights(is_priced);
        let objective = Objective::new(&space, weights)?;
        let Some(solution) = solved(question, &objective.problem()) else { return Ok(0.0) };
        *sums += solution.sums.0;
        bound = bound.min((solution.cost - weights.byte * limit) * UNIT);
        if !fallback.is_tight {
            break;
        }
    }
    // Where there is no such plan nothing is claimed.
    Ok(if bound.is_finite() { bound } else { 0.0 })
}
