//! From the shards that exist to the shards that are needed: the cheapest way known.
//!
//! In this order: nothing, local sums and slices, one collective (and a local slice of its result), and where none fits an
//! exact exchange, region by region, which may still be [`crate::reshard_steps`]. Which collective fits, `sharding` says.

use std::collections::BTreeMap;

use indexmap::IndexSet;
use program::{Grouping, GroupingId, RankId};
use rules::{Reduction, Region};
use sharding::{Along, Get, List, Member, Participants, ShardRef, locally, single};

use crate::exchange::{self, Pieces};
use crate::layout::{Entry, Layout, Middle};

/// How a layout becomes another one.
#[derive(Debug)]
pub struct Move {
    /// The sources after those on one rank are added up where that is possible.
    pub middle: Vec<Middle>,
    pub reduction: Reduction,
    pub method: Method,
    /// For each entry of the target layout.
    pub gets: Vec<Get>,
}

#[derive(Debug)]
pub enum Method {
    Local,
    /// Who takes part, by the numbers of ranks, with middle entries as shards.
    Collective(Along, GroupingId, BTreeMap<u32, Member>),
    /// All that each rank has, in one message.
    AllReduceEach(GroupingId),
    Exchange(Pieces),
}

impl Method {
    /// What a rank has to do with the collective, if there is one.
    pub fn member(&self, rank: RankId) -> Option<&Member> {
        if let Method::Collective(_, _, members) = self { members.get(&rank.0) } else { None }
    }
}

/// Nothing, sums and slices, or one collective, if that will do.
pub fn pattern(source: &Layout, target: &Layout, groupings: &mut IndexSet<Grouping>) -> Option<Move> {
    let (middle, parts) = collapse(source, target.parts);
    let reduction = source.reduction;
    let (how, gets) = single(&listed_middle(&middle, parts, reduction), &listed(target))?;
    Some(Move { middle, reduction, method: numbered(how, groupings), gets })
}

/// Region by region: whatever is there already stays where it is, and the rest is exchanged.
pub fn exchange(source: &Layout, target: &Layout, world: u32) -> Move {
    let (middle, parts) = collapse(source, target.parts);
    let reduction = source.reduction;
    let local = locally(&listed_middle(&middle, parts, reduction), &listed(target));
    let keep: Vec<bool> = local.iter().map(|g| matches!(g, Some(Get::Is(_)))).collect();
    let pieces = exchange::pieces(&middle, parts, target, &keep, world);
    let gets =
        local.iter().zip(&keep).map(|(g, keep)| g.filter(|_| *keep).unwrap_or(Get::Received)).collect();
    Move { middle, reduction, method: Method::Exchange(pieces), gets }
}

/// Adds up partial results that lie on one rank, if what is left is again a set of partial results
/// of which each is one of several, everywhere alike: of as many as are wanted, if not complete ones are.
pub fn collapse(source: &Layout, target_parts: u32) -> (Vec<Middle>, u32) {
    let single = |(i, e): (usize, &Entry)| Middle { entry: e.clone(), from: vec![i] };
    let as_it_is = || (source.entries.iter().enumerate().map(single).collect(), source.parts);
    if source.parts == 1 || source.parts == target_parts || source.reduction != Reduction::Sum {
        return as_it_is();
    }
    let mut places: BTreeMap<(RankId, &Region), Vec<usize>> = BTreeMap::new();
    for (index, entry) in source.entries.iter().enumerate() {
        places.entry((entry.rank, &entry.region)).or_default().push(index);
    }
    if places.values().all(|p| p.len() == 1) {
        return as_it_is();
    }
    let parts_of = |place: &[usize]| -> Vec<u32> { place.iter().map(|&i| source.entries[i].part).collect() };
    let mut sets: Vec<Vec<u32>> = places.values().map(|p| parts_of(p)).collect();
    sets.sort_unstable();
    sets.dedup();
    let wanted = target_parts == 1 || sets.len() == target_parts as usize;
    if !wanted || sets.iter().map(Vec::len).sum::<usize>() != source.parts as usize {
        return as_it_is();
    }
    let middle = (places.into_iter())
        .map(|((rank, region), from)| {
            let part = sets.binary_search(&parts_of(&from)).expect("one of the sets");
            let part = u32::try_from(part).unwrap_or(u32::MAX);
            Middle { entry: Entry { rank, region: region.clone(), part }, from }
        })
        .collect();
    (middle, u32::try_from(sets.len()).unwrap_or(u32::MAX))
}

/// The positions of a rank's shards.
pub fn on_rank(middle: &[Middle], rank: RankId) -> std::ops::Range<usize> {
    let start = middle.partition_point(|m| m.entry.rank < rank);
    let count = middle[start..].partition_point(|m| m.entry.rank == rank);
    start..start + count
}

pub fn grouping(mut groups: Grouping, groupings: &mut IndexSet<Grouping>) -> GroupingId {
    groups.sort();
    GroupingId::new(groupings.insert_full(groups).0)
}

/// What `sharding` says, with its groups numbered.
pub fn numbered(of_groups: sharding::Method, groupings: &mut IndexSet<Grouping>) -> Method {
    let mut number = |groups: Vec<Vec<u32>>| {
        let ranks = groups.into_iter().map(|group| group.into_iter().map(RankId).collect());
        grouping(ranks.collect(), groupings)
    };
    match of_groups {
        sharding::Method::Local => Method::Local,
        sharding::Method::Collective(how, Participants { groups, members }) => {
            Method::Collective(how, number(groups), members)
        }
        sharding::Method::AllReduceEach(groups) => Method::AllReduceEach(number(groups)),
    }
}

pub fn listed(layout: &Layout) -> List<'_> {
    let shards = layout.entries.iter().map(listed_entry).collect();
    List { shards, shares: layout.parts, reduction: layout.reduction }
}

pub fn listed_middle(middle: &[Middle], shares: u32, reduction: Reduction) -> List<'_> {
    List { shards: middle.iter().map(|m| listed_entry(&m.entry)).collect(), shares, reduction }
}

fn listed_entry(entry: &Entry) -> ShardRef<'_> {
    ShardRef { device: entry.rank.0, region: &entry.region, share: entry.part }
}
