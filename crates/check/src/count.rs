//! What each rank hands to a communication: what the runtime reports as issued.

use std::rc::Rc;

use program::{ExchangeId, Instr, Kind, LeafId, Piece};
use rules::Interval;

use crate::sent::Sent;
use crate::state::{Context, LeafState, Rank};

/// Counts a communication that these ranks are at. What a rank brings from its own host is none.
pub(crate) fn count(cx: &mut Context<'_>, ranks: &[Rank<'_>], members: &[usize]) {
    let first = &ranks[members[0]];
    let first = cx.codes[first.role].instrs[first.next];
    if members.len() == 1 && matches!(first, Instr::Gather { .. } | Instr::Scatter { .. }) {
        return;
    }
    let sent = first.exchange().map(|id| sent(cx, id)).unwrap_or_default();
    let mut traffic = vec![];
    for &member in members {
        let rank = &ranks[member];
        let instr = cx.codes[rank.role].instrs[rank.next];
        let given = match instr {
            Instr::ReduceGradients { leaves, .. } => {
                let leaf = |l: &LeafId| rank.leaves.get(l.index());
                let size = |l: &LeafState| bytes(cx, l.tensor, cx.store.region(l.region));
                leaves.iter().filter_map(leaf).map(size).sum()
            }
            Instr::Scatter { leaves, .. } => {
                let size = |l: &LeafId| {
                    bytes(cx, rank.leaves[l.index()].tensor, cx.store.region(rank.leaves[l.index()].region))
                };
                leaves.iter().map(size).sum()
            }
            Instr::Gather { copies, .. } => {
                copies.iter().map(|copy| shard(cx, rank, rank.own.table.copies[*copy].shard)).sum()
            }
            Instr::ReduceShards { shards, .. } => shards.iter().map(|number| shard(cx, rank, *number)).sum(),
            _ if instr.exchange().is_some() => signed(sent.given(rank.id)),
            _ => {
                let held = instr.reads().filter_map(|from| rank.held(from));
                held.map(|held| bytes(cx, held.of.tensor, cx.store.region(held.region))).sum()
            }
        };
        let pass = rank.body.pass_at(rank.next);
        traffic.push((rank.id, pass.name(), instr.kind().name(), given));
    }
    for (rank, pass, kind, given) in traffic {
        cx.tally.issued(rank, pass, kind, given);
    }
}

/// Counts what one rank sends to other blocks.
pub(crate) fn sent_by(cx: &mut Context<'_>, rank: &Rank<'_>, id: ExchangeId) {
    let given = signed(sent(cx, id).given(rank.id));
    cx.tally.issued(rank.id, rank.body.pass_at(rank.next).name(), Kind::Send.name(), given);
}

fn shard(cx: &Context<'_>, rank: &Rank<'_>, number: usize) -> i64 {
    bytes(cx, rank.own.table.shards[number].tensor, &rank.own.shard(number).0)
}

/// Every rank asks for all of it, so it is remembered; what has the same lists sends the same.
pub(crate) fn sent(cx: &mut Context<'_>, id: ExchangeId) -> Rc<Sent> {
    let table = &cx.program.exchanges[id.index()];
    let key = (table.lists_id(), bytes(cx, table.tensor, &[]));
    if let Some(known) = cx.sent.get(&key) {
        return Rc::clone(known);
    }
    let piece = |piece: &Piece| match (table.sources.get(piece.from), table.targets.get(piece.to)) {
        (Some((from, _)), Some((to, _))) if from != to => {
            Some((*from, *to, bytes(cx, table.tensor, &piece.region.0).unsigned_abs()))
        }
        _ => None,
    };
    let sent = Rc::new(Sent::of_pieces(table.pieces.iter().filter_map(piece)));
    cx.sent.insert(key, Rc::clone(&sent));
    sent
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

fn bytes(cx: &Context<'_>, tensor: graph::TensorId, region: &[Interval]) -> i64 {
    let numel: i64 = region.iter().map(|interval| interval.len()).product();
    let dtype = cx.facts.graph.tensors.get(tensor.index()).map_or(0, |t| t.dtype.bytes());
    numel * i64::try_from(dtype).unwrap_or(0)
}
