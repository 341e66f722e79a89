//! All that a rank's memory depends on besides its role. Ranks of a role that have the same sizes have as much memory in
//! every moment, so one of them is gone through for all.

use std::rc::Rc;

use graph::OpId;
use hashing::Map;
use program::{Arg, How, Instr, Of, Slice};
use rules::{Cost, Region};

use crate::count;
use crate::cuts::extents;
use crate::region::numel;
use crate::state::{Context, Rank};

use super::gradients::is_alone_in;

/// What parts of operators cost, by numbers: parts of the same cost have the same.
#[derive(Default)]
pub(super) struct RankSizes {
    costs: Map<OpId, Vec<Rc<Cost>>>,
}

impl RankSizes {
    pub(super) fn of_rank(&mut self, cx: &mut Context<'_>, rank: &Rank<'_>) -> Vec<u64> {
        let mut sizes = vec![rank.role as u64];
        for held in &rank.bufs {
            let size = held.map(|held| (held.of.tensor.0, numel(cx.store.region(held.region))));
            sizes.extend(size.map_or([u64::MAX; 2], |(tensor, size)| [u64::from(tensor), size]));
        }
        for part in &rank.parts {
            let Some(part) = part else {
                sizes.push(u64::MAX);
                continue;
            };
            let cost = cx.finder.cost(cx.facts, &cx.store, part);
            sizes.extend([u64::from(part.op.0), u64::from(part.binding), self.number(part.op, cost)]);
        }
        held(rank, &mut sizes);
        for instr in rank.body.instrs() {
            sent(cx, rank, instr, &mut sizes);
        }
        sizes
    }

    fn number(&mut self, op: OpId, cost: Rc<Cost>) -> u64 {
        let known = self.costs.entry(op).or_default();
        let at = known.iter().position(|it| Rc::ptr_eq(it, &cost) || **it == *cost);
        at.unwrap_or_else(|| {
            known.push(cost);
            known.len() - 1
        }) as u64
    }
}

/// What it holds between steps and gathers, and what of that its leaves are.
fn held(rank: &Rank<'_>, sizes: &mut Vec<u64>) {
    let table = rank.own.table;
    let mut lengths = |region: &Region| sizes.extend(region.0.iter().map(|it| it.len() as u64));
    (0..table.shards.len()).for_each(|shard| lengths(rank.own.shard(shard)));
    (0..table.copies.len()).for_each(|copy| lengths(rank.own.copy(copy)));
    for leaf in 0..rank.body.leaves.len() {
        let (of, region) = rank.own.leaf(leaf);
        sizes.extend(region.0.iter().map(|it| it.len() as u64));
        let is_all = matches!(of, Of::Shard(shard) if rank.own.shard(shard) == region);
        sizes.push(u64::from(is_all));
    }
}

/// What is cut and sent.
fn sent(cx: &mut Context<'_>, rank: &Rank<'_>, instr: &Instr, sizes: &mut Vec<u64>) {
    match instr {
        Instr::Slice(Slice { extents: given, region, .. }) => {
            lengths(rank, given, sizes);
            let end = |arg: &Arg| rank.integer(arg).unwrap_or(0);
            sizes.extend(region.iter().map(|(lo, hi)| (end(hi) - end(lo)) as u64));
        }
        Instr::Collective(collective) => {
            if let How::AllGather(cut) | How::ReduceScatter(cut) = &collective.how {
                lengths(rank, &cut.extents, sizes);
            }
        }
        Instr::ReduceGradients { group, .. } => {
            sizes.push(u64::from(is_alone_in(cx.program, rank.id, *group)));
        }
        Instr::Exchange { exchange, .. } | Instr::ExchangeGradients { exchange, .. } => {
            let all = count::sent(cx, *exchange);
            sizes.push(all.given(rank.id) + all.got(rank.id));
        }
        _ => {}
    }
}

fn lengths(rank: &Rank<'_>, given: &[Vec<Arg>], sizes: &mut Vec<u64>) {
    let known = extents(rank, given);
    sizes.push(u64::from(known.is_some()));
    sizes.extend(known.into_iter().flatten().flatten().map(|length| length as u64));
}
