//! What a pass of a block takes, whenever it runs: what orders of blocks are searched with.

use std::collections::BTreeMap;

use program::{CodeKey, Pass};

use crate::rank::SimulatedRank;

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

/// The passes that run for each micro-batch, as they take least: in the first and the last one there may be more to do.
pub(crate) fn lasting(ranks: &[SimulatedRank<'_>]) -> Vec<Lasts> {
    let mut most: BTreeMap<CodeKey, (f64, f64)> = BTreeMap::new();
    for (key, (seconds, receives)) in ranks.iter().flat_map(least) {
        let known = most.entry(key).or_default();
        *known = (known.0.max(seconds), known.1.max(receives));
    }
    let lasts = |(CodeKey { block, pass }, (seconds, receives))| Lasts { block, pass, seconds, receives };
    most.into_iter().filter(|(code, _)| !code.pass.is_once()).map(lasts).collect()
}

fn least(rank: &SimulatedRank<'_>) -> BTreeMap<CodeKey, (f64, f64)> {
    let mut least = BTreeMap::new();
    for (tick, spent) in rank.iterations.iter().zip(&rank.spent) {
        let Some((seconds, receives)) = spent.by_itself() else { continue };
        let code = &rank.body.codes[tick.code];
        let known = least.entry(code.key()).or_insert((f64::INFINITY, f64::INFINITY));
        *known = (known.0.min(seconds), known.1.min(receives));
    }
    least
}
