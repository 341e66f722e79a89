//! How many bytes each rank hands to a communication: what the runtime reports as issued.

use std::collections::BTreeMap;

use program::{Instr, LeafId, RankId, StepId};
use rules::Interval;

use crate::state::{Context, LeafState, Rank};

/// The phase and name under which a communication is counted.
fn what(rank: &Rank<'_>, instr: &Instr) -> Option<(&'static str, &'static str)> {
    let phase = if rank.next < rank.body.forward.len() { "forward" } else { "backward" };
    let kind = match instr {
        Instr::AllReduce { .. } => "all_reduce",
        Instr::AllGather { .. } => "all_gather",
        Instr::ReduceScatter { .. } => "reduce_scatter",
        Instr::AllToAll { .. } => "all_to_all",
        Instr::Exchange { .. } => "exchange",
        Instr::ReduceGradients { .. } => "reduce_gradients",
        Instr::ExchangeGradients { .. } => "exchange_gradients",
        _ => return None,
    };
    Some((phase, kind))
}

/// Counts a communication that these ranks are at.
pub(crate) fn count(cx: &mut Context<'_>, ranks: &[Rank<'_>], members: &[usize], step: StepId) {
    let sent = sent(cx, step);
    for &member in members {
        let rank = &ranks[member];
        let instr = cx.codes[rank.role].instrs[rank.next];
        let given = match instr {
            Instr::AllReduce { from, .. }
            | Instr::AllGather { from, .. }
            | Instr::ReduceScatter { from, .. }
            | Instr::AllToAll { from, .. } => {
                rank.held(*from).map_or(0, |held| bytes(cx, held.of.tensor, cx.store.region(held.region)))
            }
            Instr::ReduceGradients { leaves, .. } => {
                let leaf = |l: &LeafId| rank.leaves.get(l.index());
                let size = |l: &LeafState| bytes(cx, l.tensor, cx.store.region(l.region));
                leaves.iter().filter_map(leaf).map(size).sum()
            }
            _ => sent.get(&rank.id).copied().unwrap_or(0),
        };
        if let Some(what) = what(rank, instr) {
            cx.tally.bytes(rank.id, what, given);
        }
    }
}

/// What each rank sends to others in an exchange.
fn sent(cx: &Context<'_>, step: StepId) -> BTreeMap<RankId, i64> {
    let mut sent = BTreeMap::new();
    let Some(table) = cx.program.exchanges.get(&step) else { return sent };
    for piece in &table.pieces {
        let ends = (table.sources.get(piece.from), table.targets.get(piece.to));
        match ends {
            (Some((from, _)), Some((to, _))) if from != to => {
                *sent.entry(*from).or_insert(0) += bytes(cx, table.tensor, &piece.region.0);
            }
            _ => {}
        }
    }
    sent
}

fn bytes(cx: &Context<'_>, tensor: graph::TensorId, region: &[Interval]) -> i64 {
    let numel: i64 = region.iter().map(|interval| interval.len()).product();
    let dtype = cx.facts.graph.tensors.get(tensor.index()).map_or(0, |t| t.dtype.bytes());
    numel * i64::try_from(dtype).unwrap_or(0)
}
