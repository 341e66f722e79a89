//! Plans that were found, as they are lowered and simulated.

use diag::Result;
use plan::Plan;

use super::digits::Digits;
use super::maker::Operators;
use super::messages::{Count, Messages};
use super::solution::{Candidate, Spaces, Stats, is_one};
use super::solved::limit;
use crate::reason::Reason;
use crate::{Evaluated, Evaluations, Own, Question};

/// So many of the plans that promise most are looked at each time.
const FEW: usize = 3;
/// How often less memory is asked for, where plans need more than was told of them.
const TIMES: usize = 3;
/// What takes more than so many times what was promised, may be so since little of what it sends is hidden.
const FAR: f64 = 1.25;
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
    let mut evaluations = Evaluations::default();
    evaluations.at(question, best(&first.plans), watch)?;
    if let Some(exposed) = where_little_is_hidden(question, &mut spaces, &evaluations.rows)? {
        evaluations.at(question, [exposed].into_iter(), watch)?;
    }
    let there = limit(question);
    let mut asked = there;
    let question = &Question { stop: question.stop.share(SHARE), ..*question };
    for _ in 0..TIMES {
        if evaluations.rows.iter().any(Evaluated::fits) || question.stop.is_late() {
            break;
        }
        // The lightest of them needs so much more than there is: by as much less than what was claimed of it.
        let over = |candidate: &&Evaluated| candidate.memory.1.saturating_sub(candidate.memory.2);
        let Some(lightest) = evaluations.rows.iter().min_by_key(over) else { break };
        let claimed = lightest.claim.map_or(u64::MAX, |claim| claim.totals.bytes as u64);
        let over = over(&lightest);
        asked = asked.min(claimed).saturating_sub(over + over / 8);
        let tighter = spaces.find(&Question { memory: Some(asked), ..*question }, false)?;
        if tighter.plans.is_empty() {
            break;
        }
        evaluations.at(question, best(&tighter.plans), watch)?;
    }
    Ok((evaluations, first.stats))
}

/// Those that promise most.
fn best(plans: &[Candidate]) -> impl Iterator<Item = Own> {
    let mut order: Vec<&Candidate> = plans.iter().collect();
    order.sort_by(|a, b| promised(a).total_cmp(&promised(b)));
    order.into_iter().take(FEW).map(with_reason)
}

fn promised(candidate: &Candidate) -> f64 {
    candidate.claim.totals.least()
}

fn with_reason(it: &Candidate) -> Own {
    let reason = Some(Reason::of_block(&it.plan, it.claim));
    Own { claim: Some(it.claim), reason, ..Own::new(it.plan.clone()) }
}

/// A plan that is best if nothing is hidden. Of what devices with two lines send, half is promised to take no time, and
/// nearly all of it may be on one of these.
fn where_little_is_hidden<'q>(
    question: &Question<'q>,
    spaces: &mut Spaces<'q>,
    evaluated: &[Evaluated],
) -> Result<Option<Own>> {
    let fitting = evaluated.iter().filter(|candidate| candidate.fits());
    let quickest = fitting.min_by(|a, b| a.seconds().total_cmp(&b.seconds()));
    // What fits only where much is recomputed is far from what does not fit, and that says nothing of links.
    let is_far = |it: &&Evaluated| it.claim.is_some_and(|claim| it.seconds() > FAR * claim.totals.least());
    let Some(quickest) = quickest.filter(is_far).map(Evaluated::seconds) else { return Ok(None) };
    if question.cluster.lines(question.devices) == 1 || question.stop.is_late() {
        return Ok(None);
    }
    let exposed = spaces.exposed(question)?.filter(|it| promised(it) < quickest);
    let is_known = |plan: &Plan| evaluated.iter().any(|it| is_one(&it.plan, plan));
    Ok(exposed.filter(|it| !is_known(&it.plan)).map(|it| with_reason(&it)))
}
