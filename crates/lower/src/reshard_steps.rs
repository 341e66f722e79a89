//! A move in several collectives, where one does not do: along a route between two regular layouts.

use std::collections::BTreeMap;

use indexmap::IndexSet;
use program::{Grouping, RankId};
use sharding::{Axis, Hop, HopKind, Shard, Sharding, route_by};

use crate::exchange::Pieces;
use crate::layout::{Entry, Layout, Middle};
use crate::moves::{Move, collapse, listed, listed_middle, numbered, on_rank};

/// What a communication costs before its first byte, in bytes.
pub const LATENCY: u64 = 1 << 16;

/// The bytes of an element, about: layouts are of tensors of several types.
const WIDTH: u64 = 4;

/// A way from one layout to another in hops that are collectives or local.
pub struct Route<'t> {
    middle: Vec<Middle>,
    parts: u32,
    target: &'t Layout,
    hops: Vec<Hop>,
    costs: u64,
}

/// `None` if the layouts are not regular, or some hop between them is neither a collective nor local.
pub fn route<'t>(source: &Layout, target: &'t Layout) -> Option<Route<'t>> {
    // Partial results on one rank are added up there.
    let (middle, parts) = collapse(source, target.parts);
    let summed = Layout::new(middle.iter().map(|m| m.entry.clone()).collect(), parts, source.reduction);
    let (from, to) = (listed(&summed).sharding()?, listed(target).sharding()?);
    let hops = route_by(&from, &to, WIDTH, &price)?;
    let plain = |sharding: &Sharding| !sharding.axes().into_iter().any(Axis::in_turn);
    let fits = |hop: &Hop| {
        plain(&hop.from)
            && plain(&hop.to)
            && !matches!(hop.kind, HopKind::Share | HopKind::Permute | HopKind::Send)
    };
    if hops.is_empty() || !hops.iter().all(fits) {
        return None;
    }
    let costs = hops.iter().filter(|h| !h.is_local()).map(|h| price(h.kind, &h.axes, h.bytes)).sum();
    Some(Route { middle, parts, target, hops, costs })
}

impl Route<'_> {
    /// Whether it is no dearer than any exchange: of which all pieces need not be listed then.
    pub fn is_cheap(&self) -> bool {
        let most = self.middle.chunk_by(|a, b| a.entry.rank == b.entry.rank).map(<[Middle]>::len).max();
        let most = most.unwrap_or(1) as u64;
        let least = |entry: &Entry| {
            let wanted = |part: &u32| part * self.target.parts / self.parts == entry.part;
            let held = on_rank(&self.middle, entry.rank).len() as u64;
            // Of each partial result that is not there all has to come, and a rank has so many of them at most.
            let parts = ((0..self.parts).filter(wanted).count() as u64).saturating_sub(held);
            parts.div_ceil(most) * LATENCY + parts * entry.region.numel().unsigned_abs() * WIDTH
        };
        self.target.entries.first().is_some_and(|entry| self.costs <= least(entry))
    }

    /// Whether it is no dearer than an exchange.
    pub fn is_cheaper(&self, exchange: &Pieces) -> bool {
        self.costs <= exchanged(&self.middle, self.target, exchange)
    }

    /// The moves on the way, each with the layout that it makes.
    pub fn moves(mut self, groupings: &mut IndexSet<Grouping>) -> Vec<(Layout, Move)> {
        let mut reshard_steps: Vec<(Layout, Move)> = vec![];
        for hop in self.hops {
            let after = layout(&hop.to);
            let reduction = hop.from.reduction();
            let single = |(i, e): (usize, &Entry)| Middle { entry: e.clone(), from: vec![i] };
            if let Some((before, _)) = reshard_steps.last() {
                self.middle = before.entries.iter().enumerate().map(single).collect();
            }
            let before = listed_middle(&self.middle, hop.from.shares(), reduction);
            let (how, gets) = hop.method(&before, &listed(&after));
            let method = numbered(how, groupings);
            reshard_steps
                .push((after, Move { middle: std::mem::take(&mut self.middle), reduction, method, gets }));
        }
        reshard_steps
    }
}

/// What is no collective would be an exchange, which is compared with the whole way.
fn price(kind: HopKind, _along: &[Axis], bytes: u64) -> u64 {
    if matches!(kind, HopKind::Permute | HopKind::Send) { u64::MAX } else { bytes + LATENCY }
}

/// What an exchange costs the rank that gets most: a message from each other rank, and what is in them.
fn exchanged(middle: &[Middle], target: &Layout, exchange: &Pieces) -> u64 {
    let price = |from: &BTreeMap<RankId, u64>| from.values().map(|size| LATENCY + size * WIDTH).sum::<u64>();
    received(middle, target, exchange).values().map(price).max().unwrap_or(0)
}

/// Elements that each rank gets from each other rank in an exchange.
pub fn received(
    middle: &[Middle],
    target: &Layout,
    exchange: &Pieces,
) -> BTreeMap<RankId, BTreeMap<RankId, u64>> {
    let mut messages: BTreeMap<RankId, BTreeMap<RankId, u64>> = BTreeMap::new();
    for (from, to, region) in &exchange.pieces {
        let from = middle[exchange.sources[*from]].entry.rank;
        let to = target.entries[exchange.targets[*to]].rank;
        if from != to {
            *messages.entry(to).or_default().entry(from).or_default() += region.numel().unsigned_abs();
        }
    }
    messages
}

fn layout(sharding: &Sharding) -> Layout {
    let entry = |s: Shard| Entry { rank: RankId(s.device), region: s.region, part: s.share };
    Layout::new(sharding.shards().into_iter().map(entry).collect(), sharding.shares(), sharding.reduction())
}
