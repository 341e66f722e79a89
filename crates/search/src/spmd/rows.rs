//! Plans that were found, as they are lowered and simulated.

use diag::Result;

use super::digits::Digits;
use super::maker::Operators;
use super::messages::{Count, Messages};
use super::solution::{Candidate, Spaces, Stats};
use super::solved::limit;
use crate::reason::Reason;
use crate::{Evaluated, Evaluations, Own, Question};

/// So many of the plans that promise most are looked at each time.
const FEW: usize = 3;
/// How often less memory is asked for, where plans need more than was told of them.
const TIMES: usize = 3;
/// So much of the time that is left is for that, the rest for other plans.
const SHARE: f64 = 0.2;

/// The best plans of one block, and what was found out about all of them. `watch` is told each.
pub(crate) fn rows(question: &Question<'_>, watch: &mut dyn FnMut(&str)) -> Result<(Evaluations, Stats)> {
    watch("auto");
    let digits = Digits::new(question.cluster, question.devices);
    let messages = Messages::new(question.cluster, &digits, Count::Alone);
    let operators = Operators::new(question);
    let mut spaces = Spaces::new((&operators, &digits, &messages));
    let first = spaces.find(question, true)?;
    let mut looked = Evaluations::default();
    looked.at(question, best(&first.plans), watch)?;
    let there = limit(question);
    let mut asked = there;
    let question = &Question { stop: question.stop.share(SHARE), ..*question };
    for _ in 0..TIMES {
        if looked.rows.iter().any(Evaluated::fits) || question.stop.is_late() {
            break;
        }
        // The lightest of them needs so much more than there is: by as much less than what was claimed of it.
        let over = |candidate: &&Evaluated| candidate.memory.1.saturating_sub(candidate.memory.2);
        let Some(lightest) = looked.rows.iter().min_by_key(over) else { break };
        let claimed = lightest.claim.map_or(u64::MAX, |claim| claim.totals.bytes as u64);
        let over = over(&lightest);
        asked = asked.min(claimed).saturating_sub(over + over / 8);
        let tighter = spaces.find(&Question { memory: Some(asked), ..*question }, false)?;
        if tighter.plans.is_empty() {
            break;
        }
        looked.at(question, best(&tighter.plans), watch)?;
    }
    Ok((looked, first.stats))
}

/// Those that promise most.
fn best(plans: &[Candidate]) -> impl Iterator<Item = Own> {
    let mut order: Vec<&Candidate> = plans.iter().collect();
    order.sort_by(|a, b| a.claim.totals.least().total_cmp(&b.claim.totals.least()));
    order.into_iter().take(FEW).map(|it| Own {
        claim: Some(it.claim),
        reason: Some(Reason::of_block(&it.plan, it.claim)),
        ..Own::new(it.plan.clone())
    })
}
