//! Operators that are tied, where stages of a pipeline run them.
//!
//! A stage does not know how others divide what is tied to its own. So for all stages it is said before: as in plans of one
//! block that cost least on as many devices as a stage has, of which several are tried. What is tied within one stage is as
//! in such a plan on its own devices.

use std::collections::BTreeMap;
use std::rc::Rc;

use elimination::{NEVER, Problem};
use graph::OpId;

use super::objective::{Look, Objective, Weights};
use super::sharding::splits;
use super::solved::solved;
use super::space::Space;
use crate::constraints::named_splits;

/// For each set of operators that are tied how they are divided; none where they cannot be.
pub(crate) type Divided = Vec<Option<Vec<(String, u32)>>>;

/// For each value of a bundle nothing, or what cannot be; and its number among all that differ.
pub(super) type Mask = (usize, Rc<[f64]>);

/// What is tied of a space whose bundles are in segments.
pub(super) struct Tied {
    sets: Vec<Vec<OpId>>,
    /// The first and last segment of each set.
    extents: Vec<(usize, usize)>,
    /// For each bundle its operators that are tied, and the set of each.
    of: Vec<Vec<(usize, OpId)>>,
    /// How sets are divided that are in one stage, and such as are in several.
    within: Divided,
    across: Divided,
    masks: BTreeMap<Vec<bool>, Mask>,
    known: BTreeMap<(usize, Vec<bool>), Mask>,
}

impl Tied {
    pub(super) fn new(space: &Space<'_>, segments: &[usize]) -> Self {
        let constraints = space.question.constraints;
        let sets: Vec<Vec<OpId>> =
            constraints.iter().flat_map(|it| it.ties()).map(|(_, set)| set.clone()).collect();
        let mut bundle = vec![0; space.question.graph.ops.len()];
        for (number, it) in space.bundles.iter().enumerate() {
            it.ops.iter().for_each(|op| bundle[op.index()] = number);
        }
        let mut memberships = vec![vec![]; space.bundles.len()];
        let mut extents = vec![(usize::MAX, 0); sets.len()];
        for (number, set) in sets.iter().enumerate() {
            for op in set {
                let (bundle_number, extent) = (bundle[op.index()], &mut extents[number]);
                memberships[bundle_number].push((number, *op));
                *extent = (extent.0.min(segments[bundle_number]), extent.1.max(segments[bundle_number]));
            }
        }
        let (within, across) = (vec![None; sets.len()], vec![None; sets.len()]);
        Self {
            sets,
            extents,
            of: memberships,
            within,
            across,
            masks: BTreeMap::new(),
            known: BTreeMap::new(),
        }
    }

    pub(super) fn fix(&mut self, within: &Divided, across: &Divided) {
        (self.within, self.across) = (within.clone(), across.clone());
        self.known.clear();
    }

    /// What is left of a bundle of a run; none if nothing of it is tied.
    pub(super) fn mask(
        &mut self,
        space: &Space<'_>,
        bundle: usize,
        (from, to): (usize, usize),
    ) -> Option<Mask> {
        let tied = &self.of[bundle];
        let is_within = |set: usize| from <= self.extents[set].0 && self.extents[set].1 < to;
        let key = (bundle, tied.iter().map(|(set, _)| is_within(*set)).collect::<Vec<bool>>());
        if tied.is_empty() {
            return None;
        }
        if let Some(known) = self.known.get(&key) {
            return Some(known.clone());
        }
        let divided = |at: &bool, set: usize| if *at { &self.within[set] } else { &self.across[set] };
        let fits = |choice| {
            let mut all = tied.iter().zip(&key.1);
            all.all(|((set, op), at)| divided(at, *set).as_ref() == Some(&key_of(space, *op, choice)))
        };
        let fits: Vec<bool> = space.bundles[bundle].choices.iter().map(fits).collect();
        let (next, costs) =
            (self.masks.len(), fits.iter().map(|fits| if *fits { 0.0 } else { NEVER }).collect());
        let mask = self.masks.entry(fits).or_insert((next, costs)).clone();
        self.known.insert(key, mask.clone());
        Some(mask)
    }

    /// How sets are divided where the whole model costs least under some weights; none if no plan respects the ties.
    pub(super) fn divided(&self, space: &Space<'_>, weights: &[Weights]) -> diag::Result<Vec<Divided>> {
        let mut ways: Vec<Divided> = vec![];
        for weights in weights {
            let problem = Objective::new(space, *weights)?.problem();
            let least = solved(&space.question, &without_none(problem)).filter(|least| least.cost < NEVER);
            let Some(least) = least else { continue };
            let values = space.ties.expand(&least.values);
            let keys_of = |(bundle, tied): (usize, &Vec<(usize, OpId)>)| {
                let choice = space.bundles[bundle].choices.get(values[bundle]);
                tied.iter().map(move |(set, op)| (*set, choice.map(|it| key_of(space, *op, it)))).collect()
            };
            let mut divided: Divided = vec![None; self.sets.len()];
            let all = self.of.iter().enumerate().flat_map::<Vec<_>, _>(keys_of);
            all.filter(|(_, key)| key.is_some()).for_each(|(set, key)| divided[set] = key);
            if !ways.contains(&divided) {
                ways.push(divided);
            }
        }
        Ok(ways)
    }
}

/// What a whole model is looked at with.
pub(super) fn weights(looks: &[Look], prices: &[f64]) -> Vec<Weights> {
    let weights_of =
        |look: &Look| prices.iter().map(|byte| Weights { look: *look, byte: *byte }).collect::<Vec<_>>();
    looks.iter().flat_map(weights_of).collect()
}

fn key_of(space: &Space<'_>, op: OpId, choice: &Vec<Option<usize>>) -> Vec<(String, u32)> {
    named_splits(&splits(space.digits, &space.loops(op, choice)), space.question.analysis, op)
}

/// Without bundles that have no choice, and what is between these and others.
fn without_none(mut problem: Problem) -> Problem {
    problem.terms.retain(|term| term.scope.iter().all(|at| problem.sizes[*at] > 0));
    problem.sizes.iter_mut().for_each(|size| *size = (*size).max(1));
    problem
}
