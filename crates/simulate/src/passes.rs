//! What a pass of a block takes, whenever it runs: what orders of blocks are searched with.

use std::collections::BTreeMap;

use program::{Kind, Pass, RankId};

use crate::{Part, Simulation, Span};

/// A pass of a block, on that of its ranks on which it takes longest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lasts {
    pub block: u32,
    pub pass: Pass,
    /// Seconds, without those for which it waits for other blocks.
    pub seconds: f64,
    /// Seconds for which the messages from other blocks that it needs are on their way.
    pub receives: f64,
}

/// A pass of a rank for a micro-batch.
type Run = (u32, Pass, RankId, u32);

impl Simulation {
    /// The passes that run for each micro-batch, as they take least: in the first and the last one there may be more to do.
    pub fn lasting(&self) -> Vec<Lasts> {
        let mut runs: BTreeMap<Run, (f64, f64)> = BTreeMap::new();
        for span in &self.spans {
            runs.entry(run_of(span)).or_default().0 += span.end - span.start;
        }
        for (lane, parts) in self.ranks.iter().zip(&self.parts) {
            for part in parts.iter().filter(|part| part.kind == Kind::Receive) {
                let Some(run) = runs.get_mut(&(part.block, part.pass, lane.rank, part.batch)) else {
                    continue;
                };
                run.0 -= part.exposed;
                run.1 += self.on_its_way(part);
            }
        }
        let mut least: BTreeMap<(u32, Pass, RankId), (f64, f64)> = BTreeMap::new();
        for ((block, pass, rank, _), (seconds, receives)) in runs {
            let known = least.entry((block, pass, rank)).or_insert((f64::INFINITY, f64::INFINITY));
            *known = (known.0.min(seconds), known.1.min(receives));
        }
        let mut most: BTreeMap<(u32, Pass), (f64, f64)> = BTreeMap::new();
        for ((block, pass, _), (seconds, receives)) in least {
            let known = most.entry((block, pass)).or_default();
            *known = (known.0.max(seconds), known.1.max(receives));
        }
        let told = |((block, pass), (seconds, receives))| Lasts { block, pass, seconds, receives };
        most.into_iter().filter(|((_, pass), _)| !matches!(pass, Pass::Begin | Pass::End)).map(told).collect()
    }

    fn on_its_way(&self, part: &Part) -> f64 {
        let message = &self.messages[part.message];
        message.end - message.start
    }
}

fn run_of(span: &Span) -> Run {
    (span.block, span.pass, span.rank, span.batch)
}
