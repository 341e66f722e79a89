//! An axis of the devices along which ranks are alike but for where their parts lie, as the program's tables say.

use std::collections::BTreeMap;
use std::sync::Arc;

use hashing::Map;
use program::{Exchange, Grouping, GroupingId, PerRank, Piece, Program, RankId, Role, Table};
use rules::{Interval, Region};

/// An axis along which ranks are alike is folded if it has so many: fewer are followed one by one.
pub const LONG: u32 = 16;

/// So many ranks along the axis are followed.
pub(crate) const FOLLOWED: u32 = 4;

/// Ranks that differ only in their position on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankAxis {
    pub(crate) size: u32,
    pub(crate) stride: u32,
}

/// Along which axes a few ranks stand for all.
#[derive(Clone, Copy)]
pub struct Folding<'f> {
    /// Along those that have so many. Shorter ones are followed rank by rank.
    pub least: u32,
    /// Whether ranks that do the same along one are alike in what is asked of them besides.
    pub may: &'f dyn Fn(RankAxis) -> bool,
}

impl Folding<'_> {
    pub const LONG: Folding<'static> = Folding::from(LONG);

    pub(crate) const fn from(least: u32) -> Folding<'static> {
        Folding { least, may: &|_| true }
    }
}

/// What is known of the axis while the followed ranks run.
pub(crate) struct Fold {
    pub(crate) axis: RankAxis,
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
        let places: Vec<(usize, usize)> =
            ranks.iter().map(|rank| known.get(rank).copied()).collect::<Option<_>>()?;
        let (_, size) = *places.first()?;
        Some((places.into_iter().map(|(place, _)| place).collect(), size))
    }
}

impl RankAxis {
    pub(crate) fn position(self, rank: RankId) -> u32 {
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

/// Whether a region is so many steps further on than the first one, of which the second is one step.
pub(crate) fn is_moved(first: &Region, second: &Region, region: &Region, times: i64) -> bool {
    first.0.len() == second.0.len()
        && first.0.len() == region.0.len()
        && (region.0.iter().zip(&first.0).zip(&second.0))
            .all(|((i, a), b)| moved(*a, b.lo.wrapping_sub(a.lo), times) == *i)
}

/// What of an exchange is between ranks that are followed.
fn between_followed(exchange: &Exchange, axis: RankAxis) -> Exchange {
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
    let ends = |ends: &[(RankId, Region)]| {
        Arc::new(ends.iter().filter(|(rank, _)| axis.followed(*rank)).cloned().collect())
    };
    let (from, to) = (keep(&exchange.sources), keep(&exchange.targets));
    let piece = |piece: &Piece| {
        Some(Piece { from: from[piece.from]?, to: to[piece.to]?, region: piece.region.clone() })
    };
    Exchange {
        tensor: exchange.tensor,
        reduction: exchange.reduction,
        sources: ends(&exchange.sources),
        targets: ends(&exchange.targets),
        pieces: Arc::new(exchange.pieces.iter().filter_map(piece).collect()),
    }
}

/// The positions in a role of the ranks of each line, in the order of the axis.
pub(crate) struct Lines(Vec<Vec<usize>>);

impl Lines {
    /// `None` if a role has a part of a line only.
    pub(crate) fn new(role: &Role, axis: RankAxis) -> Option<Lines> {
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
    pub(crate) fn moves_on(&self, per_rank: &PerRank<Region>) -> bool {
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

/// Whether every group has all of the lines that it has something of, in their order.
pub(crate) fn along(grouping: &Grouping, axis: RankAxis) -> bool {
    grouping.iter().all(|group| {
        let whole = |line: &Vec<usize>| line.iter().map(|at| axis.position(group[*at])).eq(0..axis.size);
        !group.is_empty() && axis.lines(group.iter().copied()).iter().all(whole)
    })
}

/// Where the followed ranks are in groups along the axis, of how many; none where it is not one step from each rank of a
/// line to the next.
fn places(grouping: &Grouping, axis: RankAxis) -> Option<Map<RankId, (usize, usize)>> {
    let mut places = Map::default();
    for group in grouping {
        for line in axis.lines(group.iter().copied()) {
            if line.windows(2).any(|two| two[1] - two[0] != line[1] - line[0]) {
                return None;
            }
            places.extend(line.iter().take(FOLLOWED as usize).map(|at| (group[*at], (*at, group.len()))));
        }
    }
    Some(places)
}

/// The ranks that are followed, as a program of their own.
pub(crate) fn followed(program: &Program, axis: RankAxis) -> (Program, Fold) {
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
            .or_insert_with(|| PerRank::from_values(at.iter().map(|at| regions[*at].clone()).collect()))
            .clone(),
    };
    let mut subset = table.clone();
    subset.shards.iter_mut().for_each(|shard| shard.region = regions(&shard.region));
    subset.copies.iter_mut().for_each(|copy| copy.region = regions(&copy.region));
    subset.leaves.iter_mut().for_each(|(_, region)| *region = regions(region));
    subset.inputs.iter_mut().for_each(|region| *region = regions(region));
    subset.outputs.iter_mut().flatten().for_each(|region| *region = regions(region));
    subset.random.iter_mut().flat_map(|(_, slots)| slots).for_each(|region| *region = regions(region));
    for constant in &mut subset.constants {
        *constant = PerRank::from_values(at.iter().map(|at| *constant.get(*at)).collect());
    }
    subset
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_on_a_line_differ_in_one_position() {
        let axis = RankAxis { size: 4, stride: 2 };
        for (one, other, is_line) in [(0, 6, true), (3, 1, true), (2, 2, true), (0, 1, false), (6, 8, false)]
        {
            assert_eq!(axis.is_line(RankId(one), RankId(other)), is_line, "{one} {other}");
        }
    }
}
