//! Which constraints cannot hold together: as few as can be found.
//!
//! Of each plan with a name, and of each choice of a bundle, it is known which constraints it breaks. Constraints can hold
//! together if none of them is broken by some plan with a name, or by some choice of every bundle. Sets of up to three are
//! looked at by size, so that what is named is a smallest one; of larger ones constraints are taken out one after another,
//! as long as the rest clashes. Where memory is short, the search itself says whether something fits.

use std::collections::BTreeSet;

use diag::{Error, Result};
use plan::sets::auto;
use plan::{PlanName, sets};

use super::Constraints;
use crate::spmd::Skeleton;
use crate::{Evaluated, Question, Stop, Wanted, best, looked_for, shapes};

/// Sets of so many are looked at by size.
const FEW: usize = 3;
/// Of more constraints than this only sets of two are.
const MANY: usize = 40;

type Set = BTreeSet<usize>;

/// The refusal where no plan was found that respects all constraints.
pub(crate) fn clash(question: &Question<'_>, constraints: &Constraints) -> Result<Error> {
    let named = named(question, constraints);
    let skeleton = match question.devices {
        1 => None,
        _ => Some(Skeleton::new(&Question { constraints: Some(constraints), ..*question }, constraints)?),
    };
    let holds = |keep: &Set| {
        named.iter().any(|broken| broken.is_disjoint(keep))
            || skeleton.as_ref().is_some_and(|it| it.holds(keep))
    };
    if holds(&(0..constraints.all.len()).collect()) {
        // What respects them does not fit.
        return match too_tight(question, constraints)? {
            Some(error) => Ok(error),
            None => match best(
                &Question { constraints: None, stop: Stop::default(), ..*question },
                None,
                &mut |_| (),
            ) {
                Err(error) => Ok(error),
                Ok(_) => Ok(refusal(
                    question,
                    constraints,
                    &(0..constraints.all.len()).collect(),
                    " among those that the search found",
                )),
            },
        };
    }
    let stats: Set = smallest(constraints.all.len(), &holds);
    Ok(refusal(question, constraints, &stats, ""))
}

/// The same where plans respect them, and none of these fits; none if that is not for constraints.
pub(crate) fn too_tight(question: &Question<'_>, constraints: &Constraints) -> Result<Option<Error>> {
    let fits = |keep: &Set| -> Result<bool> {
        let some = constraints.only(keep, question.graph)?;
        let question =
            Question { constraints: (!keep.is_empty()).then_some(&some), stop: Stop::default(), ..*question };
        let result = looked_for(&question, Wanted { count: 1, below: f64::INFINITY }, &mut |_| ());
        Ok(result?.rows.iter().any(Evaluated::fits))
    };
    if constraints.all.is_empty() || !fits(&Set::new())? {
        return Ok(None);
    }
    let mut keep: Set = (0..constraints.all.len()).collect();
    for number in 0..constraints.all.len() {
        let without: Set = keep.iter().copied().filter(|it| *it != number).collect();
        if !fits(&without)? {
            keep = without;
        }
    }
    Ok(Some(refusal(question, constraints, &keep, " that fits into memory")))
}

/// A set that does not hold, of which every smaller part does.
fn smallest(count: usize, holds: &dyn Fn(&Set) -> bool) -> Set {
    let few = if count > MANY { FEW - 1 } else { FEW };
    if let Some(clash) = (1..=few).find_map(|size| first(count, size, &mut vec![], holds)) {
        return clash;
    }
    let mut keep: Set = (0..count).collect();
    for number in 0..count {
        keep.remove(&number);
        if holds(&keep) {
            keep.insert(number);
        }
    }
    keep
}

/// The first set of a size that does not hold.
fn first(count: usize, size: usize, known: &mut Vec<usize>, holds: &dyn Fn(&Set) -> bool) -> Option<Set> {
    if known.len() == size {
        let set: Set = known.iter().copied().collect();
        return (!holds(&set)).then_some(set);
    }
    for next in known.last().map_or(0, |last| last + 1)..count {
        known.push(next);
        let clash = first(count, size, known, holds);
        known.pop();
        if clash.is_some() {
            return clash;
        }
    }
    None
}

/// Of each plan with a name the constraints that it breaks.
fn named(question: &Question<'_>, constraints: &Constraints) -> Vec<Set> {
    let model = sets::Model::new(question.graph, question.analysis);
    let all = shapes(question.devices, question.batches);
    let usual = all.iter().flat_map(|shape| shape.fallbacks(shape.held()[0], auto::schedule()));
    let others = auto::other_schedules();
    let with_others = |name: PlanName| {
        let piped = others.iter().filter(|_| name.has(auto::schedule().set()));
        let other: Vec<PlanName> = piped.map(|it| name.instead_of(&auto::schedule(), *it)).collect();
        other.into_iter().chain([name])
    };
    let names: Vec<PlanName> = usual.flat_map(with_others).collect();
    let plans = names.iter().filter_map(|name| sets::named_of(name, &model, question.devices).ok());
    plans.map(|plan| constraints.broken(&plan, question.graph, question.analysis)).collect()
}

fn refusal(question: &Question<'_>, constraints: &Constraints, set: &Set, which: &str) -> Error {
    let stats: Vec<String> = set
        .iter()
        .map(|number| &constraints.all[*number])
        .map(|it| format!("`{}` ({})", it.text, it.place))
        .collect();
    let (model, devices) = (&question.graph.model, question.devices);
    let what = format!("no plan of {model} on {devices} devices{which} respects the constraints");
    let why = match &stats[..] {
        [one] => format!("none respects {one}"),
        _ => format!("none respects these together: {}", stats.join(", ")),
    };
    let error = Error::new("SW0333", what).why(why);
    match &stats[..] {
        [_] => error.fix("remove it, or relax it: fewer parts, another dim, `limit` instead of `pin`"),
        _ => error.fix("remove one of these: without it the others can hold"),
    }
}
