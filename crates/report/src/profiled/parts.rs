//! What a device's step consists of.

use compiler::FollowedStep;
use serde_json::{Value, json};

use crate::page::recorded::PairedRank;
use crate::page::recorded::against::timed;

use super::computed::ComputedModules;

/// By name, as predicted and as measured: together they are the step. Of a device, in the mean.
pub(super) struct StepParts {
    pub(super) shares: [(&'static str, (f64, f64)); 4],
}

pub(super) const COMPUTES: &str = "modules compute";
pub(super) const WAITS: &str = "waits for messages";
pub(super) const IDLES: &str = "waits for other ranks";
pub(super) const REST: &str = "all else";

impl StepParts {
    pub(super) fn new(step: &FollowedStep<'_>, ranks: &[PairedRank<'_>], computed: &ComputedModules) -> Self {
        let mut shares = [COMPUTES, WAITS, IDLES, REST].map(|name| (name, (0.0, 0.0)));
        let messages = timed(ranks);
        for (rank, (_, computes)) in ranks.iter().zip(&computed.of_ranks) {
            let lane = &step.simulation.ranks[rank.track];
            let mine = messages.iter().filter(|(number, ..)| *number == rank.rank.rank);
            // Who waits longer than a message takes waits for whoever comes to it later.
            let (waits, idles) = mine.fold((0.0, 0.0), |(waits, idles), (_, (measured, ..), seconds)| {
                let waits_for = measured.waited.min(*seconds);
                (waits + waits_for, idles + measured.waited - waits_for)
            });
            let predicted: f64 =
                lane.parts().iter().filter(|(name, _)| *name != "update").map(|(_, seconds)| seconds).sum();
            let known = [*computes, (lane.exposed, waits), (lane.idle, idles)];
            let sum = known.iter().fold((0.0, 0.0), |a, b| (a.0 + b.0, a.1 + b.1));
            let rest = (predicted - sum.0, rank.rank.seconds - sum.1);
            for ((_, both), one) in shares.iter_mut().zip(known.into_iter().chain([rest])) {
                both.0 += one.0 / ranks.len() as f64;
                both.1 += one.1 / ranks.len() as f64;
            }
        }
        shares.iter_mut().for_each(|(_, both)| *both = (both.0.max(0.0), both.1.max(0.0)));
        Self { shares }
    }

    pub(super) fn share(&self, name: &str) -> (f64, f64) {
        self.shares.iter().find(|(known, _)| *known == name).map_or((0.0, 0.0), |(_, both)| *both)
    }

    pub(super) fn to_json(&self) -> Value {
        let json = |(name, (predicted, measured)): &(&str, (f64, f64))| json!({ "name": name, "predicted": predicted, "measured": measured });
        self.shares.iter().map(json).collect()
    }
}
