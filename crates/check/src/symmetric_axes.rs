//! The axes along which ranks are symmetric: whatever is in the program's tables moves on along them by the same step.

use std::collections::HashSet;

use program::{Exchange, Grouping, PerRank, Piece, Program, RankId, Role};
use rules::Region;

use crate::axis::{FOLLOWED, Folding, Lines, RankAxis, along, is_moved};
use crate::shifted;

/// The axes along which the ranks of a program are alike, of those that may be folded: the longest first.
pub(crate) fn all<'p>(program: &'p Program, folding: Folding<'p>) -> impl Iterator<Item = RankAxis> + 'p {
    // Ranks may be alike along a part of what communicates, too: those that are so many steps from each other.
    let parts = |axis: RankAxis| {
        let divides = move |by: &u32| axis.size % by == 0;
        (1..=axis.size)
            .filter(divides)
            .map(move |by| RankAxis { size: axis.size / by, stride: axis.stride * by })
    };
    let mut axes: Vec<RankAxis> = program.groupings.iter().filter_map(step).flat_map(parts).collect();
    axes.sort_by_key(|axis| std::cmp::Reverse((axis.size, axis.stride)));
    axes.dedup();
    axes.retain(|axis| axis.size >= folding.least.max(FOLLOWED + 1));
    axes.into_iter().filter(move |axis| symmetric(program, *axis) && (folding.may)(*axis))
}

/// The axis along which a grouping's groups lie, if it is one.
fn step(grouping: &Grouping) -> Option<RankAxis> {
    let group = grouping.first()?;
    let stride = group.get(1)?.0.checked_sub(group[0].0).filter(|stride| *stride > 0)?;
    let even = group.windows(2).all(|two| two[1].0.checked_sub(two[0].0) == Some(stride));
    even.then_some(RankAxis { size: u32::try_from(group.len()).ok()?, stride })
}

fn symmetric(program: &Program, axis: RankAxis) -> bool {
    let (mut seen, mut seen_lists) = (HashSet::new(), HashSet::new());
    let is_symmetric = |role: &Role| {
        // Of a line of which the ranks are too few no role has all.
        let Some(lines) = Lines::new(role, axis) else { return false };
        let mut fresh = |per_rank: &PerRank<Region>| match per_rank {
            PerRank::Same(_) => false,
            PerRank::Each(regions) => seen.insert((regions.as_ptr(), role.ranks[0])),
        };
        let mut regions = role.table.regions().filter(|per_rank| fresh(per_rank));
        shifted::numbers(role, &lines) && regions.all(|per_rank| lines.moves_on(per_rank))
    };
    program.roles.iter().all(is_symmetric)
        && program.groupings.iter().all(|grouping| across(grouping, axis) || along(grouping, axis))
        && program
            .exchanges
            .iter()
            .all(|exchange| !seen_lists.insert(exchange.lists_id()) || stays(exchange, axis))
}

/// The part of an exchange that is at one position: ends and pieces, which name the ends of this part.
#[derive(Default)]
struct Section<'e> {
    sources: Vec<&'e (RankId, Region)>,
    targets: Vec<&'e (RankId, Region)>,
    pieces: Vec<Piece>,
}

/// The sections at all positions; `None` if a piece goes from one to another.
fn sections(exchange: &Exchange, axis: RankAxis) -> Option<Vec<Section<'_>>> {
    let mut sections: Vec<Section<'_>> = (0..axis.size).map(|_| Section::default()).collect();
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
        sections[*position as usize].sources.push(end);
    }
    for (end, (position, _)) in exchange.targets.iter().zip(&to) {
        sections[*position as usize].targets.push(end);
    }
    for piece in exchange.pieces.iter() {
        let ((position, from), (other, to)) = (*from.get(piece.from)?, *to.get(piece.to)?);
        if position != other {
            return None;
        }
        sections[position as usize].pieces.push(Piece { from, to, region: piece.region.clone() });
    }
    Some(sections)
}

/// Whether an exchange does the same at every position, a step further on.
fn stays(exchange: &Exchange, axis: RankAxis) -> bool {
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

/// Whether all groups are at one position each, and the same at every position.
fn across(grouping: &Grouping, axis: RankAxis) -> bool {
    let all: HashSet<&Vec<RankId>> = grouping.iter().collect();
    grouping.iter().all(|group| {
        let Some(position) = group.first().map(|rank| axis.position(*rank)) else { return false };
        let next = (position + 1) % axis.size;
        let beside: Vec<RankId> = group.iter().map(|rank| axis.at(*rank, next)).collect();
        group.iter().all(|rank| axis.position(*rank) == position) && all.contains(&beside)
    })
}
