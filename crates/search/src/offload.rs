//! What layers keep on the host, instead of computing it again: where the way there is wide enough, that takes no time.
//!
//! First all of the layers that a plan computes again. Where devices then wait for the host or it has too little memory, others
//! are computed again after all: as many as leave the rest of them just enough time. And where devices have the
//! memory, they keep what they can. What follows is a plan as any other: lowered and simulated, and taken if it fits and is
//! quicker.

use check::Purpose;
use diag::Result;
use plan::Plan;
use plan::sets::auto;

use crate::layers::Layers;
use crate::title::Title;
use crate::{Evaluated, Evaluations, Question, estimated};

/// So many of the plans that would be quickest if nothing were computed again are looked at.
const FEW: usize = 2;
/// Who waits for less than this share of a step does not wait.
const LITTLE: f64 = 0.01;

/// Of plans that compute layers again, with what these keep on the host; `best` is how long the quickest takes.
pub(crate) fn rows<'r>(
    question: &Question<'_>,
    rows: impl Iterator<Item = &'r Evaluated>,
    best: f64,
    watch: &mut dyn FnMut(&str),
) -> Result<Vec<Evaluated>> {
    // What does not fit for other reasons does not fit without what layers keep.
    let is_open = |candidate: &&Evaluated| {
        candidate.plan.recompute.len() > 1
            && candidate.plan.offload.is_empty()
            && candidate.could_fit_without(&[Purpose::Activations])
    };
    let mut open: Vec<&Evaluated> = rows.filter(is_open).filter(|candidate| once(candidate) < best).collect();
    open.sort_by(|a, b| b.fits().cmp(&a.fits()).then(once(a).total_cmp(&once(b))));
    let mut offloaded = vec![];
    for candidate in open.into_iter().take(FEW) {
        if question.stop.is_late() {
            break;
        }
        offloaded.extend(
            Offloading { question, candidate, layers: Layers::new(&candidate.plan), watch }.looked_at()?,
        );
    }
    Ok(offloaded)
}

/// Seconds of a step if nothing were computed again.
fn once(candidate: &Evaluated) -> f64 {
    candidate.seconds() - candidate.recomputed()
}

struct Offloading<'r, 'q, 'w> {
    question: &'r Question<'q>,
    candidate: &'r Evaluated,
    layers: Layers,
    watch: &'w mut dyn FnMut(&str),
}

impl Offloading<'_, '_, '_> {
    /// Those that fit and are quicker.
    fn looked_at(mut self) -> Result<Vec<Evaluated>> {
        let (all, mut candidates) = (self.layers.all(), vec![]);
        let Some(whole) = self.with(&all, false)? else { return Ok(candidates) };
        let waits = whole.seconds() > (1.0 + LITTLE) * once(self.candidate);
        let (some, fits) = (self.in_time(&whole), whole.fits());
        if fits && waits && !self.question.stop.is_late() {
            candidates.extend(self.kept(&whole)?);
        }
        if (!fits || waits) && some != all {
            candidates.extend(self.with(&some, true)?);
        }
        candidates.push(whole);
        candidates.retain(|candidate| {
            candidate.fits() && (!self.candidate.fits() || candidate.seconds() < self.candidate.seconds())
        });
        Ok(candidates)
    }

    /// With so many layers of each block on the host, and the others computed again or kept. With none it is no other plan.
    fn with(&mut self, counts: &[usize], recomputed: bool) -> Result<Option<Evaluated>> {
        if counts.iter().all(|count| *count == 0) {
            return Ok(None);
        }
        let plan = offload(&self.candidate.plan, &self.layers.between(counts), recomputed);
        if self.question.respected(plan.clone()).is_err() {
            return Ok(None);
        }
        let mut looked = Evaluations::default();
        looked.at(self.question, std::iter::once(self.candidate.with(plan)), self.watch)?;
        Ok(looked.rows.pop())
    }

    /// So many layers of each block that the host has memory for them, and that devices that compute the others again do not
    /// wait.
    fn in_time(&self, whole: &Evaluated) -> Vec<usize> {
        let (_, needed, there) = whole.host;
        let room = there as f64 / needed.max(1) as f64;
        // Where there is too little memory for what is on its way, less is at a time.
        let in_flight = if whole.memory.1 <= whole.memory.2 { 1.0 } else { 0.5 };
        let time = self.hidden(whole.seconds());
        let share = room.min(time).min(in_flight);
        self.layers.all().iter().map(|all| (share * *all as f64).floor() as usize).collect()
    }

    /// The share of layers that takes no time, if all of them are on their way for so long.
    fn hidden(&self, seconds: f64) -> f64 {
        let recomputed = self.candidate.recomputed();
        let ranks = &self.candidate.estimate.simulation.ranks;
        let forward = ranks.iter().map(|rank| rank.forward).fold(f64::INFINITY, f64::min);
        // They go there while forward computes, unless it takes longer to compute them again; and computing all others again
        // takes as long as bringing them, too.
        let there = if recomputed < seconds / 2.0 { forward / (seconds / 2.0) } else { 1.0 };
        there.min(self.candidate.seconds() / (seconds + recomputed))
    }

    /// With as few layers on the host as memory asks for.
    fn kept(&mut self, whole: &Evaluated) -> Result<Option<Evaluated>> {
        let none = Plan { recompute: vec![], ..self.candidate.plan.clone() };
        let without = estimated(self.question, &none)?.memory;
        let counts = self.layers.counts(self.question, &whole.estimate.memory, &without);
        if counts == self.layers.all() { Ok(None) } else { self.with(&counts, false) }
    }
}

/// What these layers keep goes to the host, and the others are computed again or keep it.
fn offload(plan: &Plan, layers: &[usize], recomputed: bool) -> Plan {
    let all = plan.recompute.len();
    let is_offloaded = |number: &usize| layers.binary_search(number).is_ok();
    let spans = |numbers: Vec<usize>| numbers.into_iter().map(|at| plan.recompute[at].clone()).collect();
    let recompute: Vec<_> =
        if recomputed { spans((0..all).filter(|at| !is_offloaded(at)).collect()) } else { vec![] };
    let title = Title::parse(&plan.name);
    let title = if recompute.is_empty() { title.without(auto::recomputes()) } else { title };
    let name = title.changed(format!("{} of {all} layers on the host", layers.len())).to_string();
    Plan { name, recompute, offload: spans(layers.to_vec()), ..plan.clone() }
}
