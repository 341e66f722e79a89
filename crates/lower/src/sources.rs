//! Which shards a region may be taken from, without going through all of them.

use std::collections::BTreeMap;

use program::RankId;
use rules::Region;

use crate::layout::Middle;

/// Shards that are asked for those which have some of a region.
pub struct Sources<'m> {
    middle: &'m [Middle],
    parts: BTreeMap<u32, ValuePart<'m>>,
    world: u32,
}

/// The shards of one part of the value.
#[derive(Default)]
struct ValuePart<'m> {
    /// The regions, with the shards that are copies of them, from the one on that begins first along a factor.
    copies: Vec<(&'m Region, Vec<usize>)>,
    /// The factor that has most beginnings, if there is any.
    factor: usize,
    /// Where a region or one before it ends at most along that factor.
    ends: Vec<i64>,
    /// What a rank itself has of a region.
    own: BTreeMap<(RankId, &'m Region), Vec<usize>>,
}

/// Who asks: a rank, what its place is among those that want the same, and how many these are.
pub type Asks = (RankId, (usize, usize));

impl<'m> Sources<'m> {
    pub fn new(middle: &'m [Middle], world: u32) -> Self {
        let mut copies: BTreeMap<u32, BTreeMap<&Region, Vec<usize>>> = BTreeMap::new();
        for (at, entry) in middle.iter().map(|it| &it.entry).enumerate() {
            copies.entry(entry.part).or_default().entry(&entry.region).or_default().push(at);
        }
        let part = |(part, copies)| (part, ValuePart::new(middle, copies));
        Self { middle, parts: copies.into_iter().map(part).collect(), world }
    }

    /// Sources of a part that touch a region: the rank's own first, then by their places among copies of the same
    /// region, then the nearest rank upwards. Of copies the first of these alone, which has all that others have.
    pub fn touching(&self, part: u32, asks: Asks, region: &Region) -> Vec<usize> {
        let Some(part) = self.parts.get(&part) else { return vec![] };
        let mut keys = vec![];
        for (other, copies) in part.near(region).filter(|(other, _)| touches(region, other)) {
            let places = part.first(copies, asks, other);
            let all = places.map(|place| self.key(copies, place, asks));
            // What has no elements is not all taken once the first has given it.
            if region.is_empty() {
                keys.extend((0..copies.len()).map(|place| self.key(copies, place, asks)));
            } else {
                keys.extend(all.min());
            }
        }
        keys.sort_unstable();
        keys.into_iter().map(|(_, _, _, at)| at).collect()
    }

    fn key(&self, copies: &[usize], place: usize, (rank, position): Asks) -> (bool, usize, u32, usize) {
        let other = self.middle[copies[place]].entry.rank;
        let apart = (place * position.1).abs_diff(position.0 * copies.len());
        (other != rank, apart, (other.0 + self.world - rank.0) % self.world, copies[place])
    }
}

impl<'m> ValuePart<'m> {
    fn new(middle: &'m [Middle], copies: BTreeMap<&'m Region, Vec<usize>>) -> Self {
        let factors = copies.keys().next().map_or(0, |region| region.0.len());
        let beginnings = |factor: usize| {
            let mut all: Vec<i64> = copies.keys().map(|region| region.0[factor].lo).collect();
            all.sort_unstable();
            all.dedup();
            all.len()
        };
        let factor = (0..factors).max_by_key(|factor| beginnings(*factor)).unwrap_or(0);
        let mut places: BTreeMap<(RankId, &Region), Vec<usize>> = BTreeMap::new();
        for (region, copies) in &copies {
            for (place, at) in copies.iter().enumerate() {
                places.entry((middle[*at].entry.rank, *region)).or_default().push(place);
            }
        }
        let mut copies: Vec<(&Region, Vec<usize>)> = copies.into_iter().collect();
        copies.sort_by_key(|(region, _)| region.0.get(factor).map(|it| it.lo));
        let mut ends = vec![];
        for (region, _) in &copies {
            let end = region.0.get(factor).map_or(0, |it| it.hi);
            ends.push(ends.last().map_or(end, |before: &i64| end.max(*before)));
        }
        Self { copies, factor, ends, own: places }
    }

    /// All that may touch a region.
    fn near(&self, region: &Region) -> impl Iterator<Item = (&'m Region, &[usize])> {
        let all = 0..self.copies.len();
        let range = match region.0.get(self.factor).filter(|it| !it.is_empty()) {
            Some(wanted) => {
                self.ends.partition_point(|end| *end <= wanted.lo)
                    ..self.copies.partition_point(|(other, _)| other.0[self.factor].lo < wanted.hi)
            }
            None => all,
        };
        let range = range.start..range.end.max(range.start);
        self.copies[range].iter().map(|(region, copies)| (*region, &copies[..]))
    }

    /// Places among copies of a region, one of which comes before all others.
    fn first(
        &self,
        copies: &[usize],
        (rank, (place, all)): Asks,
        region: &'m Region,
    ) -> impl Iterator<Item = usize> {
        let places = self.own.get(&(rank, region)).map_or(&[][..], |places| &places[..]);
        let near = place * copies.len() / all;
        let others = (near..copies.len().min(near + 2)).filter(move |_| places.is_empty());
        places.iter().copied().chain(others)
    }
}

/// Whether something of a region is in another one. What has no elements is taken from somewhere, too: an exchange
/// without sources would say of nothing whether it moves values or gradients.
pub fn touches(region: &Region, other: &Region) -> bool {
    region
        .0
        .iter()
        .zip(&other.0)
        .all(|(interval, other)| interval.is_empty() || !interval.meet(*other).is_empty())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rules::Interval;

    use super::*;
    use crate::layout::Entry;

    /// The same by going through all of them.
    fn plainly(middle: &[Middle], part: u32, (rank, place): Asks, region: &Region, world: u32) -> Vec<usize> {
        let gives = |it: &Middle| it.entry.part == part && touches(region, &it.entry.region);
        let mut sources: Vec<usize> = (0..middle.len()).filter(|at| gives(&middle[*at])).collect();
        let mut copies: BTreeMap<&Region, Vec<usize>> = BTreeMap::new();
        sources.iter().for_each(|at| copies.entry(&middle[*at].entry.region).or_default().push(*at));
        let apart = |at: usize| {
            let like = &copies[&middle[at].entry.region];
            let index = like.partition_point(|other| *other < at);
            (index * place.1).abs_diff(place.0 * like.len())
        };
        let distance = |at: usize| (middle[at].entry.rank.0 + world - rank.0) % world;
        sources.sort_by_cached_key(|at| (middle[*at].entry.rank != rank, apart(*at), distance(*at), *at));
        sources
    }

    fn region(factors: usize) -> impl Strategy<Value = Region> {
        let interval = (0i64..4, 0i64..4).prop_map(|(lo, len)| Interval { lo, hi: lo + len });
        prop::collection::vec(interval, factors).prop_map(|all| Region(all.into()))
    }

    fn shard(factors: usize) -> impl Strategy<Value = Middle> {
        (0u32..6, region(factors), 0u32..2).prop_map(|(rank, region, part)| Middle {
            entry: Entry { rank: RankId::new(rank as usize), region, part },
            from: vec![],
        })
    }

    proptest! {
        #[test]
        fn those_that_touch_are_found_in_their_order(
            (middle, wanted) in (0usize..3).prop_flat_map(|factors| {
                (prop::collection::vec(shard(factors), 0..12), region(factors))
            }),
            (rank, part) in (0u32..6, 0u32..2),
            place in (1usize..5).prop_flat_map(|all| (0..all, Just(all))),
        ) {
            let asks = (RankId::new(rank as usize), place);
            let mut all = plainly(&middle, part, asks, &wanted, 6);
            if !wanted.is_empty() {
                let mut seen = vec![];
                all.retain(|at| {
                    let region = &middle[*at].entry.region;
                    let is_new = !seen.contains(region);
                    seen.push(region.clone());
                    is_new
                });
            }
            prop_assert_eq!(Sources::new(&middle, 6).touching(part, asks, &wanted), all);
        }
    }
}
