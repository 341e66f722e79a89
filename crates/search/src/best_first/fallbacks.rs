//! What is looked at where a plan does not fit: the next one of its fallbacks that may, or what its layers keep on the host.

use check::Purpose;
use plan::{Plan, Schedule};

use super::{Fallback, Search};
use crate::lower_bound::LowerBound;
use crate::{Evaluated, Question, Shape};

/// Among the plans of a ladder the place of that whose layers keep what they do on the host: after all others.
const OFFLOADS: usize = 5;

/// What layers keep of all that is kept, at least.
const NEARLY: f64 = 0.75;

impl Search<'_, '_> {
    pub(super) fn after_what_does_not_fit(&mut self, fallback: Fallback, candidate: &Evaluated) {
        let at = fallback.at + self.skipped(&fallback, candidate);
        if at + 1 < fallback.names.len() {
            self.next_of(Fallback { at, ..fallback }, Some(candidate));
        }
    }

    /// How many of the next plans do not fit, either, if this one does not: they save what layers keep, and the last one
    /// what is computed with as well. Where anything may be looked at, nothing is left out.
    fn skipped(&mut self, fallback: &Fallback, candidate: &Evaluated) -> usize {
        let later = fallback.names.len() - fallback.at - 1;
        self.never_fit.insert(candidate.plan.name.clone());
        if candidate.memory.1 <= candidate.memory.2 || self.looks_at_all() {
            return 0;
        }
        let kept = candidate.could_fit_without(&[Purpose::Activations]);
        let computed = [Purpose::Activations, Purpose::Working, Purpose::Communication];
        let skipped = match (kept, candidate.could_fit_without(&computed)) {
            (_, false) => later,
            (false, true) => later.saturating_sub(1),
            (true, true) => 0,
        };
        let names = &fallback.names[fallback.at + 1..][..skipped];
        self.never_fit.extend(names.iter().map(ToString::to_string));
        skipped
    }

    /// What is looked at where a plan does not fit.
    pub(super) fn next_of(&mut self, fallback: Fallback, evaluated: Option<&Evaluated>) {
        self.open.extend(self.on_host(&fallback, evaluated));
        self.open.push(Fallback { at: fallback.at + 1, is_own: false, is_extrapolated: false, ..fallback });
    }

    /// Where nothing is computed again, the same with what layers keep on the host. With each micro-batch nearly all that is
    /// kept goes there and comes back.
    pub(super) fn on_host(&self, fallback: &Fallback, evaluated: Option<&Evaluated>) -> Option<Fallback> {
        if fallback.at > 0 {
            return None;
        }
        let Question { cluster, devices, batches, .. } = *self.question;
        let bound = fallback.bound;
        let stages = self.shape(fallback.shape).stages;
        let (kept, at_once) = match evaluated {
            Some(it) => {
                let kept = it.estimate.memory[it.memory.0 as usize].peak[Purpose::Activations as usize];
                (kept, at_once(&it.plan, stages))
            }
            None => (bound.kept.saturating_sub(bound.memory), stages),
        };
        let at_once = at_once.min(batches);
        let kept = NEARLY * kept as f64;
        let all = || (0..devices).map(|at| cluster.device(at));
        let there = all().map(|it| it.host_memory).max()? as f64;
        let host = all().map(|it| it.host).fold(0.0, f64::max);
        let moves = 2.0 * kept / f64::from(at_once) * f64::from(batches) / host;
        let bound = LowerBound { seconds: bound.seconds.max(moves), kept: bound.memory, ..bound };
        let names = vec![Shape::kept_offloaded(&fallback.names[0])];
        let offloaded = Fallback {
            names,
            place: fallback.place + OFFLOADS,
            bound,
            is_own: true,
            is_extrapolated: false,
            ..fallback.clone()
        };
        (kept <= there || self.looks_at_all()).then_some(offloaded)
    }
}

/// Of how many micro-batches a device keeps something at once, at most.
fn at_once(plan: &Plan, stages: u32) -> u32 {
    let blocks = (plan.block_count() / stages.max(1)).max(1);
    match plan.schedule {
        Schedule::OneFOneB => stages,
        // All stages' forwards of each block, and what the first stage is ahead.
        Schedule::Interleaved => stages + stages.saturating_sub(1).div_ceil(blocks),
        // What the second half of a backward reads is kept longer.
        Schedule::ZbH1 | Schedule::ZbV => 2 * stages,
        Schedule::Gpipe | Schedule::TwoBw => u32::MAX,
    }
}
