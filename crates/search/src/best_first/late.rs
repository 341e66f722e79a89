//! What is looked at where no time is left, or where nothing fits: the plans that need least.

use diag::Result;
use plan::PlanName;

use super::{Fallback, Search};
use crate::candidate;

/// What needs no more than this share of the memory at least, fits most often.
const ROOM: f64 = 0.6;

impl Search<'_, '_> {
    /// Where it is late and nothing fits: of each shape what needs least, first what is quick of that which surely fits.
    pub(super) fn hurry(&mut self) -> Result<()> {
        let mut all: Vec<Fallback> = vec![];
        for mut fallback in std::mem::take(&mut self.open) {
            // The last way to hold parameters needs least.
            if self.has_least_held(fallback.shape, &fallback.names[0]) {
                fallback.at = fallback.names.len() - 1;
                let Some(plan) = self.named(&fallback.names[fallback.at].clone()) else { continue };
                (fallback.bound, fallback.is_own) = (self.leasts.bound(&plan)?, true);
                all.push(fallback);
            } else {
                self.open.push(fallback);
            }
        }
        let there = self.question.most();
        let memory = |fallback: &Fallback| fallback.bound.memory.max((ROOM * there as f64) as u64);
        all.sort_by(|a, b| {
            memory(a)
                .cmp(&memory(b))
                .then(a.bound.seconds.total_cmp(&b.bound.seconds))
                .then(a.place.cmp(&b.place))
        });
        for (at, fallback) in all.into_iter().enumerate() {
            if self.fits() || at > 0 && self.question.stop.is_over() {
                break;
            }
            self.step(fallback)?;
        }
        Ok(())
    }

    fn has_least_held(&self, shape: usize, name: &PlanName) -> bool {
        let shape = self.shape(shape);
        shape.copies == 1 || shape.held().last().is_some_and(|held| name.has(held))
    }

    /// If there is no plan so far, the one that needs least: so that it can be said how much that is.
    pub(super) fn least_of_all(&mut self) -> Result<()> {
        if !self.found.rows.is_empty() {
            return Ok(());
        }
        let Some(bound) =
            self.too_large.iter().min_by_key(|fallback| (fallback.bound.memory, fallback.place))
        else {
            return Ok(());
        };
        let last = bound.names[bound.names.len() - 1].clone();
        if let Some(plan) = self.named(&last) {
            (self.watch)(&last.to_string());
            self.found.rows.push(candidate(self.question, plan)?);
            self.places.push(0);
        }
        Ok(())
    }
}
