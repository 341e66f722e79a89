//! Parameters that several segments read. A stage holds each once, for the first of its segments that reads it; so what a
//! bundle holds depends on where the stage begins.

use std::collections::HashMap;
use std::rc::Rc;

use diag::Result;
use graph::TensorId;

use super::inner::InnerKey;
use super::objective::{Objective, Weights};
use super::param_sharding::Params;
use super::space::Space;

#[derive(Default)]
pub(super) struct SharedParams {
    /// For each bundle its parameters that an earlier segment reads, and the last one that does.
    before: Vec<Vec<(usize, usize)>>,
    /// For each bundle those of them that a later segment reads, too.
    between: Vec<Params>,
    /// Costs by what is asked, the kind of bundle, and what it does not hold.
    known: HashMap<(InnerKey, usize, Params), Rc<[f64]>>,
}

impl SharedParams {
    pub(super) fn new(space: &Space<'_>, segments: &[usize]) -> Self {
        let mut readers: HashMap<TensorId, Vec<usize>> = HashMap::new();
        for (bundle, segment) in space.bundles.iter().zip(segments) {
            bundle.params.iter().for_each(|tensor| readers.entry(*tensor).or_default().push(*segment));
        }
        let (mut before, mut between) = (vec![], vec![]);
        for (bundle, segment) in space.bundles.iter().zip(segments) {
            let mut shared = vec![];
            let mut inside = 0;
            for (at, tensor) in bundle.params.iter().enumerate().take(Params::BITS as usize) {
                let earlier = readers[tensor].iter().filter(|reader| *reader < segment).max();
                shared.extend(earlier.map(|earlier| (at, *earlier)));
                let is_last = !readers[tensor].iter().any(|reader| reader > segment);
                inside |= if earlier.is_some() && !is_last { 1 << at } else { 0 };
            }
            before.push(shared);
            between.push(inside);
        }
        Self { before, between, known: HashMap::new() }
    }

    /// Those of a bundle that are held for an earlier segment of a run that begins with `first`.
    pub(super) fn held_before(&self, bundle: usize, first: usize) -> Params {
        let before = self.before[bundle].iter().filter(|(_, segment)| *segment >= first);
        before.fold(0, |params, (at, _)| params | 1 << at)
    }

    /// Those of a bundle that an earlier and a later segment read.
    pub(super) fn between(&self, bundle: usize) -> Params {
        self.between[bundle]
    }

    /// What a bundle's choices cost if it does not hold some parameters.
    pub(super) fn costs(
        &mut self,
        space: &Space<'_>,
        bundle: usize,
        without: Params,
        (asked, weights): (InnerKey, Weights),
    ) -> Result<Rc<[f64]>> {
        let unary = &space.bundles[bundle].unary;
        let key = (asked, Rc::as_ptr(unary) as usize, without);
        if let Some(known) = self.known.get(&key) {
            return Ok(Rc::clone(known));
        }
        let objective = Objective::new(space, weights)?.of_stage(f64::from(asked.2));
        let costs: Rc<[f64]> = unary.iter().map(|it| objective.bundle_cost(it, without)).collect();
        self.known.insert(key, Rc::clone(&costs));
        Ok(costs)
    }
}
