//! Shares as lists of terms, without a program.

use graph::OpId;
use rules::{Interval, Reduction};

use super::{Combine, EMPTY, FULL, ListId, Mode, Owner, ShareId, Store, Term, one_box};
use crate::region::any;

fn at(lo: i64, hi: i64) -> Interval {
    Interval { lo, hi }
}

/// Lists and shares by what they are, each numbered when it is first asked for.
struct Numbers(Store);

impl Numbers {
    fn new() -> Self {
        Self(Store::new())
    }

    fn list(&mut self, list: &[Interval]) -> ListId {
        self.0.intervals.number(list)
    }

    /// A part of what an operator makes.
    fn part(&mut self, op: usize, cut: &[Interval]) -> ShareId {
        let term = self.term(op, cut);
        self.0.share(term)
    }

    fn term(&mut self, op: usize, cut: &[Interval]) -> Term {
        let (owner, cut) = (Owner::LocalPart(OpId::new(op)), self.list(cut));
        Term { owner, cut, mode: Mode::Plain, subs: 0, once: false, kind: Reduction::Sum }
    }

    /// The same of an operator that is applied to a share.
    fn passed(&mut self, op: usize, cut: &[Interval], share: ShareId) -> ShareId {
        let (term, subs) = (self.term(op, cut), self.0.list(&[share]));
        self.0.share(Term { mode: Mode::Clause(0), subs, ..term })
    }

    /// A share that holds in some rows of others.
    fn rows(&mut self, share: ShareId, rows: Interval, all: Interval) -> ShareId {
        let (from, to) = (self.list(&[rows]), self.list(&[all]));
        self.0.placed(share, from, to)
    }

    fn both(&mut self, one: ShareId, two: ShareId) -> ShareId {
        self.0.union(&[one, two])
    }

    fn combine(&mut self, shares: [ShareId; 3], both: bool, cut: Combine<'_>) -> Option<ShareId> {
        self.0.combine(shares, both, cut)
    }

    fn joined_up(&mut self, share: ShareId, rows: Interval) -> ShareId {
        let region = self.list(&[rows]);
        self.0.joined_up(region, share)
    }

    fn within(&mut self, share: ShareId, rows: Interval) -> ShareId {
        let region = self.list(&[rows]);
        self.0.within(share, region)
    }
}

fn first(cuts: [&[Interval]; 3]) -> Option<Vec<Interval>> {
    Some(cuts[0].to_vec())
}

#[test]
fn what_is_the_same_has_one_number() {
    let mut made = Numbers::new();
    let (a, b) = (made.part(0, &[at(0, 1)]), made.part(0, &[at(1, 2)]));
    assert_eq!(made.part(0, &[at(0, 1)]), a);
    assert_ne!(a, b);
    assert_eq!(made.both(a, b), made.both(b, a));
    let (nothing, something) = (made.0.list(&[EMPTY, EMPTY]), made.0.list(&[EMPTY, a]));
    assert!(made.0.are_nothing(nothing));
    assert!(!made.0.are_nothing(something));
}

#[test]
fn a_share_is_put_into_a_larger_region() {
    let mut made = Numbers::new();
    let (a, b) = (made.part(0, &[at(0, 1)]), made.part(0, &[at(1, 2)]));
    let (whole, larger) = (made.list(&[at(0, 4)]), made.list(&[at(0, 8)]));
    let void = made.list(&[at(2, 2)]);
    assert_eq!(made.0.placed(a, whole, whole), a);
    assert_eq!(made.0.placed(a, void, whole), EMPTY);
    let top = made.rows(b, at(0, 2), at(0, 4));
    assert_ne!(top, b);
    assert!(!made.0.is_everywhere(top));
    let (mixed, there) = (made.both(a, top), made.rows(a, at(0, 4), at(0, 8)));
    let wanted = made.both(there, top);
    assert_eq!(made.0.placed(mixed, whole, larger), wanted);
}

#[test]
fn of_a_share_that_lies_in_some_rows_others_have_less() {
    let mut made = Numbers::new();
    let (a, b) = (made.part(0, &[at(0, 1)]), made.part(0, &[at(1, 2)]));
    let top = made.rows(b, at(0, 2), at(0, 4));
    let (mixed, both) = (made.both(a, top), made.both(a, b));
    assert_eq!(made.within(mixed, at(0, 2)), both);
    assert_eq!(made.within(mixed, at(0, 1)), both);
    assert_eq!(made.within(mixed, at(2, 4)), a);
    let one = made.rows(b, at(1, 2), at(1, 3));
    let wanted = made.both(a, one);
    assert_eq!(made.within(mixed, at(1, 3)), wanted);
    assert!(!made.0.is_everywhere(wanted));
}

#[test]
fn what_holds_in_all_rows_holds_everywhere() {
    let (mut made, all) = (Numbers::new(), at(0, 4));
    let (a, b) = (made.part(0, &[at(0, 1)]), made.part(0, &[at(1, 2)]));
    let both = made.both(a, b);
    let mut two = |share: ShareId| [at(0, 2), at(2, 4)].map(|rows| made.rows(share, rows, all));
    let ([top, low], [top_b, low_b]) = (two(a), two(b));
    let joined = made.both(top, low);
    assert_eq!(made.joined_up(joined, all), a);
    assert_eq!(made.joined_up(top, all), top);
    let joined_b = made.both(top_b, low_b);
    let four = made.both(joined, joined_b);
    assert_eq!(made.joined_up(four, all), both);
    let added = made.both(joined, b);
    assert_eq!(made.joined_up(added, all), both);
    // One of several equal parts may be there twice.
    let (third, twice) = (made.both(joined, a), made.both(a, a));
    assert_eq!(made.joined_up(third, all), twice);
    assert_ne!(twice, a);
    // Twice in one half, and not at all in the other.
    let double = made.both(top, top);
    assert_eq!(made.joined_up(double, all), double);
}

#[test]
fn shares_are_combined_that_differ_in_cuts_only() {
    let mut made = Numbers::new();
    let [a, b, c] = [0, 1, 2].map(|lo| made.part(0, &[at(lo, lo + 1)]));
    let other = made.part(1, &[at(0, 1)]);
    for both in [false, true] {
        assert_eq!(made.combine([a, b, c], both, &mut first), Some(a));
        assert_eq!(made.combine([a, a, a], both, &mut |_| None), Some(a));
        for differ in [[a, b, b], [a, a, b], [a, b, a], [a, b, c]] {
            assert_eq!(made.combine(differ, both, &mut |_| None), None);
        }
        for differ in [[a, other, a], [a, a, other], [a, other, other]] {
            assert_eq!(made.combine(differ, both, &mut first), None);
        }
        let two = made.both(a, b);
        for longer in [[a, two, a], [a, a, two], [a, two, two]] {
            assert_eq!(made.combine(longer, both, &mut first), None);
        }
    }
    let [x, y, z] = [a, b, c].map(|share| made.passed(2, &[at(0, 1)], share));
    assert_eq!(made.combine([x, y, z], true, &mut first), Some(x));
    for differ in [[x, y, y], [x, x, y], [x, y, x]] {
        assert_eq!(made.combine(differ, true, &mut |_| None), None);
    }
}

#[test]
fn what_lies_in_some_rows_is_combined_with_itself_only() {
    let (mut made, all) = (Numbers::new(), at(0, 4));
    let shares = [0, 1, 2].map(|lo| made.part(0, &[at(lo, lo + 1)]));
    let [a, b, c] = shares.map(|share| made.rows(share, at(0, 2), all));
    assert_eq!(made.combine([a, a, a], false, &mut |_| None), Some(a));
    assert_eq!(made.combine([a, b, c], true, &mut first), None);
}

/// Numbers of terms say nothing: they are in the order in which ranks were followed.
#[test]
fn terms_are_combined_with_those_of_the_same_operator() {
    let mut made = Numbers::new();
    let mut cut = |op: usize, lo: i64| made.part(op, &[at(lo, lo + 1)]);
    let (p, q) = (cut(5, 0), cut(6, 0));
    let (q1, p1) = (cut(6, 1), cut(5, 1));
    let (p2, q2) = (cut(5, 2), cut(6, 2));
    let all = [(p, q), (p1, q1), (p2, q2)].map(|(p, q)| made.both(p, q));
    assert_eq!(made.combine(all, true, &mut first), Some(all[0]));
    let mut cut = |op: usize, lo: i64| made.part(op, &[at(lo, lo + 1)]);
    let all = [0, 1, 2].map(|lo| (cut(8, lo), cut(7, lo)));
    let all = all.map(|(r, s)| made.both(r, s));
    assert_eq!(made.combine(all, true, &mut first), Some(all[0]));
}

/// What may lie anywhere, and is the same in all three, would stand for its neighbour.
#[test]
fn what_may_lie_anywhere_stands_for_no_other() {
    let mut made = Numbers::new();
    let open = made.part(0, &[any(1, 4)]);
    let inside = made.passed(1, &[], open);
    for share in [open, inside] {
        assert_eq!(made.combine([share; 3], false, &mut first), None);
        assert_eq!(made.combine([share; 3], true, &mut first), Some(share));
    }
    let moving = [0, 1, 2].map(|lo| made.part(2, &[at(lo, lo + 1)]));
    let with_open = moving.map(|share| made.both(open, share));
    assert_eq!(made.combine(with_open, false, &mut first), None);
    assert_eq!(made.combine(with_open, true, &mut first), Some(with_open[0]));
    let closed = made.part(3, &[at(0, 1)]);
    let with_closed = moving.map(|share| made.both(closed, share));
    assert_eq!(made.combine(with_closed, false, &mut first), Some(with_closed[0]));
}

/// It lies elsewhere where something else of it moves on.
#[test]
fn what_may_lie_anywhere_moves_on_with_the_rest() {
    let mut made = Numbers::new();
    let moving = [0, 1, 2].map(|lo| made.part(0, &[any(1, 4), at(lo, lo + 1)]));
    assert_eq!(made.combine(moving, false, &mut first), Some(moving[0]));
    let shares = [0, 1, 2].map(|lo| made.part(1, &[at(lo, lo + 1)]));
    let of_moving = shares.map(|share| made.passed(2, &[any(1, 4)], share));
    assert_eq!(made.combine(of_moving, false, &mut first), Some(of_moving[0]));
    let open = made.part(3, &[any(1, 4)]);
    let of_open = [0, 1, 2].map(|lo| made.passed(4, &[at(lo, lo + 1)], open));
    assert_eq!(made.combine(of_open, false, &mut first), Some(of_open[0]));
}

#[test]
fn neighbours_of_one_operator_are_one() {
    let mut made = Numbers::new();
    let mut cut = |op: usize, lo: i64, hi: i64| made.part(op, &[at(lo, hi)]);
    let (last, one, two) = (cut(0, 2, 3), cut(0, 0, 1), cut(0, 1, 2));
    let (other, before, all) = (cut(1, 1, 2), cut(3, 0, 1), cut(0, 0, 3));
    let three = made.0.union(&[last, one, two]);
    assert_eq!(made.0.neighbours_as_one(three), all);
    let later = made.part(2, &[at(4, 5)]);
    for apart in [[one, last], [one, other], [before, later]] {
        let share = made.0.union(&apart);
        assert_eq!(made.0.neighbours_as_one(share), share);
    }
    let (top, low) = (made.rows(one, at(0, 2), at(0, 4)), made.rows(two, at(2, 4), at(0, 4)));
    let share = made.both(top, low);
    assert_eq!(made.0.neighbours_as_one(share), share);
}

#[test]
fn boxes_that_follow_each_other_are_one() {
    let (a, b, c) = (at(0, 1), at(1, 2), at(2, 3));
    assert_eq!(one_box(&[a, c], &[b, c]), Some(vec![at(0, 2), c]));
    assert_eq!(one_box(&[a, c], &[c, c]), None);
    assert_eq!(one_box(&[a, b], &[b, c]), None);
    assert_eq!(one_box(&[a], &[b, c]), None);
    assert_eq!(one_box(&[], &[b]), None);
}

#[test]
fn a_share_of_several_kinds_has_none() {
    let mut made = Numbers::new();
    let sum = made.part(0, &[at(0, 1)]);
    let term = made.term(0, &[at(1, 2)]);
    let largest = made.0.share(Term { kind: Reduction::Max, ..term });
    assert_eq!(made.0.kind(sum), Some(Reduction::Sum));
    assert_eq!(made.0.kind(largest), Some(Reduction::Max));
    assert_eq!(made.0.kind(EMPTY), Some(Reduction::Sum));
    let (both, whole) = (made.both(sum, largest), made.list(&[]));
    assert_eq!(made.0.kind(both), None);
    assert_eq!(whole, FULL);
}
