//! Some layers that are computed again, and others not: where all of them need not be, only as many as memory asks for.
//!
//! What the layers of a stage keep is alike, so how many of them have to be computed again follows from two programs: one
//! that computes all of them again, which fits, and one that computes none. What follows is a plan as any other: it is lowered
//! and simulated, and taken if it fits and is quicker. Of a model without layers the spans are segments, of which one keeps
//! more than another: there as many are the first to be tried, and where these do not fit, more.

use diag::Result;
use plan::Plan;
use plan::sets::auto;

use crate::layers::Layers;
use crate::title::Title;
use crate::{Evaluated, Evaluations, Question, estimated};

/// So many of the quickest plans are looked at.
const FEW: usize = 2;
/// How often one more layer of each stage is computed again, where it does not fit after all.
const TIMES: usize = 3;

/// The best of rows, with fewer layers that are computed again.
pub(crate) fn rows(
    question: &Question<'_>,
    rows: &[Evaluated],
    watch: &mut dyn FnMut(&str),
) -> Result<Vec<Evaluated>> {
    let mut order: Vec<&Evaluated> = rows.iter().filter(|candidate| candidate.fits()).collect();
    order.sort_by(|a, b| a.seconds().total_cmp(&b.seconds()));
    let best = order.first().map_or(f64::INFINITY, |candidate| candidate.seconds());
    let may_be_best = |candidate: &&Evaluated| {
        candidate.plan.recompute.len() > 1 && candidate.seconds() - candidate.recomputed() < best
    };
    let few = order.into_iter().filter(may_be_best).take(FEW);
    let variants = few.map(|candidate| fewer(question, candidate, watch));
    Ok(variants.collect::<Result<Vec<Option<Evaluated>>>>()?.into_iter().flatten().collect())
}

/// As few layers as fit.
fn fewer(
    question: &Question<'_>,
    candidate: &Evaluated,
    watch: &mut dyn FnMut(&str),
) -> Result<Option<Evaluated>> {
    let none = Plan { recompute: vec![], ..candidate.plan.clone() };
    if question.respected(none.clone()).is_err() {
        return Ok(None);
    }
    let layers = Layers::new(&candidate.plan);
    if question.stop.is_late() {
        return Ok(None);
    }
    let without = estimated(question, &none)?.memory;
    let mut counts = layers.counts(question, &candidate.estimate.memory, &without);
    for _ in 0..TIMES {
        if counts == layers.all() {
            break;
        }
        let mut looked = Evaluations::default();
        let plan = recomputed(&candidate.plan, layers.first(&counts));
        looked.at(question, std::iter::once(candidate.with(plan)), watch)?;
        match looked.rows.pop() {
            Some(better) if better.fits() => {
                return Ok(Some(better).filter(|it| it.seconds() < candidate.seconds()));
            }
            Some(_) => {
                let one_more = |(count, all): (&mut usize, usize)| *count = all.min(*count + 1);
                counts.iter_mut().zip(layers.all()).for_each(one_more);
            }
            None => return Ok(None),
        }
    }
    Ok(None)
}

/// With so many of the layers alone.
fn recomputed(plan: &Plan, layers: Vec<usize>) -> Plan {
    let title = Title::parse(&plan.name);
    let title = match layers.len() {
        0 => title.without(auto::recomputes()),
        some => title.changed(format!("{some} of {} layers again", plan.recompute.len())),
    };
    let recompute = layers.into_iter().map(|number| plan.recompute[number].clone()).collect();
    Plan { name: title.to_string(), recompute, ..plan.clone() }
}
