//! Plans that were found, as they are lowered and simulated.

use std::time::Instant;

use diag::Result;

use super::solution::{Candidate, Told, find, is_late};
use crate::{Question, Row, row};

/// So many of the plans that promise most are looked at each time.
const FEW: usize = 3;
/// How often less memory is asked for, where plans need more than was told of them.
const TIMES: usize = 3;

/// The best plans of one block, and what was found out about all of them. `watch` is told each.
pub(crate) fn rows(
    question: &Question<'_>,
    end: Option<Instant>,
    watch: &mut dyn FnMut(&str),
) -> Result<(Vec<Row>, Told)> {
    watch("auto");
    let found = find(question, end)?;
    let mut rows = looked_at(question, &found.plans, watch)?;
    let there = limit(question);
    let mut asked = there;
    for _ in 0..TIMES {
        if rows.iter().any(Row::fits) || is_late(end) {
            break;
        }
        // By as much less as the least of them needs more than there is.
        let Some(over) = rows.iter().map(|row| row.memory.1.saturating_sub(row.memory.2)).min() else {
            break;
        };
        asked = asked.saturating_sub(over + over / 8);
        let tighter = find(&Question { memory: Some(asked), ..*question }, end)?;
        if tighter.plans.is_empty() {
            break;
        }
        rows.extend(looked_at(question, &tighter.plans, watch)?);
    }
    Ok((rows, found.told))
}

fn looked_at(question: &Question<'_>, plans: &[Candidate], watch: &mut dyn FnMut(&str)) -> Result<Vec<Row>> {
    let mut order: Vec<&Candidate> = plans.iter().collect();
    order.sort_by(|a, b| a.claim.totals.least().total_cmp(&b.claim.totals.least()));
    let mut rows = vec![];
    for candidate in order.into_iter().take(FEW) {
        watch(&candidate.plan.name);
        rows.push(Row { claim: Some(candidate.claim), ..row(question, candidate.plan.clone())? });
    }
    Ok(rows)
}

/// Bytes of the device that has fewest.
pub fn limit(question: &Question<'_>) -> u64 {
    (0..question.devices).map(|rank| question.there(rank)).min().unwrap_or(0)
}
