//! What the model with few layers tells of a plan decides when it is looked at, and whether at all.

use plan::PlanName;

use super::{Fallback, Search};
use crate::ahead;
use crate::few_layers::{Extrapolated, FewLayers};
use crate::lower_bound::LowerBound;

/// What the model with few layers tells may be off by so much: by 1% at most, of those that were measured.
const OFF: f64 = 0.02;

/// What needs more than so many times the memory there, as it is told, does not fit. Where messages pile up, or what is
/// gathered ahead, that may be more than it is.
const MORE: f64 = 1.3;

impl Search<'_, '_> {
    /// What the model with few layers tells of a plan whose turn it is, if nobody asked before. With more threads it is
    /// asked for the plans that follow, too.
    pub(super) fn extrapolated(&mut self, fallback: &Fallback, name: &PlanName) -> Option<Extrapolated> {
        if self.is_late() || !self.is_to_be_extrapolated(fallback) {
            return None;
        }
        if let Some(known) = self.extrapolated.get(&name.to_string()) {
            return *known;
        }
        let mut names = vec![name.clone()];
        let follow = self.in_order().into_iter().map(|at| &self.open[at]);
        let follow =
            follow.filter(|other| self.is_to_be_extrapolated(other)).map(|other| &other.names[other.at]);
        let follow = follow.filter(|name| !self.extrapolated.contains_key(&name.to_string()));
        names.extend(follow.take(self.question.threads.max(1) - 1).cloned());
        let few_layers = self.few_layers()?;
        let few = ahead::each(self.question.threads, names.clone(), |name| {
            few_layers.extrapolated(self.question, &name)
        });
        self.extrapolated.extend(names.iter().map(ToString::to_string).zip(few));
        self.extrapolated[&name.to_string()]
    }

    pub(super) fn is_to_be_extrapolated(&self, fallback: &Fallback) -> bool {
        let may = !self.looks_at_all() && !fallback.is_extrapolated && self.shape(fallback.shape).stages == 1;
        may && self.few_layers().is_some()
    }

    fn few_layers(&self) -> Option<&FewLayers> {
        self.few_layers.get_or_init(|| FewLayers::from_graph(self.question.graph)).as_ref()
    }

    /// Puts a plan to where it belongs by what is told of it; what surely does not fit is not looked at.
    pub(super) fn go_by(&mut self, few: Extrapolated, fallback: Fallback) {
        if few.memory <= few.there * MORE {
            let seconds = fallback.bound.seconds.max(few.seconds * (1.0 - OFF));
            let bound = LowerBound { seconds, ..fallback.bound };
            self.open.push(Fallback { bound, is_extrapolated: true, ..fallback });
        } else if fallback.at + 1 == fallback.names.len() {
            let bound = LowerBound { memory: few.memory as u64, ..fallback.bound };
            self.too_large.push(Fallback { bound, ..fallback });
        } else {
            // The next ones compute more.
            let seconds = fallback.bound.seconds.max(few.seconds * (1.0 - OFF));
            let bound = LowerBound { seconds, ..fallback.bound };
            self.next_of(Fallback { bound, ..fallback }, None);
        }
    }
}
