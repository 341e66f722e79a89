//! The tables of a group of devices under weights, and of them those of a run.

use std::collections::HashMap;
use std::rc::Rc;

use diag::Result;
use elimination::{Problem, Term};

use super::messages::MessagePrice;
use super::objective::{Look, Objective, UNIT, Weights};
use super::param_sharding::Params;
use super::shared::SharedParams;
use super::space::Space;

/// Tables under weights.
pub(super) struct Priced {
    pub(super) weights: Weights,
    /// Where each bundle decides for itself.
    pub(super) all: Problem,
    /// What a byte costs that comes from another stage.
    pub(super) byte: f64,
    pub(super) crossing: HashMap<usize, Rc<[f64]>>,
}

impl Priced {
    /// What bytes that come from another stage cost.
    pub(super) fn crossing(&mut self, bytes: &Rc<[f64]>) -> Rc<[f64]> {
        let key = Rc::as_ptr(bytes).cast::<f64>() as usize;
        let made = || bytes.iter().map(|bytes| (bytes * self.byte).floor()).collect();
        Rc::clone(self.crossing.entry(key).or_insert_with(made))
    }

    /// The tables that are within a run.
    pub(super) fn problem(&self, members: &[usize], places: &[Option<usize>], edges: &[usize]) -> Problem {
        let place = |bundle: &usize| places[*bundle].expect("it is within");
        let bundles = members.iter().map(|at| &self.all.terms[*at]);
        let between = edges.iter().map(|at| &self.all.terms[places.len() + at]);
        let term = |term: &Term| Term {
            scope: term.scope.iter().map(place).collect(),
            costs: Rc::clone(&term.costs),
        };
        Problem {
            sizes: members.iter().map(|at| self.all.sizes[*at]).collect(),
            terms: bundles.chain(between).map(term).collect(),
        }
    }
}

/// For each segment bytes that are there all the time, and of each micro-batch, at least.
pub(super) fn least_bytes(
    space: &Space<'_>,
    (segments, count): (&[usize], usize),
    shared: &SharedParams,
) -> Result<Vec<(f64, f64)>> {
    // Nothing but bytes counts.
    let weights = Weights { look: Look::hiding(0.0, 0.0), byte: 1.0 / UNIT };
    let objective = Objective::new(space, weights)?;
    let mut bytes = vec![(0.0, 0.0); count];
    let mut known: HashMap<(usize, Params), (f64, f64)> = HashMap::new();
    for (number, (bundle, segment)) in space.bundles.iter().zip(segments).enumerate() {
        // An earlier segment of a run may hold what is read before and behind.
        let without = shared.between(number);
        let least = || {
            let kept = |value: usize| bundle.unary[value].kept;
            let held = |value: usize| objective.of_bundle_without(number, value, without).bytes - kept(value);
            let all = 0..bundle.unary.len();
            (all.clone().map(held).fold(f64::INFINITY, f64::min), all.map(kept).fold(f64::INFINITY, f64::min))
        };
        let key = (Rc::as_ptr(&bundle.unary) as usize, without);
        let (held, kept) = *known.entry(key).or_insert_with(least);
        bytes[*segment] = (bytes[*segment].0 + held, bytes[*segment].1 + kept);
    }
    Ok(bytes)
}

/// For each segment seconds of a micro-batch without what is between bundles, at least: in all, forward and backward.
pub(super) fn least_seconds(space: &Space<'_>, segments: &[usize], count: usize) -> Vec<[f64; 3]> {
    let mut seconds = vec![[0.0; 3]; count];
    for (bundle, segment) in space.bundles.iter().zip(segments) {
        let least = bundle.unary.iter().map(|unary| in_each(&unary.price)).fold([f64::INFINITY; 3], lesser);
        seconds[*segment].iter_mut().zip(least).for_each(|(all, part)| *all += part);
    }
    seconds
}

/// Seconds in all, forward and backward.
fn in_each(price: &MessagePrice) -> [f64; 3] {
    let (all, backward) = (price.work + price.line, price.back + price.line_back);
    [all, (all - backward).max(0.0), backward]
}

fn lesser(one: [f64; 3], other: [f64; 3]) -> [f64; 3] {
    std::array::from_fn(|at| one[at].min(other[at]))
}
