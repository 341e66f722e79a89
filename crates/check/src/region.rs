//! Regions of tensors, in which intervals may lie anywhere: compared, joined and written.

use rules::{Interval, Region};

/// Where an interval begins that may lie anywhere: the value is the same all along the factor, as
/// that of an expanded tensor is.
const ANYWHERE: i64 = i64::MIN / 4;

/// `len` elements of a factor, no matter which.
pub(crate) fn any(len: i64, size: i64) -> Interval {
    if len == size { Interval::whole(size) } else { Interval { lo: ANYWHERE, hi: ANYWHERE + len } }
}

pub(crate) fn is_any(i: Interval) -> bool {
    i.lo == ANYWHERE
}

/// One interval for both, if there is one.
pub(crate) fn unify(a: Interval, b: Interval) -> Option<Interval> {
    match (a, b) {
        _ if a == b => Some(a),
        _ if is_any(a) && a.len() == b.len() => Some(b),
        _ if is_any(b) && a.len() == b.len() => Some(a),
        _ => None,
    }
}

pub(crate) fn unify_all(a: &[Interval], b: &[Interval]) -> Option<Vec<Interval>> {
    (a.len() == b.len()).then(|| a.iter().zip(b).map(|(a, b)| unify(*a, *b)).collect())?
}

/// Whether a region of the tables is one of its tensor.
pub(crate) fn fits(region: &Region, factors: &[i64]) -> bool {
    let inside = |(i, &size): (&Interval, &i64)| 0 <= i.lo && i.lo <= i.hi && i.hi <= size;
    region.0.len() == factors.len() && region.0.iter().zip(factors).all(inside)
}

/// `[0..4, :]`: a region, dim by dim.
pub(crate) fn region_text(factors: &[Vec<i64>], region: &[Interval]) -> String {
    let mut rest = region.iter();
    let factor = |(&size, i): (&i64, &Interval)| match *i {
        i if is_any(i) => format!("{} of {size}", i.len()),
        i if i == Interval::whole(size) => ":".into(),
        i => format!("{}..{}", i.lo, i.hi),
    };
    let dim = |sizes: &Vec<i64>| {
        let all: Vec<String> = sizes.iter().zip(rest.by_ref()).map(factor).collect();
        match all.len() {
            0 => ":".into(),
            1 => all[0].clone(),
            _ => format!("({})", all.join(", ")),
        }
    };
    format!("[{}]", factors.iter().map(dim).collect::<Vec<String>>().join(", "))
}

pub(crate) fn numel(region: &[Interval]) -> u64 {
    region.iter().map(|interval| interval.len().unsigned_abs()).product()
}

#[cfg(test)]
mod tests {
    use super::{Interval, Region, any, fits, unify, unify_all};

    fn at(lo: i64, hi: i64) -> Interval {
        Interval { lo, hi }
    }

    #[test]
    fn what_may_lie_anywhere_lies_where_as_much_of_the_other_does() {
        assert_eq!(unify(any(2, 4), at(1, 3)), Some(at(1, 3)));
        assert_eq!(unify(at(1, 3), any(2, 4)), Some(at(1, 3)));
        for other in [at(0, 3), any(3, 4), at(0, 1)] {
            assert_eq!((unify(any(2, 4), other), unify(other, any(2, 4))), (None, None));
        }
        assert_eq!(unify_all(&[at(0, 1)], &[]), None);
        assert_eq!(unify_all(&[], &[at(0, 1)]), None);
    }

    #[test]
    fn intervals_of_a_region_end_after_they_begin() {
        let fits = |lo: i64, hi: i64| fits(&Region([at(lo, hi)].into()), &[4]);
        assert!(fits(0, 4) && fits(2, 2) && fits(4, 4));
        assert!(!fits(3, 1) && !fits(-1, 1) && !fits(0, 5));
    }
}
