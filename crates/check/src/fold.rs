//! Ranks along an axis of the devices that are alike but for where their parts lie: a few of them are followed,
//! and the others follow.
//!
//! Devices `r`, `r + stride`, `r + 2 stride`, ... run one code. What their tables say was compared: every
//! interval moves on by the same step from each to the next, every number is the same (but for [where slices lie](crate::shifted)), and groups lie across
//! the axis, alike for each of its positions, or along all of it. So a rank further on differs from one that is followed
//! only in where the intervals lie that the axis divides, and no rule asks where a loop's interval lies, but
//! for dims marked `~`, which must not be divided by the axis, and for the first one. Hence the ranks at
//! positions 0 to 3 are followed, and it is verified that at all of them the same operators were found, and
//! that every interval and every share moved on by one step from 1 to 2 as from 2 to 3.
//!
//! Where ranks along the axis are summed, those that are not followed are one summand: the terms of
//! neighbours whose cuts follow each other are one term, whose cut is all of theirs; and of terms that differ only in
//! what they are partial in, that is summed.
//!
//! Nothing is refused here: a program that is not seen to be right this way is followed rank by rank.

use graph::OpId;
use hashing::Map;
use program::GroupingId;
use rules::Interval;

use crate::axis::{FOLLOWED, Fold, moved};
use crate::fault::Fault;
use crate::held::{Held, LocalPart};
use crate::share::{ListId, ShareId, Store};
use crate::state::{Context, LeafState, Rank};
use crate::sum::sum;

impl Fold {
    /// For each line of a group along the axis, where among its members those at positions 1, 2 and 3 are.
    fn lines(&self, ranks: &[Rank<'_>], members: &[usize]) -> Vec<[usize; 3]> {
        let lines = self.axis.lines(members.iter().map(|member| ranks[*member].id));
        lines.into_iter().map(|line| [line[1], line[2], line[3]]).collect()
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
    let Some(fold) = cx.fold.as_ref().filter(|fold| fold.along[grouping.index()]) else { return held };
    let (size, lines) = (fold.axis.size, fold.lines(ranks, members));
    let given: Vec<[Held; 3]> = lines.into_iter().map(|line| line.map(|at| held[at])).collect();
    let alone: Option<Vec<Held>> = given.iter().map(|given| rest(cx, given, size)).collect();
    match alone.or_else(|| together(cx, &given).and_then(|given| Some(vec![rest(cx, &given, size)?]))) {
        Some(others) => held.extend(others),
        None => cx.give_up(),
    }
    held
}

/// What those of a line give that are not followed, given what three of it give.
fn rest(cx: &mut Context<'_>, given: &[Held; 3], size: u32) -> Option<Held> {
    if given.iter().any(|held| (held.of, held.region) != (given[0].of, given[0].region)) {
        return None;
    }
    let share = cx.store.rest(given.map(|held| held.share), size)?;
    Some(Held { share, ..given[0] })
}

/// What lines give in sum at each of three positions: where neighbours are of several lines, those of one line have
/// gaps between them.
fn together(cx: &mut Context<'_>, lines: &[[Held; 3]]) -> Option<[Held; 3]> {
    let first = lines[0][0];
    if lines.as_flattened().iter().any(|held| (held.of, held.region) != (first.of, first.region)) {
        return None;
    }
    let mut sum = |position: usize| {
        let shares: Vec<ShareId> = lines.iter().map(|line| line[position].share).collect();
        let share = cx.store.sum(cx.facts, first.of, first.region, &shares).ok()?;
        Some(Held { share: cx.store.neighbours_as_one(share), ..first })
    };
    Some([sum(0)?, sum(1)?, sum(2)?])
}

/// What members of a group hold of one thing, summed with what those have that are not followed.
pub(crate) fn summed(
    cx: &mut Context<'_>,
    ranks: &[Rank<'_>],
    group: GroupingId,
    members: &[usize],
    held: Vec<Held>,
) -> Result<ShareId, Fault> {
    let first = held[0];
    let all = others_too(cx, ranks, group, members, held);
    let shares: Vec<ShareId> = all.iter().map(|held| held.share).collect();
    sum(cx, first.of, first.region, &shares)
}

/// Of what else is communicated along the axis, those that are not followed have a part too.
pub(crate) fn only_these(cx: &mut Context<'_>, grouping: GroupingId) {
    if cx.fold.as_ref().is_some_and(|fold| fold.along[grouping.index()]) {
        cx.give_up();
    }
}

impl Context<'_> {
    /// There is something that some ranks cannot stand for others in.
    pub(crate) fn give_up(&mut self) {
        if let Some(fold) = self.fold.as_mut() {
            fold.gave_up = true;
        }
    }
}

impl Store {
    /// The share that shares at positions from [`FOLLOWED`] on are together, given those at 1, 2 and 3.
    fn rest(&mut self, shares: [ShareId; 3], size: u32) -> Option<ShareId> {
        self.combine(shares, false, &mut |cuts| {
            let [a, b, c] = cuts;
            let (mut changed, mut cut) = (0, vec![]);
            for ((a, b), c) in a.iter().zip(b).zip(c) {
                if a == b && b == c {
                    cut.push(*a);
                    continue;
                }
                let len = a.len();
                if [*b, *c] != [1, 2].map(|times| moved(*a, len, times)) {
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
        self.combine(shares, true, &mut |[a, b, c]| steps(a, b, c).then(|| a.to_vec())).is_some()
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
    let mut known = KnownComparisons::default();
    axis.lines(ranks.iter().map(|rank| rank.id)).into_iter().all(|line| {
        let line: [&Rank<'_>; FOLLOWED as usize] =
            [&ranks[line[0]], &ranks[line[1]], &ranks[line[2]], &ranks[line[3]]];
        line.iter().all(|rank| rank.role == line[0].role)
            && known.bufs(cx, line)
            && known.parts(cx, line)
            && known.leaves(cx, line)
            && known.shards(cx, line)
    })
}

/// Comparisons that were made before.
#[derive(Default)]
struct KnownComparisons {
    regions: Map<[ListId; 4], bool>,
    shares: Map<[ShareId; 3], bool>,
}

type FoldedLine<'r, 'a> = [&'r Rank<'a>; FOLLOWED as usize];

impl KnownComparisons {
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

    fn bufs(&mut self, cx: &mut Context<'_>, line: FoldedLine<'_, '_>) -> bool {
        (0..line[0].bufs.len()).all(|buf| match line.map(|rank| rank.bufs[buf]) {
            [None, None, None, None] => true,
            [Some(z), Some(a), Some(b), Some(c)] => {
                // Where regions move on, what lies somewhere in them does so too, or not at all.
                let lies = |held: &Held| z.region == a.region || cx.store.is_everywhere(held.share);
                [z, a, b, c].iter().all(lies)
                    && [a, b, c].iter().all(|held| held.of == z.of)
                    && self.regions(cx, [z.region, a.region, b.region, c.region])
                    && self.shares(cx, [a.share, b.share, c.share])
            }
            _ => false,
        })
    }

    fn parts(&mut self, cx: &Context<'_>, line: FoldedLine<'_, '_>) -> bool {
        (0..line[0].parts.len()).all(|number| match line.map(|rank| rank.parts[number]) {
            [Some(z), Some(a), Some(b), Some(c)] => {
                let like = |other: &LocalPart| {
                    (other.op, other.binding, other.clause) == (z.op, z.binding, z.clause)
                };
                [a, b, c].iter().all(like)
                    && self.regions(cx, [z.at, a.at, b.at, c.at])
                    && (z.at == a.at || free_to_move(cx, z.op, cx.store.region(z.at), cx.store.region(a.at)))
            }
            _ => false,
        })
    }

    fn shards(&mut self, cx: &mut Context<'_>, line: FoldedLine<'_, '_>) -> bool {
        (0..line[0].shards.len()).all(|shard| {
            let [_, a, b, c] = line.map(|rank| rank.shards[shard]);
            self.shares(cx, [a, b, c])
        })
    }

    fn leaves(&mut self, cx: &mut Context<'_>, line: FoldedLine<'_, '_>) -> bool {
        (0..line[0].leaves.len()).all(|leaf| {
            let [z, a, b, c] = line.map(|rank| rank.leaves[leaf]);
            let like = |s: &LeafState| {
                (s.shard, s.tensor, s.sealed, s.exchanged) == (z.shard, z.tensor, z.sealed, z.exchanged)
            };
            [a, b, c].iter().all(like)
                && self.regions(cx, [z.region, a.region, b.region, c.region])
                && self.shares(cx, [a.gradient, b.gradient, c.gradient])
        })
    }
}

/// Whether no loop moves of which the operator's rule asks where its interval lies.
fn free_to_move(cx: &Context<'_>, op: OpId, a: &[Interval], b: &[Interval]) -> bool {
    let Some(rule) = &cx.facts.analysis.rules[op.index()] else { return false };
    let loops = &cx.facts.analysis.op(op).loops;
    loops.iter().zip(a.iter().zip(b)).all(|(l, (a, b))| a == b || !rule.dim(l.dim).contiguous)
}
