//! An axis of the devices along which ranks are alike but for where their parts lie, as the program's tables say.

use std::collections::{BTreeMap, HashSet};

use hashing::Map;
use program::{Exchange, Grouping, GroupingId, PerRank, Piece, Program, RankId, Role, Table};
use rules::{Interval, Region};

use crate::shifted;

/// An axis along which ranks are alike is folded if it has so many: fewer are followed one by one.
pub const LONG: u32 = 16;

/// So many ranks along the axis are followed.
pub(crate) const FOLLOWED: u32 = 4;

/// Ranks that differ only in their position on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Axis {
    pub(crate) size: u32,
    stride: u32,
}

/// Along which axes a few ranks stand for all.
#[derive(Clone, Copy)]
pub struct Folding<'f> {
    /// Along those that have so many. Shorter ones are followed rank by rank.
    pub least: u32,
    /// Whether ranks that do the same along one are alike in what is asked of them besides.
    pub may: &'f dyn Fn(Axis) -> bool,
}

impl Folding<'_> {
    pub const LONG: Folding<'static> = Folding::from(LONG);

    pub(crate) const fn from(least: u32) -> Folding<'static> {
        Folding { least, may: &|_| true }
    }
}

/// What is known of the axis while the followed ranks run.
pub(crate) struct Fold {
    pub(crate) axis: Axis,
    /// For each grouping whether its groups lie along the axis.
    pub(crate) along: Vec<bool>,
    /// Of these, where each followed rank is in its group, and of how many ranks that is; none where those of some line
    /// do not follow each other at equal distance.
    places: Vec<Option<Map<RankId, (usize, usize)>>>,
    /// Something happens along the axis that is not followed this way.
    pub(crate) gave_up: bool,
}

impl Fold {
    /// Where ranks are in a group along the axis, all of whose ranks count, and how many these are.
    pub(crate) fn places(&self, grouping: GroupingId, ranks: &[RankId]) -> Option<(Vec<usize>, usize)> {
        let known = self.places[grouping.index()].as_ref()?;
        let found: Vec<(usize, usize)> =
            ranks.iter().map(|rank| known.get(rank).copied()).collect::<Option<_>>()?;
        let (_, size) = *found.first()?;
        Some((found.into_iter().map(|(place, _)| place).collect(), size))
    }
}

impl Axis {
    fn position(self, rank: RankId) -> u32 {
        rank.0 / self.stride % self.size
    }

    /// The rank on the same line at another position.
    pub(crate) fn at(self, rank: RankId, position: u32) -> RankId {
        RankId(rank.0 - self.position(rank) * self.stride + position * self.stride)
    }

    /// The positions in a list of ranks of those of each line, in the list's order.
    pub(crate) fn lines(self, ranks: impl Iterator<Item = RankId>) -> Vec<Vec<usize>> {
        let mut lines: BTreeMap<RankId, Vec<usize>> = BTreeMap::new();
        for (at, rank) in ranks.enumerate() {
            lines.entry(self.at(rank, 0)).or_default().push(at);
        }
        lines.into_values().collect()
    }

    fn followed(self, rank: RankId) -> bool {
        self.position(rank) < FOLLOWED
    }

    /// Whether ranks differ in their position, and in nothing else.
    pub fn is_line(self, one: RankId, other: RankId) -> bool {
        self.at(one, 0) == self.at(other, 0)
    }

    /// One that is followed and stands for a rank.
    pub fn standing_for(self, rank: RankId) -> RankId {
        self.at(rank, self.position(rank).min(FOLLOWED - 1))
    }

    /// By how much there are more ranks than are followed.
    pub(crate) fn times(self, count: usize) -> usize {
        count / FOLLOWED as usize * self.size as usize
    }
}

/// The axes along which the ranks of a program are alike, of those that may be folded: the longest first.
pub(crate) fn all<'p>(program: &'p Program, folding: Folding<'p>) -> impl Iterator<Item = Axis> + 'p {
    // Ranks may be alike along a part of what communicates, too: those that are so many steps from each other.
    let parts = |axis: Axis| {
        let divides = move |by: &u32| axis.size % by == 0;
        (1..=axis.size).filter(divides).map(move |by| Axis { size: axis.size / by, stride: axis.stride * by })
    };
    let mut found: Vec<Axis> = program.groupings.iter().filter_map(step).flat_map(parts).collect();
    found.sort_by_key(|axis| std::cmp::Reverse((axis.size, axis.stride)));
    found.dedup();
    found.retain(|axis| axis.size >= folding.least.max(FOLLOWED + 1));
    found.into_iter().filter(move |axis| symmetric(program, *axis) && (folding.may)(*axis))
}

/// The axis along which a grouping's groups lie, if it is one.
fn step(grouping: &Grouping) -> Option<Axis> {
    let group = grouping.first()?;
    let stride = group.get(1)?.0.checked_sub(group[0].0).filter(|stride| *stride > 0)?;
    let even = group.windows(2).all(|two| two[1].0.checked_sub(two[0].0) == Some(stride));
    even.then_some(Axis { size: u32::try_from(group.len()).ok()?, stride })
}

fn symmetric(program: &Program, axis: Axis) -> bool {
    let block = u64::from(axis.size) * u64::from(axis.stride);
    let mut seen = HashSet::new();
    u64::from(program.world) % block == 0
        && program.roles.iter().all(|role| {
            let Some(lines) = Lines::of(role, axis) else { return false };
            let mut fresh = |per_rank: &PerRank<Region>| match per_rank {
                PerRank::Same(_) => false,
                PerRank::Each(regions) => seen.insert((regions.as_ptr(), role.ranks[0])),
            };
            shifted::numbers(role, &lines)
                && role
                    .table
                    .regions()
                    .filter(|per_rank| fresh(per_rank))
                    .all(|per_rank| lines.moves_on(per_rank))
        })
        && program.groupings.iter().all(|grouping| across(grouping, axis) || along(grouping, axis))
        && program.exchanges.iter().all(|exchange| stays(exchange, axis))
}

/// The part of an exchange that is at one position: ends and pieces, which name the ends of this part.
#[derive(Default)]
struct Section<'e> {
    sources: Vec<&'e (RankId, Region)>,
    targets: Vec<&'e (RankId, Region)>,
    pieces: Vec<Piece>,
}

/// The sections at all positions; `None` if a piece goes from one to another.
fn sections(exchange: &Exchange, axis: Axis) -> Option<Vec<Section<'_>>> {
    let mut found: Vec<Section<'_>> = (0..axis.size).map(|_| Section::default()).collect();
    let at = |ends: &[(RankId, Region)]| {
        let mut counts = vec![0; axis.size as usize];
        let number = |(rank, _): &(RankId, Region)| {
            let position = axis.position(*rank);
            counts[position as usize] += 1;
            (position, counts[position as usize] - 1)
        };
        ends.iter().map(number).collect::<Vec<(u32, usize)>>()
    };
    let (from, to) = (at(&exchange.sources), at(&exchange.targets));
    for (end, (position, _)) in exchange.sources.iter().zip(&from) {
        found[*position as usize].sources.push(end);
    }
    for (end, (position, _)) in exchange.targets.iter().zip(&to) {
        found[*position as usize].targets.push(end);
    }
    for piece in &exchange.pieces {
        let ((position, from), (other, to)) = (*from.get(piece.from)?, *to.get(piece.to)?);
        if position != other {
            return None;
        }
        found[position as usize].pieces.push(Piece { from, to, region: piece.region.clone() });
    }
    Some(found)
}

/// Whether an exchange does the same at every position, a step further on.
fn stays(exchange: &Exchange, axis: Axis) -> bool {
    let Some(sections) = sections(exchange, axis) else { return false };
    let (first, second) = (&sections[0], &sections[1]);
    let ends = |a: &[&(RankId, Region)], b: &[&(RankId, Region)], c: &[&(RankId, Region)], times: i64| {
        a.len() == c.len()
            && a.len() == b.len()
            && a.iter()
                .zip(b)
                .zip(c)
                .all(|((a, b), c)| axis.at(a.0, 0) == axis.at(c.0, 0) && is_moved(&a.1, &b.1, &c.1, times))
    };
    (0_i64..).zip(&sections).all(|(times, section)| {
        ends(&first.sources, &second.sources, &section.sources, times)
            && ends(&first.targets, &second.targets, &section.targets, times)
            && section.pieces.len() == first.pieces.len()
            && section.pieces.len() == second.pieces.len()
            && first.pieces.iter().zip(&second.pieces).zip(&section.pieces).all(|((a, b), c)| {
                (a.from, a.to) == (c.from, c.to) && is_moved(&a.region, &b.region, &c.region, times)
            })
    })
}

/// Whether a region is so many steps further on than the first one, of which the second is one step.
fn is_moved(first: &Region, second: &Region, region: &Region, times: i64) -> bool {
    first.0.len() == second.0.len()
        && first.0.len() == region.0.len()
        && (region.0.iter().zip(&first.0).zip(&second.0))
            .all(|((i, a), b)| moved(*a, b.lo.wrapping_sub(a.lo), times) == *i)
}

/// What of an exchange is between ranks that are followed.
fn between_followed(exchange: &Exchange, axis: Axis) -> Exchange {
    let keep = |ends: &[(RankId, Region)]| -> Vec<Option<usize>> {
        let mut next = 0;
        let number = |(rank, _): &(RankId, Region)| {
            axis.followed(*rank).then(|| {
                next += 1;
                next - 1
            })
        };
        ends.iter().map(number).collect()
    };
    let ends =
        |ends: &[(RankId, Region)]| ends.iter().filter(|(rank, _)| axis.followed(*rank)).cloned().collect();
    let (from, to) = (keep(&exchange.sources), keep(&exchange.targets));
    let piece = |piece: &Piece| {
        Some(Piece { from: from[piece.from]?, to: to[piece.to]?, region: piece.region.clone() })
    };
    Exchange {
        tensor: exchange.tensor,
        reduction: exchange.reduction,
        sources: ends(&exchange.sources),
        targets: ends(&exchange.targets),
        pieces: exchange.pieces.iter().filter_map(piece).collect(),
    }
}

/// The positions in a role of the ranks of each line, in the order of the axis.
pub(crate) struct Lines(Vec<Vec<usize>>);

impl Lines {
    /// `None` if a role has a part of a line only.
    fn of(role: &Role, axis: Axis) -> Option<Lines> {
        let lines = axis.lines(role.ranks.iter().copied());
        let whole = |line: &Vec<usize>| line.iter().map(|at| axis.position(role.ranks[*at])).eq(0..axis.size);
        lines.iter().all(whole).then_some(Lines(lines))
    }

    pub(crate) fn each(&self) -> impl Iterator<Item = &[usize]> {
        self.0.iter().map(Vec::as_slice)
    }

    pub(crate) fn constant(&self, per_rank: &PerRank<i64>) -> bool {
        self.0.iter().all(|line| line.iter().all(|at| per_rank.get(*at) == per_rank.get(line[0])))
    }

    /// Whether every interval moves on by one step a position.
    fn moves_on(&self, per_rank: &PerRank<Region>) -> bool {
        self.0.iter().all(|line| {
            let (first, second) = (per_rank.get(line[0]), per_rank.get(line[1]));
            (0_i64..).zip(line).all(|(position, at)| is_moved(first, second, per_rank.get(*at), position))
        })
    }
}

pub(crate) fn moved(interval: Interval, step: i64, times: i64) -> Interval {
    let by = step.wrapping_mul(times);
    Interval { lo: interval.lo.wrapping_add(by), hi: interval.hi.wrapping_add(by) }
}

/// Whether all groups are at one position each, and the same at every position.
fn across(grouping: &Grouping, axis: Axis) -> bool {
    let all: HashSet<&Vec<RankId>> = grouping.iter().collect();
    grouping.iter().all(|group| {
        let Some(position) = group.first().map(|rank| axis.position(*rank)) else { return false };
        let next = (position + 1) % axis.size;
        let beside: Vec<RankId> = group.iter().map(|rank| axis.at(*rank, next)).collect();
        group.iter().all(|rank| axis.position(*rank) == position) && all.contains(&beside)
    })
}

/// Whether every group has all of the lines that it has something of, in their order.
fn along(grouping: &Grouping, axis: Axis) -> bool {
    grouping.iter().all(|group| {
        let whole = |line: &Vec<usize>| line.iter().map(|at| axis.position(group[*at])).eq(0..axis.size);
        !group.is_empty() && axis.lines(group.iter().copied()).iter().all(whole)
    })
}

/// Where the followed ranks are in groups along the axis, of how many; none where it is not one step from each rank of a
/// line to the next.
fn places(grouping: &Grouping, axis: Axis) -> Option<Map<RankId, (usize, usize)>> {
    let mut found = Map::default();
    for group in grouping {
        for line in axis.lines(group.iter().copied()) {
            if line.windows(2).any(|two| two[1] - two[0] != line[1] - line[0]) {
                return None;
            }
            found.extend(line.iter().take(FOLLOWED as usize).map(|at| (group[*at], (*at, group.len()))));
        }
    }
    Some(found)
}

/// The ranks that are followed, as a program of their own.
pub(crate) fn followed(program: &Program, axis: Axis) -> (Program, Fold) {
    let keep = |ranks: &Vec<RankId>| -> Vec<RankId> {
        ranks.iter().copied().filter(|rank| axis.followed(*rank)).collect()
    };
    let groupings = program.groupings.iter();
    let roles = program.roles.iter().map(|role| {
        let at: Vec<usize> = (0..role.ranks.len()).filter(|at| axis.followed(role.ranks[*at])).collect();
        Role { ranks: keep(&role.ranks), table: only(&role.table, &at), body: role.body.clone() }
    });
    let reduced = Program {
        model: program.model.clone(),
        digest: program.digest.clone(),
        slices: program.slices.clone(),
        rewritings: program.rewritings.clone(),
        plan: program.plan.clone(),
        world: program.world,
        boundary: program.boundary.clone(),
        factors: vec![],
        state_on_host: program.state_on_host.clone(),
        held_on_host: program.held_on_host.clone(),
        groupings: groupings
            .clone()
            .map(|grouping| grouping.iter().map(keep).filter(|group| !group.is_empty()).collect())
            .collect(),
        exchanges: program.exchanges.iter().map(|exchange| between_followed(exchange, axis)).collect(),
        updates: vec![],
        roles: roles.collect(),
    };
    let along: Vec<bool> = groupings.clone().map(|grouping| along(grouping, axis)).collect();
    let places = |(grouping, along): (&Grouping, &bool)| along.then(|| places(grouping, axis)).flatten();
    let places = groupings.zip(&along).map(places).collect();
    (reduced, Fold { axis, along, places, gave_up: false })
}

/// The table of some of a role's ranks.
fn only(table: &Table, at: &[usize]) -> Table {
    let mut known: Map<*const Region, PerRank<Region>> = Map::default();
    let mut regions = |per_rank: &PerRank<Region>| match per_rank {
        PerRank::Same(_) => per_rank.clone(),
        PerRank::Each(regions) => known
            .entry(regions.as_ptr())
            .or_insert_with(|| PerRank::of(at.iter().map(|at| regions[*at].clone()).collect()))
            .clone(),
    };
    let mut own = table.clone();
    own.shards.iter_mut().for_each(|shard| shard.region = regions(&shard.region));
    own.copies.iter_mut().for_each(|copy| copy.region = regions(&copy.region));
    own.leaves.iter_mut().for_each(|(_, region)| *region = regions(region));
    own.inputs.iter_mut().for_each(|region| *region = regions(region));
    own.outputs.iter_mut().flatten().for_each(|region| *region = regions(region));
    own.random.iter_mut().flat_map(|(_, slots)| slots).for_each(|region| *region = regions(region));
    for constant in &mut own.constants {
        *constant = PerRank::of(at.iter().map(|at| *constant.get(*at)).collect());
    }
    own
}
