//! Which fallbacks are looked at, round after round: the usual schedule, other sets in the place of `megatron`, other
//! schedules, and with what is on the host besides.

use std::collections::BTreeMap;

use diag::Result;
use plan::sets::{SetTerm, auto};
use plan::{Plan, PlanName, Schedule};

use super::{Fallback, Search};
use crate::Shape;
use crate::lower_bound::LowerBound;

/// Of so many the other schedules are looked at.
const FEW: usize = 2;

/// Among the plans of a shape the place of those that divide it by another set than `megatron`: after all schedules.
const INSTEAD: usize = 70;

impl Search<'_, '_> {
    /// A ladder for each shape and way to hold parameters. How these are held makes no difference to what is computed.
    pub(super) fn usual(&mut self, all: &[Shape]) -> Result<Vec<Fallback>> {
        let mut ladders: Vec<Fallback> = vec![];
        let mut known: Option<(usize, LowerBound)> = None;
        for (shape, place, names) in ladders_of(all, &self.idle) {
            known = known.filter(|(known_shape, _)| *known_shape == shape);
            if known.is_none() && self.looks_at_all() && self.is_late() && !ladders.is_empty() {
                break;
            }
            let (bound, is_own) = match known {
                Some((_, known)) => {
                    let seconds = known.computes;
                    (LowerBound { seconds, flat: seconds, computes: seconds, ..LowerBound::default() }, false)
                }
                // What it takes is looked at when it is its turn.
                None if self.is_late() => (LowerBound::default(), false),
                None => match self.named(&names[0]) {
                    Some(plan) => (self.leasts.bound(&plan)?, true),
                    None => continue,
                },
            };
            known = known.or(is_own.then_some((shape, bound)));
            ladders.push(Fallback { shape, place, names, at: 0, bound, is_own, is_extrapolated: false });
        }
        Ok(ladders)
    }

    /// Where the model is divided in one block, other sets that do so.
    pub(super) fn otherwise(&mut self, all: &[Shape]) -> Result<()> {
        let sets = auto::instead_of_model_axis(&self.model, self.question.devices);
        // How parameters are held makes no difference to what is computed.
        let mut computes: BTreeMap<(usize, usize), f64> = BTreeMap::new();
        let one_block =
            |(shape, ..): &(usize, usize, Vec<PlanName>)| all[*shape].stages == 1 && all[*shape].ways > 1;
        for (shape, place, usual) in ladders_of(all, &self.idle).into_iter().filter(one_block) {
            for (at, set) in sets.iter().enumerate() {
                if self.is_late() {
                    break;
                }
                let names: Vec<PlanName> =
                    usual.iter().map(|name| name.with_set_instead(auto::model_axis(), set)).collect();
                let known = computes.get(&(shape, at)).copied();
                let (bound, is_own) = match known {
                    Some(seconds) => (LowerBound { seconds, ..LowerBound::default() }, false),
                    None => match self.named(&names[0]) {
                        Some(plan) => (self.leasts.bound(&plan)?, true),
                        None => continue,
                    },
                };
                computes.entry((shape, at)).or_insert(bound.computes);
                let place = place + INSTEAD + names.len() * at;
                self.open.push(Fallback {
                    shape,
                    place,
                    names,
                    at: 0,
                    bound,
                    is_own,
                    is_extrapolated: false,
                });
            }
        }
        self.go_on()
    }

    /// The other schedules of the few that would be quickest if stages never waited.
    pub(super) fn schedules(&mut self, all: &[Shape], usual: Vec<Fallback>) -> Result<()> {
        let mut few: Vec<Fallback> = vec![];
        for mut fallback in usual.into_iter().filter(|fallback| all[fallback.shape].stages > 1) {
            if fallback.bound.flat > self.limit() || self.is_late() {
                continue;
            }
            if !fallback.is_own {
                let Some(plan) = self.named(&fallback.names[0]) else { continue };
                fallback.bound = self.leasts.bound(&plan)?;
            }
            few.push(fallback);
        }
        few.sort_by(|a, b| a.bound.flat.total_cmp(&b.bound.flat).then(a.place.cmp(&b.place)));
        few.truncate(FEW);
        for fallback in few {
            for (at, schedule) in auto::other_schedules().into_iter().enumerate() {
                let names: Vec<PlanName> =
                    fallback.names.iter().map(|name| name.instead_of(&auto::schedule(), schedule)).collect();
                let Ok(plan) = self.respected(&names[0]) else { continue };
                let place = fallback.place + 10 * (at + 1);
                let first = Fallback {
                    names,
                    place,
                    at: 0,
                    bound: self.leasts.bound(&plan)?,
                    is_own: true,
                    is_extrapolated: false,
                    ..fallback.clone()
                };
                if keeps_as_much(&plan) {
                    self.open_from(first, &fallback.names);
                } else {
                    self.open.push(first);
                }
            }
        }
        self.go_on()
    }

    /// A ladder whose plans need no less memory than the usual ones of these names, but for those that do not fit for sure.
    fn open_from(&mut self, first: Fallback, usual: &[PlanName]) {
        let may_fit = |name: &PlanName| !self.never_fit.contains(&name.to_string());
        match usual.iter().position(may_fit) {
            Some(0) => self.open.push(first),
            at => {
                let with_offload = may_fit(&Shape::kept_offloaded(&usual[0]));
                let offloaded = if with_offload { self.on_host(&first, None) } else { None };
                self.open.extend(offloaded);
                let later = at.map(|at| Fallback { at, is_own: false, ..first });
                self.open.extend(later);
            }
        }
    }

    /// With some of it on the host.
    pub(super) fn offload(&mut self, all: &[Shape]) -> Result<()> {
        for (at, shape) in all.iter().enumerate() {
            for held in shape.held() {
                let (names, place) = (shape.offload(held), self.places.len() * 100 + at);
                self.open.push(Fallback {
                    shape: at,
                    place,
                    names,
                    at: 0,
                    bound: LowerBound::default(),
                    is_own: false,
                    is_extrapolated: false,
                });
            }
        }
        self.go_on()
    }
}

/// For each shape and way to hold parameters the shape's number, where its plans stand among all, and their names. Names with
/// sets that are idle are left out.
fn ladders_of(all: &[Shape], idle: &[SetTerm]) -> Vec<(usize, usize, Vec<PlanName>)> {
    let numbered = |(at, shape): (usize, &Shape)| shape.ladders().into_iter().map(move |names| (at, names));
    let ladders = all.iter().enumerate().flat_map(numbered);
    let is_busy = |name: &PlanName| !name.terms().iter().any(|term| idle.contains(term));
    let busy = |names: Vec<PlanName>| names.into_iter().filter(is_busy).collect();
    ladders.enumerate().map(|(place, (at, names))| (at, place * 100, busy(names))).collect()
}

/// Whether devices keep as much at once as in the usual schedule, or more.
fn keeps_as_much(plan: &Plan) -> bool {
    matches!(plan.schedule, Schedule::ZbH1 | Schedule::Gpipe)
}
