//! Some layers that are recomputed, and others less or not at all: where all of them need not be, only as many as memory
//! asks for.
//!
//! What the layers of a stage keep is alike, so how many of them have to be recomputed follows from programs that recompute
//! all of them in the same degree. What follows is a plan as any other: it is lowered and simulated, and taken if it fits and
//! is quicker. Of a model without layers the spans are segments, of which one keeps more than another: there as many are the
//! first to be tried, and where these do not fit, more.

use diag::Result;

use crate::layers::{Choice, Choices, Degrees, Layers};
use crate::{Evaluated, Evaluations, Question, estimated};

/// So many of the quickest plans are looked at, and as many of those with state on the host.
const FEW: usize = 2;
/// How often one more layer of each stage is recomputed, where it does not fit after all.
const TIMES: usize = 3;

/// The best of rows, with less that is recomputed.
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
    let may_be_best = order.into_iter().filter(may_be_best);
    let (here, on_host): (Vec<&Evaluated>, _) = may_be_best.partition(|it| it.plan.state_on_host.is_empty());
    let few: Vec<&Evaluated> =
        [here, on_host].into_iter().flat_map(|kind| kind.into_iter().take(FEW)).collect();
    if few.is_empty() {
        return Ok(vec![]);
    }
    let degrees = Degrees::new(question);
    let variants = few.into_iter().map(|candidate| fewer(question, candidate, &degrees, watch));
    Ok(variants.collect::<Result<Vec<Option<Evaluated>>>>()?.into_iter().flatten().collect())
}

/// As little as fits.
fn fewer(
    question: &Question<'_>,
    candidate: &Evaluated,
    degrees: &Degrees,
    watch: &mut dyn FnMut(&str),
) -> Result<Option<Evaluated>> {
    let layers = Layers::new(degrees, &candidate.plan);
    let Some(mut mixed) = mixed(question, candidate, &layers)? else { return Ok(None) };
    for _ in 0..TIMES {
        let choices = layers.mixed(&mixed);
        if choices == layers.choices {
            break;
        }
        let mut looked = Evaluations::default();
        looked.at(question, std::iter::once(candidate.with(layers.with(&choices))), watch)?;
        match looked.rows.pop() {
            Some(better) if better.fits() => {
                return Ok(Some(better).filter(|it| it.seconds() < candidate.seconds()));
            }
            Some(_) => mixed.iter_mut().for_each(|block| block.count += 1),
            None => return Ok(None),
        }
    }
    Ok(None)
}

/// Of a block: so many of the first layers are recomputed in a degree, and the others in the one below.
struct Mixed {
    degree: usize,
    count: usize,
}

/// In which degrees the layers of each block fit; none where a plan must not recompute less.
fn mixed(question: &Question<'_>, candidate: &Evaluated, layers: &Layers<'_>) -> Result<Option<Vec<Mixed>>> {
    let (most, blocks) = (layers.most(), layers.choices.len());
    let mut mixed: Vec<Option<Mixed>> = (0..blocks).map(|_| None).collect();
    // Of the degree above.
    let mut with = candidate.estimate.memory.clone();
    for degree in (0..most).rev() {
        let plan = layers.with(&layers.map(|choice| at_most(choice, degree)));
        if question.respected(plan.clone()).is_err() || question.stop.is_late() {
            return Ok(None);
        }
        let without = estimated(question, &plan)?.memory;
        let shares = layers.shares(question, &with, &without);
        for (block, share) in shares.into_iter().enumerate().filter(|(_, share)| *share > 0.0) {
            let count = layers.choices[block].iter().filter(|choice| !choice.is_offloaded).count();
            let count = (share * count as f64).ceil() as usize;
            mixed[block].get_or_insert(Mixed { degree: degree + 1, count });
        }
        if mixed.iter().all(Option::is_some) {
            break;
        }
        with = without;
    }
    Ok(Some(mixed.into_iter().map(|it| it.unwrap_or(Mixed { degree: 0, count: 0 })).collect()))
}

/// What is on the host is as it is.
fn at_most(choice: Choice, degree: usize) -> Choice {
    let degree = if choice.is_offloaded { choice.degree } else { choice.degree.min(degree) };
    Choice { degree, ..choice }
}

impl Layers<'_> {
    fn mixed(&self, mixed: &[Mixed]) -> Choices {
        let of_block = |(block, Mixed { degree, count }): (&Vec<Choice>, &Mixed)| {
            let mut left = *count;
            let mut choose = |choice: &Choice| {
                let is_more = left > 0 && !choice.is_offloaded;
                left -= usize::from(is_more);
                at_most(*choice, if is_more { *degree } else { degree.saturating_sub(1) })
            };
            block.iter().map(&mut choose).collect()
        };
        self.choices.iter().zip(mixed).map(of_block).collect()
    }
}
