//! What a device's step consists of.

use compiler::FollowedStep;
use serde_json::{Value, json};

use crate::page::recorded::PairedRank;
use crate::page::recorded::against::timed;
use crate::took::Took;

use super::computed::ComputedModules;

/// By name, as predicted and as measured: together they are the step. Of a device, in the mean.
pub(super) struct StepParts {
    pub(super) shares: [(&'static str, Took); 4],
}

pub(super) const COMPUTES: &str = "modules compute";
pub(super) const WAITS: &str = "waits for messages";
pub(super) const IDLES: &str = "waits for other ranks";
pub(super) const REST: &str = "all else";

impl StepParts {
    pub(super) fn new(step: &FollowedStep<'_>, ranks: &[PairedRank<'_>], computed: &ComputedModules) -> Self {
        let mut shares = [COMPUTES, WAITS, IDLES, REST].map(|name| (name, Took::default()));
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
            let waits = Took { predicted: lane.exposed, measured: waits };
            let known = [*computes, waits, Took { predicted: lane.idle, measured: idles }];
            let sum: Took = known.iter().copied().sum();
            let rest =
                Took { predicted: predicted - sum.predicted, measured: rank.rank.seconds - sum.measured };
            for ((_, took), one) in shares.iter_mut().zip(known.into_iter().chain([rest])) {
                *took += one.each(ranks.len() as f64);
            }
        }
        for (_, took) in &mut shares {
            *took = Took { predicted: took.predicted.max(0.0), measured: took.measured.max(0.0) };
        }
        Self { shares }
    }

    pub(super) fn share(&self, name: &str) -> Took {
        self.shares.iter().find(|(known, _)| *known == name).map_or_else(Took::default, |(_, took)| *took)
    }

    pub(super) fn to_json(&self) -> Value {
        let json = |(name, Took { predicted, measured }): &(&str, Took)| json!({ "name": name, "predicted": predicted, "measured": measured });
        self.shares.iter().map(json).collect()
    }
}
