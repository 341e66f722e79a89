//! From the shards that exist to the shards that are needed: the cheapest way known.
//!
//! In this order: nothing, local sums and slices, one collective over regular groups (and a local
//! slice of its result), and where no pattern fits an exact exchange, region by region, which may still be
//! [`crate::reshard_steps`].

use std::collections::{BTreeMap, BTreeSet};

use indexmap::IndexSet;
use program::{Grouping, GroupingId, RankId};
use rules::{Interval, Reduction, Region};

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
    AllReduce(Collective),
    /// All that each rank has, in one message.
    AllReduceEach(GroupingId),
    AllGather(Collective, Cut),
    ReduceScatter(Collective, Cut),
    AllToAll(Collective, Cut, Cut),
    Exchange(Pieces),
}

impl Method {
    /// The communication of groups, if it is one.
    pub fn collective(&self) -> Option<&Collective> {
        match self {
            Method::Local | Method::AllReduceEach(_) | Method::Exchange(_) => None,
            Method::AllReduce(c)
            | Method::AllGather(c, _)
            | Method::ReduceScatter(c, _)
            | Method::AllToAll(c, _, _) => Some(c),
        }
    }
}

/// Where a target entry comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Get {
    /// It is this middle entry.
    Is(usize),
    /// It is a slice of this middle entry.
    Of(usize),
    /// It is the result of the collective on its rank, or a target of the exchange.
    Received,
    /// It is a slice of the result of the collective.
    OfResult,
    /// It is what this middle entry becomes by [`Method::AllReduceEach`].
    Reduced(usize),
}

#[derive(Debug)]
pub struct Collective {
    pub group: GroupingId,
    /// By rank: the middle entry that takes part, and the region of the result.
    pub members: BTreeMap<RankId, Member>,
}

#[derive(Clone, Debug)]
pub struct Member {
    pub middle: usize,
    pub result: Region,
    /// Lengths of the pieces of its group, for cuts.
    pub sizes: Vec<i64>,
    pub other_sizes: Vec<i64>,
}

/// The factor along which values are cut or joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    pub factor: usize,
}

/// Nothing, sums and slices, or one collective, if that will do.
pub fn pattern(source: &Layout, target: &Layout, groupings: &mut IndexSet<Grouping>) -> Option<Move> {
    let (middle, parts) = collapse(source, target.parts);
    let reduction = source.reduction;
    let local = target.entries.iter().map(|e| local(&middle, parts, e, target.parts));
    if let Some(gets) = local.collect::<Option<Vec<Get>>>() {
        return Some(Move { middle, reduction, method: Method::Local, gets });
    }
    let found = if target.parts != 1 {
        None
    } else if parts > 1 {
        reduce_scatter(&middle, parts, reduction, target, groupings)
            .or_else(|| all_reduce(&middle, parts, target, groupings))
            .or_else(|| all_reduce_each(&middle, parts, target, groupings))
    } else {
        all_gather(&middle, target, groupings).or_else(|| all_to_all(&middle, target, groupings))
    };
    found.map(|(method, gets)| Move { middle, reduction, method, gets })
}

/// Region by region: whatever is there already stays where it is, and the rest is exchanged.
pub fn exchange(source: &Layout, target: &Layout, world: u32) -> Move {
    let (middle, parts) = collapse(source, target.parts);
    let reduction = source.reduction;
    let local: Vec<Option<Get>> =
        target.entries.iter().map(|e| local(&middle, parts, e, target.parts)).collect();
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

fn local(middle: &[Middle], parts: u32, wanted: &Entry, wanted_parts: u32) -> Option<Get> {
    if parts != wanted_parts {
        return None;
    }
    let mut here = on_rank(middle, wanted.rank).filter(|&i| middle[i].entry.part == wanted.part);
    let exact = here.clone().find(|&i| middle[i].entry.region == wanted.region);
    exact
        .map(Get::Is)
        .or_else(|| here.find(|&i| middle[i].entry.region.contains(&wanted.region)).map(Get::Of))
}

/// The middle entry of a rank that has exactly one.
fn only(middle: &[Middle], rank: RankId) -> Option<usize> {
    let here = on_rank(middle, rank);
    (here.len() == 1).then_some(here.start)
}

type Found = Option<(Method, Vec<Get>)>;

fn all_reduce(middle: &[Middle], parts: u32, target: &Layout, groupings: &mut IndexSet<Grouping>) -> Found {
    let groups = partial_groups(middle, parts)?;
    let mut members = BTreeMap::new();
    for &index in groups.iter().flatten() {
        let entry = &middle[index].entry;
        let member =
            Member { middle: index, result: entry.region.clone(), sizes: vec![], other_sizes: vec![] };
        members.insert(entry.rank, member);
    }
    let mut served = vec![false; middle.len()];
    let mut gets = vec![];
    for entry in &target.entries {
        let member = members.get(&entry.rank)?;
        served[member.middle] = true;
        let same = member.result == entry.region;
        if !same
            && (!member.result.contains(&entry.region) || entry.region.numel() * 2 < member.result.numel())
        {
            return None;
        }
        gets.push(if same { Get::Received } else { Get::OfResult });
    }
    // An all-reduce for a result that only some of its ranks want moves more than it must.
    if !members.values().all(|m| served[m.middle]) {
        return None;
    }
    let group = grouping(groups.iter().map(|g| ranks(middle, g)).collect(), groupings);
    Some((Method::AllReduce(Collective { group, members }), gets))
}

/// Of ranks that have several shards each, those with shards of the same regions reduce all of them together.
fn all_reduce_each(
    middle: &[Middle],
    parts: u32,
    target: &Layout,
    groupings: &mut IndexSet<Grouping>,
) -> Found {
    let same = |entry: &Entry| {
        on_rank(middle, entry.rank).find(|&i| middle[i].entry.region == entry.region).map(Get::Reduced)
    };
    let gets = target.entries.iter().map(same).collect::<Option<Vec<Get>>>()?;
    let mut same: BTreeMap<Vec<&Region>, BTreeMap<Vec<u32>, Vec<RankId>>> = BTreeMap::new();
    for here in middle.chunk_by(|a, b| a.entry.rank == b.entry.rank) {
        let regions: Vec<&Region> = here.iter().map(|m| &m.entry.region).collect();
        if regions.windows(2).any(|two| two[0] == two[1]) || target.on(here[0].entry.rank).len() != here.len()
        {
            return None;
        }
        let own = here.iter().map(|m| m.entry.part).collect();
        same.entry(regions).or_default().entry(own).or_default().push(here[0].entry.rank);
    }
    let mut groups = vec![];
    for holders in same.values() {
        let copies = holders.values().next()?.len();
        let each_once = |position: usize| {
            let found: BTreeSet<u32> = holders.keys().map(|own| own[position]).collect();
            found.len() == parts as usize
        };
        let shards = holders.keys().next()?.len();
        let even = holders.len() == parts as usize && holders.values().all(|ranks| ranks.len() == copies);
        if !even || !(0..shards).all(each_once) {
            return None;
        }
        groups.extend((0..copies).map(|copy| holders.values().map(|ranks| ranks[copy]).collect::<Vec<_>>()));
    }
    Some((Method::AllReduceEach(grouping(groups, groupings)), gets))
}

/// Groups of middle entries, one of each part, all of one region; each rank is in one of them.
fn partial_groups(middle: &[Middle], parts: u32) -> Option<Vec<Vec<usize>>> {
    let mut holders: BTreeMap<&Region, Vec<Vec<usize>>> = BTreeMap::new();
    for (index, it) in middle.iter().enumerate() {
        if on_rank(middle, it.entry.rank).len() != 1 {
            return None;
        }
        let by_part = holders.entry(&it.entry.region).or_insert_with(|| vec![vec![]; parts as usize]);
        by_part[it.entry.part as usize].push(index);
    }
    let mut groups = vec![];
    for by_part in holders.values() {
        let copies = by_part[0].len();
        if by_part.iter().any(|h| h.len() != copies) {
            return None;
        }
        groups.extend((0..copies).map(|copy| by_part.iter().map(|h| h[copy]).collect::<Vec<_>>()));
    }
    Some(groups)
}

fn ranks(middle: &[Middle], group: &[usize]) -> Vec<RankId> {
    group.iter().map(|&i| middle[i].entry.rank).collect()
}

pub fn grouping(mut groups: Grouping, groupings: &mut IndexSet<Grouping>) -> GroupingId {
    groups.sort();
    GroupingId::new(groupings.insert_full(groups).0)
}

/// The one factor in which two regions differ.
fn one_difference(a: &Region, b: &Region) -> Option<usize> {
    let mut different = (0..a.0.len()).filter(|&f| a.0[f] != b.0[f]);
    let first = different.next()?;
    different.next().is_none().then_some(first)
}

/// Whether intervals, in this order, follow each other and fill `whole`.
fn tile(intervals: &[Interval], whole: Interval) -> bool {
    let follows = intervals.windows(2).all(|w| w[0].hi == w[1].lo);
    follows
        && intervals.first().map(|i| i.lo) == Some(whole.lo)
        && intervals.last().map(|i| i.hi) == Some(whole.hi)
}

/// Splits ranks with intervals into groups in which each interval occurs once; `None` if some
/// interval occurs more often than another.
fn by_copies(mut items: Vec<(Interval, usize)>) -> Option<Vec<Vec<(Interval, usize)>>> {
    items.sort();
    let distinct = {
        let mut all: Vec<Interval> = items.iter().map(|i| i.0).collect();
        all.dedup();
        all.len()
    };
    if items.is_empty() || items.len() % distinct != 0 {
        return None;
    }
    let copies = items.len() / distinct;
    if items.chunks(copies).any(|c| c.iter().any(|i| i.0 != c[0].0)) {
        return None;
    }
    Some((0..copies).map(|copy| items.iter().skip(copy).step_by(copies).copied().collect()).collect())
}

fn all_gather(middle: &[Middle], target: &Layout, groupings: &mut IndexSet<Grouping>) -> Found {
    let mut factor = None;
    let mut wanted: BTreeMap<&Region, Vec<(Interval, usize)>> = BTreeMap::new();
    for (index, entry) in target.entries.iter().enumerate() {
        let from = &middle[only(middle, entry.rank)?].entry.region;
        let different = one_difference(from, &entry.region)?;
        if target.on(entry.rank).len() != 1 || *factor.get_or_insert(different) != different {
            return None;
        }
        wanted.entry(&entry.region).or_default().push((from.0[different], index));
    }
    let factor = factor?;
    let mut members = BTreeMap::new();
    let mut groups = vec![];
    for (region, items) in wanted {
        for group in by_copies(items)? {
            let intervals: Vec<Interval> = group.iter().map(|i| i.0).collect();
            if group.len() < 2 || !tile(&intervals, region.0[factor]) {
                return None;
            }
            let sizes: Vec<i64> = intervals.iter().map(|i| i.len()).collect();
            groups.push(group.iter().map(|&(_, i)| target.entries[i].rank).collect());
            for &(_, index) in &group {
                let rank = target.entries[index].rank;
                let middle = only(middle, rank)?;
                members.insert(
                    rank,
                    Member { middle, result: region.clone(), sizes: sizes.clone(), other_sizes: vec![] },
                );
            }
        }
    }
    let gets = vec![Get::Received; target.entries.len()];
    let collective = Collective { group: grouping(groups, groupings), members };
    Some((Method::AllGather(collective, Cut { factor }), gets))
}

fn reduce_scatter(
    middle: &[Middle],
    parts: u32,
    reduction: Reduction,
    target: &Layout,
    groupings: &mut IndexSet<Grouping>,
) -> Found {
    if reduction != Reduction::Sum || target.entries.len() != middle.len() {
        return None;
    }
    let mut factor = None;
    let mut members = BTreeMap::new();
    let mut groups = vec![];
    for group in partial_groups(middle, parts)? {
        let whole = &middle[group[0]].entry.region;
        let mut items = vec![];
        for &index in &group {
            let here = target.on(middle[index].entry.rank);
            if here.len() != 1 {
                return None;
            }
            let region = &target.entries[here.start].region;
            let different = one_difference(whole, region)?;
            if *factor.get_or_insert(different) != different {
                return None;
            }
            items.push((region.0[different], index));
        }
        items.sort();
        let intervals: Vec<Interval> = items.iter().map(|i| i.0).collect();
        if !tile(&intervals, whole.0[factor?]) {
            return None;
        }
        let sizes: Vec<i64> = intervals.iter().map(|i| i.len()).collect();
        groups.push(items.iter().map(|&(_, i)| middle[i].entry.rank).collect());
        for &(_, index) in &items {
            let rank = middle[index].entry.rank;
            let result = target.entries[target.on(rank).start].region.clone();
            members.insert(rank, Member { middle: index, result, sizes: sizes.clone(), other_sizes: vec![] });
        }
    }
    let gets = vec![Get::Received; target.entries.len()];
    let collective = Collective { group: grouping(groups, groupings), members };
    Some((Method::ReduceScatter(collective, Cut { factor: factor? }), gets))
}

fn all_to_all(middle: &[Middle], target: &Layout, groupings: &mut IndexSet<Grouping>) -> Found {
    if target.entries.len() != middle.len() {
        return None;
    }
    let mut cut = None;
    let mut hulls: BTreeMap<Region, Vec<(Interval, Interval, usize)>> = BTreeMap::new();
    for (index, it) in middle.iter().enumerate() {
        let here = target.on(it.entry.rank);
        if on_rank(middle, it.entry.rank).len() != 1 || here.len() != 1 {
            return None;
        }
        let (from, to) = (&it.entry.region, &target.entries[here.start].region);
        // The dim that is joined grows, the dim that is cut shrinks, the others stay.
        let different: Vec<usize> = (0..from.0.len()).filter(|&f| from.0[f] != to.0[f]).collect();
        let [a, b] = different[..] else { return None };
        let grows = |f: usize| to.0[f].contains(from.0[f]);
        let (joined, sent) = if grows(a) { (a, b) } else { (b, a) };
        if !grows(joined)
            || !from.0[sent].contains(to.0[sent])
            || *cut.get_or_insert((joined, sent)) != (joined, sent)
        {
            return None;
        }
        hulls.entry(from.hull(to)).or_default().push((from.0[joined], to.0[sent], index));
    }
    let (joined, sent) = cut?;
    let mut members = BTreeMap::new();
    let mut groups = vec![];
    for (hull, mut group) in hulls {
        group.sort();
        let joins: Vec<Interval> = group.iter().map(|g| g.0).collect();
        let sends: Vec<Interval> = group.iter().map(|g| g.1).collect();
        if !tile(&joins, hull.0[joined]) || !tile(&sends, hull.0[sent]) {
            return None;
        }
        let lengths = |all: &[Interval]| all.iter().map(|i| i.len()).collect::<Vec<_>>();
        groups.push(group.iter().map(|g| middle[g.2].entry.rank).collect());
        for &(_, _, index) in &group {
            let rank = middle[index].entry.rank;
            let result = target.entries[target.on(rank).start].region.clone();
            let member =
                Member { middle: index, result, sizes: lengths(&sends), other_sizes: lengths(&joins) };
            members.insert(rank, member);
        }
    }
    let gets = vec![Get::Received; target.entries.len()];
    let collective = Collective { group: grouping(groups, groupings), members };
    Some((Method::AllToAll(collective, Cut { factor: sent }, Cut { factor: joined }), gets))
}
