//! One collective between two lists of shards, if one will do: also where the lists form no [`crate::Sharding`].
//!
//! In this order: what is there already, slices included, then one collective over groups in which all do the same, and
//! a local slice of its result.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use rules::{Interval, Reduction, Region};

use crate::hop::{Along, Hop, HopKind};
use crate::sharding::{Shard, Sharding};

/// Shards of a tensor in the order of devices: any.
#[derive(Clone, Debug)]
pub struct List<'s> {
    pub shards: Vec<ShardRef<'s>>,
    /// How many partial results make the value.
    pub shares: u32,
    pub reduction: Reduction,
}

/// A [`Shard`] that somebody else has.
#[derive(Clone, Copy, Debug)]
pub struct ShardRef<'s> {
    pub device: u32,
    pub region: &'s Region,
    pub share: u32,
}

/// How one list becomes another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Method {
    Local,
    Collective(Along, Participants),
    /// All-reduces of all that each device has, in one message.
    AllReduceEach(Vec<Vec<u32>>),
}

/// Who takes part in a collective.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Participants {
    /// The pieces of a group follow its devices.
    pub groups: Vec<Vec<u32>>,
    /// By device.
    pub members: BTreeMap<u32, Member>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// The shard that takes part, by its position in the list.
    pub shard: usize,
    /// What arises.
    pub result: Region,
    /// Lengths of the pieces of its group, for cuts.
    pub sizes: Vec<i64>,
    pub other_sizes: Vec<i64>,
}

/// Where a wanted shard comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Get {
    /// It is this shard.
    Is(usize),
    /// It is a slice of this shard.
    Of(usize),
    /// It is the result of the communication on its device.
    Received,
    /// It is a slice of the result of the collective.
    OfResult,
    /// It is what this shard becomes by [`Method::AllReduceEach`].
    Reduced(usize),
}

impl List<'_> {
    /// The positions of a device's shards.
    pub fn on(&self, device: u32) -> Range<usize> {
        let start = self.shards.partition_point(|shard| shard.device < device);
        let count = self.shards[start..].partition_point(|shard| shard.device == device);
        start..start + count
    }

    /// The sharding that these are all shards of.
    pub fn sharding(&self) -> Option<Sharding> {
        let mut sizes: Vec<i64> = self.shards.first()?.region.0.iter().map(|i| i.hi).collect();
        for shard in &self.shards {
            sizes.iter_mut().zip(&shard.region.0).for_each(|(size, i)| *size = i.hi.max(*size));
        }
        let shard = |s: &ShardRef<'_>| Shard { device: s.device, region: s.region.clone(), share: s.share };
        let shards: Vec<Shard> = self.shards.iter().map(shard).collect();
        Sharding::from_shards(&sizes, &shards, self.shares, self.reduction)
    }

    /// The shard of a device that has exactly one.
    fn only(&self, device: u32) -> Option<usize> {
        let here = self.on(device);
        (here.len() == 1).then_some(here.start)
    }

    /// Where a device has what it wants as one of so many shares.
    fn local(&self, wanted: &ShardRef<'_>, shares: u32) -> Option<Get> {
        if self.shares != shares {
            return None;
        }
        let mut here = self.on(wanted.device).filter(|&i| self.shards[i].share == wanted.share);
        let exact = here.clone().find(|&i| self.shards[i].region == wanted.region);
        let larger = |&i: &usize| self.shards[i].region.contains(wanted.region);
        exact.map(Get::Is).or_else(|| here.find(larger).map(Get::Of))
    }
}

/// For each wanted shard where its device has it, if it does.
pub fn locally(source: &List<'_>, target: &List<'_>) -> Vec<Option<Get>> {
    target.shards.iter().map(|wanted| source.local(wanted, target.shares)).collect()
}

/// Nothing, slices, or one collective, if that will do.
pub fn single(source: &List<'_>, target: &List<'_>) -> Option<(Method, Vec<Get>)> {
    let local = target.shards.iter().map(|wanted| source.local(wanted, target.shares));
    if let Some(gets) = local.collect::<Option<Vec<Get>>>() {
        return Some((Method::Local, gets));
    }
    if target.shares != 1 {
        return None;
    }
    if source.shares > 1 {
        return reduce_scatter(source, target)
            .or_else(|| all_reduce(source, target))
            .or_else(|| all_reduce_each(source, target));
    }
    all_gather(source, target).or_else(|| all_to_all(source, target))
}

impl Hop {
    /// The same for a hop that is a slice or a collective, if each device has one shard before and one after it.
    pub fn method(&self, before: &List<'_>, after: &List<'_>) -> (Method, Vec<Get>) {
        let HopKind::Collective(how) = self.kind else {
            return (Method::Local, (0..after.shards.len()).map(Get::Of).collect());
        };
        let groups = self.groups();
        let position: BTreeMap<u32, usize> =
            before.shards.iter().enumerate().map(|(index, shard)| (shard.device, index)).collect();
        let (sent, joined) = (how.sent().copied(), how.joined().copied());
        let mut members = BTreeMap::new();
        for group in &groups {
            let indices: Vec<usize> = group.iter().map(|device| position[device]).collect();
            let lengths = |list: &List<'_>, factor: Option<usize>| -> Vec<i64> {
                let length = |factor: usize, i: usize| list.shards[i].region.0[factor].len();
                factor.map_or(vec![], |factor| indices.iter().map(|&i| length(factor, i)).collect())
            };
            let (pieces, parts) = (lengths(after, sent), lengths(before, joined));
            let (sizes, other_sizes) = if sent.is_some() { (pieces, parts) } else { (parts, vec![]) };
            for (&device, &shard) in group.iter().zip(&indices) {
                let result = after.shards[shard].region.clone();
                let (sizes, other_sizes) = (sizes.clone(), other_sizes.clone());
                members.insert(device, Member { shard, result, sizes, other_sizes });
            }
        }
        let gets = vec![Get::Received; after.shards.len()];
        (Method::Collective(how, Participants { groups, members }), gets)
    }
}

/// How, and where each shard of the target comes from.
type FoundHop = Option<(Method, Vec<Get>)>;

fn all_reduce(source: &List<'_>, target: &List<'_>) -> FoundHop {
    let groups = partial_groups(source)?;
    let mut members = BTreeMap::new();
    for &index in groups.iter().flatten() {
        let shard = &source.shards[index];
        let member =
            Member { shard: index, result: shard.region.clone(), sizes: vec![], other_sizes: vec![] };
        members.insert(shard.device, member);
    }
    let mut served = vec![false; source.shards.len()];
    let mut gets = vec![];
    for wanted in &target.shards {
        let member = members.get(&wanted.device)?;
        served[member.shard] = true;
        let same = member.result == *wanted.region;
        if !same
            && (!member.result.contains(wanted.region) || wanted.region.numel() * 2 < member.result.numel())
        {
            return None;
        }
        gets.push(if same { Get::Received } else { Get::OfResult });
    }
    // An all-reduce for a result that only some of its devices want moves more than it must.
    if !members.values().all(|member| served[member.shard]) {
        return None;
    }
    let groups = groups.iter().map(|g| g.iter().map(|&i| source.shards[i].device).collect()).collect();
    Some((Method::Collective(Along::AllReduce(source.reduction), Participants { groups, members }), gets))
}

/// Of devices that have several shards each, those with shards of the same regions reduce all of them together.
fn all_reduce_each(source: &List<'_>, target: &List<'_>) -> FoundHop {
    let same = |wanted: &ShardRef<'_>| {
        source.on(wanted.device).find(|&i| source.shards[i].region == wanted.region).map(Get::Reduced)
    };
    let gets = target.shards.iter().map(same).collect::<Option<Vec<Get>>>()?;
    let mut same: BTreeMap<Vec<&Region>, BTreeMap<Vec<u32>, Vec<u32>>> = BTreeMap::new();
    for here in source.shards.chunk_by(|a, b| a.device == b.device) {
        let regions: Vec<&Region> = here.iter().map(|shard| shard.region).collect();
        if regions.windows(2).any(|two| two[0] == two[1]) || target.on(here[0].device).len() != here.len() {
            return None;
        }
        let shares = here.iter().map(|shard| shard.share).collect();
        same.entry(regions).or_default().entry(shares).or_default().push(here[0].device);
    }
    let mut groups = vec![];
    for holders in same.values() {
        let copies = holders.values().next()?.len();
        let each_once = |position: usize| {
            let distinct: BTreeSet<u32> = holders.keys().map(|shares| shares[position]).collect();
            distinct.len() == source.shares as usize
        };
        let shards = holders.keys().next()?.len();
        let even = holders.len() == source.shares as usize
            && holders.values().all(|devices| devices.len() == copies);
        if !even || !(0..shards).all(each_once) {
            return None;
        }
        groups.extend(
            (0..copies).map(|copy| holders.values().map(|devices| devices[copy]).collect::<Vec<_>>()),
        );
    }
    Some((Method::AllReduceEach(groups), gets))
}

/// Groups of shards, one of each share, all of one region; each device is in one of them.
fn partial_groups(source: &List<'_>) -> Option<Vec<Vec<usize>>> {
    let mut holders: BTreeMap<&Region, Vec<Vec<usize>>> = BTreeMap::new();
    for (index, it) in source.shards.iter().enumerate() {
        if source.on(it.device).len() != 1 {
            return None;
        }
        let by_share = holders.entry(it.region).or_insert_with(|| vec![vec![]; source.shares as usize]);
        by_share[it.share as usize].push(index);
    }
    let mut groups = vec![];
    for by_share in holders.values() {
        let copies = by_share[0].len();
        if by_share.iter().any(|h| h.len() != copies) {
            return None;
        }
        groups.extend((0..copies).map(|copy| by_share.iter().map(|h| h[copy]).collect::<Vec<_>>()));
    }
    Some(groups)
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

/// Splits devices with intervals into groups in which each interval occurs once; `None` if some
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

fn all_gather(source: &List<'_>, target: &List<'_>) -> FoundHop {
    let mut factor = None;
    let mut wanted: BTreeMap<&Region, Vec<(Interval, usize)>> = BTreeMap::new();
    for (index, goal) in target.shards.iter().enumerate() {
        let from = source.shards[source.only(goal.device)?].region;
        let different = one_difference(from, goal.region)?;
        if target.on(goal.device).len() != 1 || *factor.get_or_insert(different) != different {
            return None;
        }
        wanted.entry(goal.region).or_default().push((from.0[different], index));
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
            groups.push(group.iter().map(|&(_, i)| target.shards[i].device).collect());
            for &(_, index) in &group {
                let device = target.shards[index].device;
                let shard = source.only(device)?;
                members.insert(
                    device,
                    Member { shard, result: region.clone(), sizes: sizes.clone(), other_sizes: vec![] },
                );
            }
        }
    }
    let gets = vec![Get::Received; target.shards.len()];
    let participants = Participants { groups, members };
    Some((Method::Collective(Along::AllGather(factor), participants), gets))
}

fn reduce_scatter(source: &List<'_>, target: &List<'_>) -> FoundHop {
    if source.reduction != Reduction::Sum || target.shards.len() != source.shards.len() {
        return None;
    }
    let mut factor = None;
    let mut members = BTreeMap::new();
    let mut groups = vec![];
    for group in partial_groups(source)? {
        let whole = source.shards[group[0]].region;
        let mut items = vec![];
        for &index in &group {
            let here = target.on(source.shards[index].device);
            if here.len() != 1 {
                return None;
            }
            let region = target.shards[here.start].region;
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
        groups.push(items.iter().map(|&(_, i)| source.shards[i].device).collect());
        for &(_, index) in &items {
            let device = source.shards[index].device;
            let result = target.shards[target.on(device).start].region.clone();
            members
                .insert(device, Member { shard: index, result, sizes: sizes.clone(), other_sizes: vec![] });
        }
    }
    let gets = vec![Get::Received; target.shards.len()];
    let participants = Participants { groups, members };
    Some((Method::Collective(Along::ReduceScatter(factor?), participants), gets))
}

fn all_to_all(source: &List<'_>, target: &List<'_>) -> FoundHop {
    if target.shards.len() != source.shards.len() {
        return None;
    }
    let mut cut = None;
    let mut hulls: BTreeMap<Region, Vec<(Interval, Interval, usize)>> = BTreeMap::new();
    for (index, it) in source.shards.iter().enumerate() {
        let here = target.on(it.device);
        if source.on(it.device).len() != 1 || here.len() != 1 {
            return None;
        }
        let (from, to) = (it.region, target.shards[here.start].region);
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
        groups.push(group.iter().map(|g| source.shards[g.2].device).collect());
        for &(_, _, index) in &group {
            let device = source.shards[index].device;
            let result = target.shards[target.on(device).start].region.clone();
            let member =
                Member { shard: index, result, sizes: lengths(&sends), other_sizes: lengths(&joins) };
            members.insert(device, member);
        }
    }
    let gets = vec![Get::Received; target.shards.len()];
    let participants = Participants { groups, members };
    Some((Method::Collective(Along::AllToAll { send: sent, receive: joined }, participants), gets))
}
