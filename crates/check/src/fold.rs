//! Ranks along an axis of the devices that are alike but for where their parts lie: a few of them are followed,
//! and the others follow.
//!
//! Devices `r`, `r + stride`, `r + 2 stride`, ... run one code. What their tables say was compared: every
//! interval moves on by the same step from each to the next, every number is the same, and groups lie across
//! the axis, alike for each of its positions, or along all of it. So a rank further on differs from one that is followed
//! only in where the intervals lie that the axis divides, and no rule asks where a loop's interval lies, but
//! for dims marked `~`, which must not be divided by the axis, and for the first one. Hence the ranks at
//! positions 0 to 3 are followed, and it is verified that at all of them the same operators were found, and
//! that every interval and every share moved on by one step from 1 to 2 as from 2 to 3.
//!
//! Where ranks along the axis are summed, those that are not followed are one summand: the terms of
//! neighbours whose cuts follow each other are one term, whose cut is all of theirs.
//!
//! Nothing is refused here: a program that is not seen to be right this way is followed rank by rank.

use std::collections::{BTreeMap, HashSet};

use program::{Column, Grouping, GroupingId, Program, RankId, Role, Table};
use rules::{Interval, Region};

use crate::held::Held;
use crate::intern::Map;
use crate::share::{ListId, ShareId, Store};
use crate::state::{Context, Rank};

/// So many ranks along the axis are followed.
const FOLLOWED: u32 = 4;

/// Ranks that differ only in their position on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Axis {
    pub(crate) size: u32,
    stride: u32,
}

/// What is known of the axis while the followed ranks run.
pub(crate) struct Fold {
    pub(crate) axis: Axis,
    /// For each grouping whether its groups lie along the axis.
    along: Vec<bool>,
    /// Something happens along the axis that is not followed this way.
    pub(crate) gave_up: bool,
}

impl Axis {
    fn position(self, rank: RankId) -> u32 {
        rank.0 / self.stride % self.size
    }

    /// The rank on the same line at another position.
    fn at(self, rank: RankId, position: u32) -> RankId {
        RankId(rank.0 - self.position(rank) * self.stride + position * self.stride)
    }

    fn followed(self, rank: RankId) -> bool {
        self.position(rank) < FOLLOWED
    }

    /// One that is followed and stands for a rank.
    pub(crate) fn standing_for(self, rank: RankId) -> RankId {
        self.at(rank, self.position(rank).min(FOLLOWED - 1))
    }

    /// By how much there are more ranks than are followed.
    pub(crate) fn times(self, count: usize) -> usize {
        count / FOLLOWED as usize * self.size as usize
    }
}

/// The longest axis along which the ranks of a program are alike, of at least so many.
pub(crate) fn axis(program: &Program, least: u32) -> Option<Axis> {
    if !program.exchanges.is_empty() {
        return None;
    }
    let mut found: Vec<Axis> = program.groupings.iter().filter_map(|g| step(g)).collect();
    found.sort_by_key(|axis| std::cmp::Reverse((axis.size, axis.stride)));
    found.dedup();
    found.retain(|axis| axis.size >= least.max(FOLLOWED + 1));
    found.into_iter().find(|axis| alike(program, *axis))
}

/// The axis along which a grouping's groups lie, if it is one.
fn step(grouping: &Grouping) -> Option<Axis> {
    let group = grouping.first()?;
    let stride = group.get(1)?.0.checked_sub(group[0].0).filter(|stride| *stride > 0)?;
    let even = group.windows(2).all(|two| two[1].0.checked_sub(two[0].0) == Some(stride));
    even.then_some(Axis { size: u32::try_from(group.len()).ok()?, stride })
}

fn alike(program: &Program, axis: Axis) -> bool {
    let block = u64::from(axis.size) * u64::from(axis.stride);
    let mut seen = HashSet::new();
    u64::from(program.world) % block == 0
        && program.roles.iter().all(|role| {
            let Some(lines) = Lines::of(role, axis) else { return false };
            let mut fresh = |column: &Column<Region>| match column {
                Column::Same(_) => false,
                Column::Each(regions) => seen.insert((regions.as_ptr(), role.ranks[0])),
            };
            role.table.constants.iter().all(|column| lines.constant(column))
                && role.table.regions().filter(|column| fresh(column)).all(|column| lines.moves_on(column))
        })
        && program.groupings.iter().all(|grouping| across(grouping, axis) || along(grouping, axis))
}

/// The positions in a role of the ranks of each line, in the order of the axis.
struct Lines(Vec<Vec<usize>>);

impl Lines {
    /// `None` if a role has a part of a line only.
    fn of(role: &Role, axis: Axis) -> Option<Lines> {
        let mut lines: BTreeMap<RankId, Vec<usize>> = BTreeMap::new();
        for (at, rank) in role.ranks.iter().enumerate() {
            lines.entry(axis.at(*rank, 0)).or_default().push(at);
        }
        let whole = |line: &Vec<usize>| {
            let mut expected = 0..axis.size;
            line.iter().all(|at| expected.next() == Some(axis.position(role.ranks[*at])))
                && expected.is_empty()
        };
        lines.values().all(whole).then(|| Lines(lines.into_values().collect()))
    }

    fn constant(&self, column: &Column<i64>) -> bool {
        self.0.iter().all(|line| line.iter().all(|at| column.get(*at) == column.get(line[0])))
    }

    /// Whether every interval moves on by one step a position.
    fn moves_on(&self, column: &Column<Region>) -> bool {
        self.0.iter().all(|line| {
            let (first, second) = (column.get(line[0]), column.get(line[1]));
            let fits = |(position, at): (i64, &usize)| {
                let region = column.get(*at);
                region.0.len() == first.0.len()
                    && (region.0.iter().zip(&first.0).zip(&second.0))
                        .all(|((i, a), b)| moved(*a, b.lo.wrapping_sub(a.lo), position) == *i)
            };
            first.0.len() == second.0.len() && (0_i64..).zip(line).all(fits)
        })
    }
}

fn moved(interval: Interval, step: i64, times: i64) -> Interval {
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
        let mut lines: BTreeMap<RankId, u32> = BTreeMap::new();
        let in_order = group.iter().all(|rank| {
            let next = lines.entry(axis.at(*rank, 0)).or_default();
            *next += 1;
            axis.position(*rank) == *next - 1
        });
        in_order && !group.is_empty() && lines.values().all(|count| *count == axis.size)
    })
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
        rewritings: program.rewritings.clone(),
        plan: program.plan.clone(),
        world: program.world,
        boundary: program.boundary.clone(),
        factors: vec![],
        groupings: groupings
            .clone()
            .map(|grouping| grouping.iter().map(keep).filter(|group| !group.is_empty()).collect())
            .collect(),
        exchanges: vec![],
        roles: roles.collect(),
    };
    let along = groupings.map(|grouping| along(grouping, axis)).collect();
    (reduced, Fold { axis, along, gave_up: false })
}

/// The table of some of a role's ranks.
fn only(table: &Table, at: &[usize]) -> Table {
    let mut known: Map<*const Region, Column<Region>> = Map::default();
    let mut regions = |column: &Column<Region>| match column {
        Column::Same(_) => column.clone(),
        Column::Each(regions) => known
            .entry(regions.as_ptr())
            .or_insert_with(|| Column::of(at.iter().map(|at| regions[*at].clone()).collect()))
            .clone(),
    };
    let mut own = table.clone();
    own.shards.iter_mut().for_each(|shard| shard.region = regions(&shard.region));
    own.leaves.iter_mut().for_each(|(_, region)| *region = regions(region));
    own.inputs.iter_mut().for_each(|region| *region = regions(region));
    own.outputs.iter_mut().flatten().for_each(|region| *region = regions(region));
    own.random.iter_mut().flat_map(|(_, slots)| slots).for_each(|region| *region = regions(region));
    for constant in &mut own.constants {
        *constant = Column::of(at.iter().map(|at| *constant.get(*at)).collect());
    }
    own
}

impl Fold {
    /// For each line of a group along the axis, where among its members those at positions 1, 2 and 3 are.
    fn lines(&self, ranks: &[Rank<'_>], members: &[usize]) -> Vec<[usize; 3]> {
        let mut lines: BTreeMap<RankId, Vec<usize>> = BTreeMap::new();
        for (at, member) in members.iter().enumerate() {
            lines.entry(self.axis.at(ranks[*member].id, 0)).or_default().push(at);
        }
        lines.into_values().map(|line| [line[1], line[2], line[3]]).collect()
    }
}

/// What the members of a group give to a sum, and what those give that are not followed.
pub(crate) fn others_too(
    cx: &mut Context<'_>,
    ranks: &[Rank<'_>],
    grouping: GroupingId,
    members: &[usize],
    mut held: Vec<Held>,
) -> Vec<Held> {
    let Some(fold) = cx.fold.as_mut().filter(|fold| fold.along[grouping.index()]) else { return held };
    let size = fold.axis.size;
    for line in fold.lines(ranks, members) {
        let given = line.map(|at| held[at]);
        let alike = given.iter().all(|h| h.of == given[0].of && h.region == given[0].region);
        match cx.store.rest(given.map(|h| h.share), size).filter(|_| alike) {
            Some(share) => held.push(Held { share, ..given[0] }),
            None => fold.gave_up = true,
        }
    }
    held
}

/// Of what else is communicated along the axis, those that are not followed have a part too.
pub(crate) fn only_these(cx: &mut Context<'_>, grouping: GroupingId) {
    if let Some(fold) = cx.fold.as_mut() {
        fold.gave_up |= fold.along[grouping.index()];
    }
}

impl Store {
    /// The share that shares at positions from [`FOLLOWED`] on are together, given those at 1, 2 and 3.
    fn rest(&mut self, shares: [ShareId; 3], size: u32) -> Option<ShareId> {
        if shares[0] == shares[1] && shares[1] == shares[2] {
            return Some(shares[0]);
        }
        self.combine(shares, &mut |cuts| {
            let [a, b, c] = cuts;
            let (mut changed, mut cut) = (0, vec![]);
            for ((a, b), c) in a.iter().zip(b).zip(c) {
                if a == b && b == c {
                    cut.push(*a);
                    continue;
                }
                let len = a.len();
                if moved(*a, len, 1) != *b || moved(*a, len, 2) != *c {
                    return None;
                }
                changed += 1;
                let (begin, end) = (i64::from(FOLLOWED) - 1, i64::from(size) - 1);
                cut.push(Interval {
                    lo: a.lo.checked_add(len.checked_mul(begin)?)?,
                    hi: a.lo.checked_add(len.checked_mul(end)?)?,
                });
            }
            // Neighbours that differ in one interval are together one box.
            (changed <= 1).then_some(cut)
        })
    }

    /// Whether three shares move on by one step from each to the next.
    fn moves_on(&mut self, shares: [ShareId; 3]) -> bool {
        let same = shares[0] == shares[1] && shares[1] == shares[2];
        same || self.combine(shares, &mut |[a, b, c]| steps(a, b, c).then(|| a.to_vec())).is_some()
    }
}

fn steps(a: &[Interval], b: &[Interval], c: &[Interval]) -> bool {
    a.len() == b.len()
        && b.len() == c.len()
        && a.iter().zip(b).zip(c).all(|((a, b), c)| {
            let step = b.lo.wrapping_sub(a.lo);
            moved(*a, step, 1) == *b && moved(*a, step, 2) == *c
        })
}

/// Whether what was found of the ranks that were followed is what it is of all: nothing differs between them but
/// where intervals lie, and these move on.
pub(crate) fn uniform(cx: &mut Context<'_>, ranks: &[Rank<'_>]) -> bool {
    let Some(axis) = cx.fold.as_ref().filter(|fold| !fold.gave_up).map(|fold| fold.axis) else {
        return false;
    };
    let mut lines: BTreeMap<RankId, Vec<usize>> = BTreeMap::new();
    for (index, rank) in ranks.iter().enumerate() {
        lines.entry(axis.at(rank.id, 0)).or_default().push(index);
    }
    let mut known = Known::default();
    lines.into_values().all(|line| {
        let line: [&Rank<'_>; FOLLOWED as usize] =
            [&ranks[line[0]], &ranks[line[1]], &ranks[line[2]], &ranks[line[3]]];
        line.iter().all(|rank| rank.role == line[0].role)
            && known.bufs(cx, line)
            && known.parts(cx, line)
            && known.leaves(cx, line)
    })
}

/// Comparisons that were made before.
#[derive(Default)]
struct Known {
    regions: Map<[ListId; 4], bool>,
    shares: Map<[ShareId; 3], bool>,
}

type Line<'r, 'a> = [&'r Rank<'a>; FOLLOWED as usize];

impl Known {
    fn regions(&mut self, cx: &Context<'_>, regions: [ListId; 4]) -> bool {
        let [z, a, b, c] = regions;
        (z == a && a == b && b == c)
            || *self.regions.entry(regions).or_insert_with(|| {
                let list = |id: ListId| cx.store.region(id);
                steps(list(z), list(a), list(b)) && steps(list(a), list(b), list(c))
            })
    }

    /// At position 0 a share may differ: what is added once is in.
    fn shares(&mut self, cx: &mut Context<'_>, shares: [ShareId; 3]) -> bool {
        *self.shares.entry(shares).or_insert_with(|| cx.store.moves_on(shares))
    }

    fn bufs(&mut self, cx: &mut Context<'_>, line: Line<'_, '_>) -> bool {
        (0..line[0].bufs.len()).all(|buf| match line.map(|rank| rank.bufs[buf]) {
            [None, None, None, None] => true,
            [Some(z), Some(a), Some(b), Some(c)] => {
                [a, b, c].iter().all(|held| held.of == z.of)
                    && self.regions(cx, [z.region, a.region, b.region, c.region])
                    && self.shares(cx, [a.share, b.share, c.share])
            }
            _ => false,
        })
    }

    fn parts(&mut self, cx: &Context<'_>, line: Line<'_, '_>) -> bool {
        (0..line[0].parts.len()).all(|number| match line.map(|rank| rank.parts[number]) {
            [Some(z), Some(a), Some(b), Some(c)] => {
                let like = |other: &crate::held::Part| {
                    (other.op, other.binding, other.clause) == (z.op, z.binding, z.clause)
                };
                [a, b, c].iter().all(like)
                    && self.regions(cx, [z.at, a.at, b.at, c.at])
                    && (z.at == a.at || free_to_move(cx, z.op, cx.store.region(z.at), cx.store.region(a.at)))
            }
            _ => false,
        })
    }

    fn leaves(&mut self, cx: &mut Context<'_>, line: Line<'_, '_>) -> bool {
        (0..line[0].leaves.len()).all(|leaf| {
            let [z, a, b, c] = line.map(|rank| rank.leaves[leaf]);
            let like = |s: &crate::state::LeafState| {
                (s.shard, s.tensor, s.sealed, s.exchanged) == (z.shard, z.tensor, z.sealed, z.exchanged)
            };
            [a, b, c].iter().all(like)
                && self.regions(cx, [z.region, a.region, b.region, c.region])
                && self.shares(cx, [a.gradient, b.gradient, c.gradient])
        })
    }
}

/// Whether no loop moves of which the operator's rule asks where its interval lies.
fn free_to_move(cx: &Context<'_>, op: graph::OpId, a: &[Interval], b: &[Interval]) -> bool {
    let Some(rule) = &cx.facts.analysis.rules[op.index()] else { return false };
    let loops = &cx.facts.analysis.op(op).loops;
    loops.iter().zip(a.iter().zip(b)).all(|(l, (a, b))| a == b || !rule.dim(l.dim).contiguous)
}
