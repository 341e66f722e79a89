//! Where intervals that may lie anywhere lie, so that they fill what others leave of a space.

use rules::Interval;

use crate::region::is_any;

/// How many places are tried: of what was divided evenly, the first that fit do.
const TRIES: usize = 1 << 16;

/// Gives every part that may lie anywhere a place: those that are alike but for their length where together they fill
/// what others leave, else each where it meets the fewest others. What is summed there is the same everywhere, so
/// each choice is right; a bad one only fails to cover the space.
pub(crate) fn normalise(boxes: &mut [Vec<Interval>], space: &[Interval]) {
    for d in 0..space.len() {
        while let Some(first) = boxes.iter().position(|b| is_any(b[d])) {
            let symmetric = |b: &Vec<Interval>| {
                is_any(b[d]) && (0..b.len()).all(|at| at == d || b[at] == boxes[first][at])
            };
            let mut open: Vec<usize> = (0..boxes.len()).filter(|&index| symmetric(&boxes[index])).collect();
            open.sort_by_key(|&index| std::cmp::Reverse(boxes[index][d].len()));
            let lens: Vec<i64> = open.iter().map(|&index| boxes[index][d].len()).collect();
            let beside = |b: &&Vec<Interval>| !is_any(b[d]) && beside(&boxes[first], b, d);
            let others: Vec<Interval> = boxes.iter().filter(beside).map(|b| b[d]).collect();
            match places(space[d], &others, &lens) {
                Some(places) => open.iter().zip(places).for_each(|(&index, place)| boxes[index][d] = place),
                None => boxes[open[0]][d] = free(lens[0], space[d], &others),
            }
        }
    }
}

/// Whether two boxes may meet but for one loop.
fn beside(a: &[Interval], b: &[Interval], except: usize) -> bool {
    let meet = |a: Interval, b: Interval| is_any(a) || is_any(b) || !a.meet(b).is_empty();
    a.iter().zip(b).enumerate().all(|(d, (a, b))| d == except || meet(*a, *b))
}

/// Where in a loop so many elements meet the fewest of these intervals.
fn free(len: i64, space: Interval, others: &[Interval]) -> Interval {
    let starts = std::iter::once(space.lo).chain(others.iter().map(|i| i.hi));
    let places = starts.map(|lo| Interval { lo, hi: lo + len }).filter(|i| i.hi <= space.hi);
    let meets = |i: &Interval| others.iter().filter(|other| !other.meet(*i).is_empty()).count();
    places.min_by_key(|i| (meets(i), i.lo)).unwrap_or(Interval { lo: space.lo, hi: space.lo + len })
}

/// A place for each of these lengths, which are in falling order, so that nothing meets and none but the rest of the
/// space stays empty; `None` if there is no such way, or it is not found soon.
pub(crate) fn places(space: Interval, others: &[Interval], lens: &[i64]) -> Option<Vec<Interval>> {
    let mut taken: Vec<Interval> = others.iter().copied().filter(|i| !i.is_empty()).collect();
    taken.sort_unstable_by_key(|i| i.lo);
    let kinds = lens.chunk_by(|a, b| a == b).map(|symmetric| (symmetric[0], symmetric.len())).collect();
    let mut fill = Fill { space, taken, kinds, chosen: vec![], tries: 0 };
    let placed = fill.run()?;
    // Those of one length are in rising order, the lengths in that of `lens`.
    let with_len = |len: i64| placed.iter().copied().filter(move |i| i.len() == len);
    Some(lens.chunk_by(|a, b| a == b).flat_map(|symmetric| with_len(symmetric[0])).collect())
}

/// A search from the start of the space to its end, back where nothing fits.
struct Fill {
    space: Interval,
    taken: Vec<Interval>,
    /// Each length, and how many of it are left.
    kinds: Vec<(i64, usize)>,
    /// The place of each choice, and which length it was.
    chosen: Vec<(Interval, usize)>,
    tries: usize,
}

impl Fill {
    fn run(&mut self) -> Option<Vec<Interval>> {
        let (mut at, mut from) = (self.space.lo, 0);
        while self.kinds.iter().any(|(_, left)| *left > 0) {
            self.tries += 1;
            if self.tries > TRIES {
                return None;
            }
            let (start, end) = self.gap(at);
            let fits = |&kind: &usize| self.kinds[kind].1 > 0 && start + self.kinds[kind].0 <= end;
            if let Some(kind) = (from..self.kinds.len()).find(fits) {
                self.kinds[kind].1 -= 1;
                let place = Interval { lo: start, hi: start + self.kinds[kind].0 };
                self.chosen.push((place, kind));
                (at, from) = (place.hi, 0);
            } else {
                let (place, kind) = self.chosen.pop()?;
                self.kinds[kind].1 += 1;
                (at, from) = (place.lo, kind + 1);
            }
        }
        Some(self.chosen.iter().map(|(place, _)| *place).collect())
    }

    /// The first place from here on that nothing has taken, and where it ends.
    fn gap(&self, at: i64) -> (i64, i64) {
        let mut start = at;
        for other in &self.taken[self.taken.partition_point(|i| i.hi <= at)..] {
            if other.lo > start {
                return (start, other.lo);
            }
            start = start.max(other.hi);
        }
        (start, self.space.hi)
    }
}

#[cfg(test)]
mod tests {
    use super::{Interval, normalise, places};
    use crate::region::any;

    fn at(lo: i64, hi: i64) -> Interval {
        Interval { lo, hi }
    }

    #[test]
    fn what_may_lie_anywhere_fills_what_others_leave() {
        let space = at(0, 4);
        assert_eq!(places(space, &[at(2, 3)], &[2, 1]), Some(vec![at(0, 2), at(3, 4)]));
        assert_eq!(places(space, &[], &[2, 1]), Some(vec![at(0, 2), at(2, 3)]));
        assert_eq!(places(space, &[at(1, 2)], &[2, 1]), Some(vec![at(2, 4), at(0, 1)]));
        assert_eq!(places(space, &[at(1, 3)], &[2]), None);
        assert_eq!(places(space, &[at(0, 4)], &[]), Some(vec![]));
        assert_eq!(places(space, &[at(0, 4)], &[0]), Some(vec![at(4, 4)]));
    }

    #[test]
    fn a_first_choice_that_leaves_a_hole_is_taken_back() {
        // Gaps of 4 and of 6: the longer ones go where they leave none.
        let placed = places(at(0, 11), &[at(4, 5)], &[3, 3, 2, 2]);
        assert_eq!(placed, Some(vec![at(5, 8), at(8, 11), at(0, 2), at(2, 4)]));
    }

    #[test]
    fn gaps_are_those_of_parts_in_any_order_that_have_elements() {
        let space = at(0, 4);
        assert_eq!(places(space, &[at(2, 3), at(0, 1)], &[1, 1]), Some(vec![at(1, 2), at(3, 4)]));
        assert_eq!(places(space, &[at(2, 2)], &[3, 1]), Some(vec![at(0, 3), at(3, 4)]));
    }

    /// Where parts lie that may lie anywhere in a space of so many elements.
    fn placed(sizes: &[i64], boxes: &[&[Interval]]) -> Vec<Vec<Interval>> {
        let mut boxes: Vec<Vec<Interval>> = boxes.iter().map(|b| b.to_vec()).collect();
        let space: Vec<Interval> = sizes.iter().map(|size| at(0, *size)).collect();
        normalise(&mut boxes, &space);
        boxes
    }

    #[test]
    fn parts_find_their_places_by_those_that_they_meet() {
        let (first, second) = (at(0, 2), at(2, 4));
        let part = |len: i64| any(len, 4);
        let made =
            placed(&[4, 4], &[&[first, part(3)], &[first, part(1)], &[second, part(2)], &[second, part(2)]]);
        let expected = [[first, at(0, 3)], [first, at(3, 4)], [second, at(0, 2)], [second, at(2, 4)]];
        assert_eq!(made, expected);
        let made = placed(&[4, 4], &[&[first, at(0, 1)], &[first, part(3)]]);
        assert_eq!(made, [[first, at(0, 1)], [first, at(1, 4)]]);
        // In the order of their lengths, where they are alike but for these.
        let made = placed(&[4], &[&[part(1)], &[part(2)], &[part(1)]]);
        assert_eq!(made, [[at(2, 3)], [at(0, 2)], [at(3, 4)]]);
        // The others leave room for all of them, if the longer ones are first.
        let made = placed(&[4], &[&[at(2, 3)], &[part(1)], &[part(2)]]);
        assert_eq!(made, [[at(2, 3)], [at(3, 4)], [at(0, 2)]]);
    }

    /// Along another loop either of two parts may lie anywhere, too.
    #[test]
    fn parts_that_may_lie_anywhere_may_meet() {
        let made = placed(&[4, 8], &[&[at(0, 2), at(0, 4)], &[any(2, 4), any(4, 8)]]);
        assert_eq!(made, [[at(0, 2), at(0, 4)], [at(2, 4), at(0, 4)]]);
        let made = placed(&[4, 8], &[&[at(0, 2), any(4, 8)], &[any(2, 4), at(0, 4)]]);
        assert_eq!(made, [[at(0, 2), at(0, 4)], [at(2, 4), at(0, 4)]]);
    }

    #[test]
    fn parts_that_are_too_many_meet_the_fewest_others() {
        let part = |len: i64| any(len, 4);
        let made = placed(&[4], &[&[part(2)], &[part(2)], &[part(2)]]);
        assert_eq!(made, [[at(0, 2)], [at(2, 4)], [at(0, 2)]]);
        // In the space, whether or not there is room beyond it.
        assert_eq!(placed(&[4], &[&[part(3)], &[part(2)]]), [[at(0, 3)], [at(0, 2)]]);
    }

    #[test]
    fn a_search_without_a_way_ends() {
        let odd: Vec<i64> = std::iter::repeat_n(2, 200).collect();
        assert_eq!(places(at(0, 399), &[], &odd), None);
    }
}
