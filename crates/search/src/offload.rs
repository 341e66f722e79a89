//! What layers keep on the host, instead of recomputing it: where the way there is wide enough, that takes no time.
//!
//! First all of the layers that a plan recomputes: where it does not fit, what is recomputed stays so, and only what that begins
//! with is on the host. Then what is cheap of them is recomputed all the same, since that makes what is moved much less, and then
//! nothing of them. Where devices then wait for the host or it has too little memory, others are recomputed
//! as before: as many as leave the rest of them just enough time. And where devices have the memory, they keep what they can.
//! What follows is a plan as any other: lowered and simulated, and taken if it fits and is quicker.

use check::Purpose;
use diag::Result;

use crate::layers::{Choice, Choices, Degrees, Layers, between};
use crate::{Evaluated, Evaluations, Question, estimated};

/// So many of the plans that would be quickest if nothing were recomputed are looked at.
const FEW: usize = 2;
/// Where the host is too slow or too small, and only this share of what is recomputed is left, it stays.
const REST: f64 = 0.2;
/// Who waits for less than this share of a step does not wait.
const LITTLE: f64 = 0.01;

/// Of plans that recompute layers, with what these keep on the host; `best` is how long the quickest takes.
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
    if open.is_empty() {
        return Ok(offloaded);
    }
    let degrees = Degrees::new(question);
    for candidate in open.into_iter().take(FEW) {
        if question.stop.is_late() {
            break;
        }
        let layers = Layers::new(&degrees, &candidate.plan);
        offloaded.extend(Offloading { question, candidate, layers, watch, full: None }.looked_at()?);
    }
    Ok(offloaded)
}

/// Seconds of a step if nothing were recomputed.
pub(crate) fn once(candidate: &Evaluated) -> f64 {
    candidate.seconds() - candidate.recomputed()
}

struct Offloading<'r, 'q, 'w> {
    question: &'r Question<'q>,
    candidate: &'r Evaluated,
    layers: Layers<'r>,
    watch: &'w mut dyn FnMut(&str),
    /// Bytes on a host where all is recomputed as before, and begins there: of a plan that fits only so.
    full: Option<u64>,
}

impl Offloading<'_, '_, '_> {
    /// Those that fit and are quicker.
    fn looked_at(mut self) -> Result<Vec<Evaluated>> {
        let mut candidates = vec![];
        if !self.candidate.fits() {
            let full = self.with(&self.all(self.layers.most()))?;
            self.full = full.as_ref().filter(|full| full.fits()).map(|full| full.host.1);
            candidates.extend(full);
        }
        for degree in (0..self.layers.most()).rev() {
            if self.question.stop.is_late() && !candidates.is_empty() {
                break;
            }
            let Some(whole) = self.with(&self.all(degree))? else { break };
            let waits = whole.seconds() > (1.0 + LITTLE) * (once(self.candidate) + whole.recomputed());
            let fits = whole.fits();
            if fits && waits && !self.question.stop.is_late() {
                candidates.extend(self.kept(&whole, degree)?);
            }
            if !fits || waits {
                candidates.extend(self.in_time(&whole, degree)?);
            }
            // Less recomputed is more to be moved, for little that is won.
            let is_little = whole.recomputed() <= REST * self.candidate.recomputed();
            candidates.push(whole);
            if (waits || !fits) && is_little || self.question.stop.is_late() {
                break;
            }
        }
        candidates.retain(|candidate| {
            candidate.fits() && (!self.candidate.fits() || candidate.seconds() < self.candidate.seconds())
        });
        Ok(candidates)
    }

    /// All that is recomputed is on the host, and of that so much is recomputed all the same.
    fn all(&self, degree: usize) -> Choices {
        self.layers.map(|choice| offloaded(choice, degree))
    }

    /// With none on the host it is no other plan.
    fn with(&mut self, choices: &Choices) -> Result<Option<Evaluated>> {
        if !choices.iter().flatten().any(|choice| choice.is_offloaded) {
            return Ok(None);
        }
        let plan = self.layers.with(choices);
        if self.question.respected(plan.clone()).is_err() {
            return Ok(None);
        }
        let mut looked = Evaluations::default();
        looked.at(self.question, std::iter::once(self.candidate.with(plan)), self.watch)?;
        Ok(looked.rows.pop())
    }

    /// So many layers of each block that the host has memory for them, and that devices that recompute the others do not
    /// wait.
    fn in_time(&mut self, whole: &Evaluated, degree: usize) -> Result<Option<Evaluated>> {
        let ((_, needed, there), full) = (whole.host, self.full.unwrap_or(0));
        let room = there.saturating_sub(full) as f64 / needed.saturating_sub(full).max(1) as f64;
        // Where there is too little memory for what is on its way, less is at a time.
        let in_flight = if whole.memory.1 <= whole.memory.2 { 1.0 } else { 0.5 };
        let share = room.min(self.hidden(whole.seconds())).min(in_flight);
        let counts: Vec<usize> = self.recomputed().map(|all| (share * all as f64).floor() as usize).collect();
        if self.recomputed().eq(counts.iter().copied()) {
            return Ok(None);
        }
        let most = self.layers.most();
        let other = if self.full.is_some() { offloaded } else { |choice, _| choice };
        let choices = self.some(&counts, |choice| other(choice, most), degree);
        self.with(&choices)
    }

    /// The share of layers that takes no time, if all of them are on their way for so long.
    fn hidden(&self, seconds: f64) -> f64 {
        let recomputed = self.candidate.recomputed();
        let ranks = &self.candidate.estimate.simulation.ranks;
        let forward = ranks.iter().map(|rank| rank.forward).fold(f64::INFINITY, f64::min);
        // They go there while forward computes, unless to recompute them takes longer; and recomputing all others takes as
        // long as bringing them, too.
        let there = if recomputed < seconds / 2.0 { forward / (seconds / 2.0) } else { 1.0 };
        there.min(self.candidate.seconds() / (seconds + recomputed))
    }

    /// With as few layers on the host as memory asks for.
    fn kept(&mut self, whole: &Evaluated, degree: usize) -> Result<Option<Evaluated>> {
        let less = move |choice: Choice| Choice { degree: choice.degree.min(degree), ..choice };
        let none = self.layers.with(&self.layers.map(less));
        let without = estimated(self.question, &none)?.memory;
        let shares = self.layers.shares(self.question, &whole.estimate.memory, &without);
        let count = |(share, all): (f64, usize)| (share * all as f64).ceil() as usize;
        let counts: Vec<usize> = shares.into_iter().zip(self.recomputed()).map(count).collect();
        if self.recomputed().eq(counts.iter().copied()) {
            return Ok(None);
        }
        let choices = self.some(&counts, less, degree);
        self.with(&choices)
    }

    /// How many layers of each block the plan recomputes.
    fn recomputed(&self) -> impl Iterator<Item = usize> {
        self.layers.choices.iter().map(|block| block.iter().filter(|choice| choice.degree > 0).count())
    }

    /// So many of these on the host, among the others as evenly as they can.
    fn some(&self, counts: &[usize], other: impl Fn(Choice) -> Choice, degree: usize) -> Choices {
        let of_block = |((block, all), count): ((&Vec<Choice>, usize), &usize)| {
            let is_one = between(*count, all);
            let mut number = 0;
            let mut choose = |choice: &Choice| {
                let is_recomputed = choice.degree > 0;
                number += usize::from(is_recomputed);
                if is_recomputed && is_one(number - 1) { offloaded(*choice, degree) } else { other(*choice) }
            };
            block.iter().map(&mut choose).collect()
        };
        self.layers.choices.iter().zip(self.recomputed()).zip(counts).map(of_block).collect()
    }
}

/// On the host, if it is recomputed.
fn offloaded(choice: Choice, degree: usize) -> Choice {
    match choice.degree {
        0 => choice,
        recomputed => Choice { degree: recomputed.min(degree), is_offloaded: true },
    }
}
