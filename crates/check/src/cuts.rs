//! Where instructions cut and join local tensors, told in the factors of the logical tensor.
//!
//! Instructions name factors of the *local* tensor. These may be coarser than those of the logical
//! tensor (`x[:, 4:8]`), so a cut is located by its stride.

use program::{Arg, Cut};
use rules::Interval;

use crate::region::{any, is_any, unify};
use crate::state::Rank;

/// The local extents of a region's factors, dim by dim.
pub(crate) fn lengths(factors: &[Vec<i64>], region: &[Interval]) -> Vec<Vec<i64>> {
    let mut rest = region.iter();
    factors.iter().map(|dim| rest.by_ref().take(dim.len()).map(|i| i.len()).collect()).collect()
}

/// Extents as the program gives them, holes filled; none if they are those of no tensor.
pub(crate) fn extents(rank: &Rank<'_>, extents: &[Vec<Arg>]) -> Option<Vec<Vec<i64>>> {
    let dim = |dim: &Vec<Arg>| dim.iter().map(|arg| rank.integer(arg)).collect::<Option<Vec<i64>>>();
    extents.iter().map(|factors| dim(factors).filter(|lens| is_counted(lens))).collect()
}

/// Whether all of a dim, and what any of its factors make together, is a number.
fn is_counted(dim: &[i64]) -> bool {
    let all = dim.iter().try_fold(1_i64, |all, len| all.checked_mul((*len).max(1)));
    all.is_some() && dim.iter().all(|len| *len >= 0)
}

/// Whether two lists of extents describe the same local tensor.
pub(crate) fn same_shape(a: &[Vec<i64>], b: &[Vec<i64>]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.iter().product::<i64>() == b.iter().product())
}

/// Factor `factor` (counted over all dims) of the program's extents, in its dim.
fn find(given: &[Vec<i64>], factor: usize) -> Option<(usize, usize)> {
    let mut before = 0;
    for (dim, list) in given.iter().enumerate() {
        if factor < before + list.len() {
            return Some((dim, factor - before));
        }
        before += list.len();
    }
    None
}

/// `interval` of the program's factor, as an interval of one factor of the logical tensor: which
/// factor, counted over all dims, and the interval inside the local region.
pub(crate) fn locate(
    known: &[Vec<i64>],
    given: &[Vec<i64>],
    factor: usize,
    interval: Interval,
) -> Vec<(usize, Interval)> {
    let Some((dim, inner)) = find(given, factor) else { return vec![] };
    let before: usize = known[..dim].iter().map(Vec::len).sum();
    if known[dim] == given[dim] {
        return vec![(before + inner, interval)];
    }
    let stride: i64 = given[dim][inner + 1..].iter().product();
    let block = stride * given[dim][inner];
    let (lo, hi) = (interval.lo * stride, interval.hi * stride);
    let fits = |(index, &len): (usize, &i64)| {
        let step: i64 = known[dim][index + 1..].iter().product();
        let aligned = step > 0 && step * len == block && lo % step == 0 && hi % step == 0;
        aligned.then(|| (before + index, Interval { lo: lo / step, hi: hi / step }))
    };
    known[dim].iter().enumerate().filter_map(fits).collect()
}

/// A region with one interval replaced by a part of it, counted from its start.
pub(crate) fn part_of(region: &[Interval], factors: &[i64], index: usize, part: Interval) -> Vec<Interval> {
    let mut region = region.to_vec();
    let old = region[index];
    region[index] = if is_any(old) {
        any(part.len(), factors[index])
    } else {
        Interval { lo: old.lo + part.lo, hi: old.lo + part.hi }
    };
    region
}

/// One piece of a cut: its interval along the program's factor.
pub(crate) fn piece(cut: &Cut, position: usize) -> Option<Interval> {
    let size = *cut.sizes.get(position)?;
    let lo = cut.sizes[..position].iter().sum();
    Some(Interval { lo, hi: lo + size })
}

/// The extents of one piece of what has these extents.
pub(crate) fn of_piece(extents: &[Vec<i64>], cut: &Cut, position: usize) -> Vec<Vec<i64>> {
    let mut piece = extents.to_vec();
    if let (Some((dim, inner)), Some(size)) = (find(extents, cut.factor), cut.sizes.get(position)) {
        piece[dim][inner] = *size;
    }
    piece
}

/// Whether the pieces are all of the factor that is cut.
pub(crate) fn adds_up(cut: &Cut, given: &[Vec<i64>], pieces: usize) -> bool {
    let whole = find(given, cut.factor).map(|(dim, inner)| given[dim][inner]);
    let sum = cut.sizes.iter().try_fold(0_i64, |all, size| all.checked_add(*size));
    cut.sizes.len() == pieces && cut.sizes.iter().all(|size| *size >= 0) && sum.is_some() && whole == sum
}

/// The piece at `position` of what a region is cut into, if the cut is one of this region.
pub(crate) fn scattered(
    rank: &Rank<'_>,
    cut: &Cut,
    factors: &[Vec<i64>],
    region: &[Interval],
    position: usize,
    pieces: usize,
) -> Option<Vec<Interval>> {
    let (known, given) = (lengths(factors, region), extents(rank, &cut.extents)?);
    if !same_shape(&known, &given) || !adds_up(cut, &given, pieces) {
        return None;
    }
    let (index, part) = locate(&known, &given, cut.factor, piece(cut, position)?).into_iter().next()?;
    let flat: Vec<i64> = factors.iter().flatten().copied().collect();
    Some(part_of(region, &flat, index, part))
}

/// What pieces are when they are joined, and where in it each of them lies.
pub(crate) struct Joined {
    pub(crate) whole: Vec<Interval>,
    pub(crate) pieces: Vec<Vec<Interval>>,
}

/// What the pieces are, joined in their order, if they fit together along the cut.
pub(crate) fn gathered(
    rank: &Rank<'_>,
    cut: &Cut,
    factors: &[Vec<i64>],
    pieces: &[&[Interval]],
) -> Option<Joined> {
    let given = extents(rank, &cut.extents)?;
    if !adds_up(cut, &given, pieces.len()) {
        return None;
    }
    let flat: Vec<i64> = factors.iter().flatten().copied().collect();
    (0..flat.len()).find_map(|index| {
        let joined = joined(pieces, &flat, index)?;
        let known = lengths(factors, &joined.whole);
        let mut next = 0;
        let fits = same_shape(&known, &given)
            && pieces.iter().zip(&cut.sizes).all(|(piece, size)| {
                let interval = Interval { lo: next, hi: next + size };
                next += size;
                let located = locate(&known, &given, cut.factor, interval);
                located.iter().any(|(at, i)| *at == index && i.len() == piece[index].len())
            });
        fits.then_some(joined)
    })
}

/// The region of which this one is the piece at a place, where the others are as the cut says.
pub(crate) fn gathered_around(
    given: &[Vec<i64>],
    cut: &Cut,
    factors: &[Vec<i64>],
    region: &[Interval],
    (position, count): (usize, usize),
) -> Option<Vec<Interval>> {
    if !adds_up(cut, given, count) {
        return None;
    }
    let interval = piece(cut, position)?;
    let sizes: Vec<(usize, i64)> = factors
        .iter()
        .enumerate()
        .flat_map(|(dim, sizes)| sizes.iter().map(move |size| (dim, *size)))
        .collect();
    let (cut_dim, _) = find(given, cut.factor)?;
    sizes.iter().enumerate().filter(|(_, (dim, _))| *dim == cut_dim).find_map(|(index, (dim, size))| {
        let others =
            sizes.iter().zip(region).enumerate().filter(|(at, ((of, _), _))| of == dim && *at != index);
        let others: i64 = others.map(|(_, (_, i))| i.len()).product();
        let all: i64 = given[*dim].iter().product();
        let len = all.checked_div(others).filter(|len| len * others == all)?;
        let mut whole = region.to_vec();
        whole[index] = Interval::whole(len);
        let located = locate(&lengths(factors, &whole), given, cut.factor, interval);
        let (_, lies) = located.into_iter().find(|(at, i)| *at == index && i.len() == region[index].len())?;
        whole[index] = match region[index] {
            i if is_any(i) => any(len, *size),
            i => Interval { lo: i.lo - lies.lo, hi: i.lo - lies.lo + len },
        };
        (is_any(whole[index]) || whole[index].lo >= 0 && whole[index].hi <= *size).then_some(whole)
    })
}

/// Regions that differ along one factor only and follow each other there, as one. A piece that may lie
/// anywhere lies where the others leave it room.
fn joined(pieces: &[&[Interval]], factors: &[i64], index: usize) -> Option<Joined> {
    let first = pieces.first()?;
    let mut whole = first.to_vec();
    for piece in &pieces[1..] {
        for i in (0..whole.len()).filter(|i| *i != index) {
            whole[i] = unify(whole[i], piece[i])?;
        }
    }
    let (mut len, mut begin) = (0, None);
    for piece in pieces {
        if !is_any(piece[index]) {
            begin = begin.or(Some(piece[index].lo - len));
        }
        len += piece[index].len();
    }
    // All of it lies where it lies.
    let begin = begin.or((len == factors[index]).then_some(0));
    let Some(begin) = begin else {
        whole[index] = any(len, factors[index]);
        return Some(Joined { pieces: pieces.iter().map(|piece| piece.to_vec()).collect(), whole });
    };
    let mut next = begin;
    let mut placed = vec![];
    for piece in pieces {
        let mut region = whole.clone();
        region[index] = unify(piece[index], Interval { lo: next, hi: next + piece[index].len() })?;
        next = region[index].hi;
        placed.push(region);
    }
    whole[index] = Interval { lo: begin, hi: next };
    (begin >= 0 && next <= factors[index]).then_some(Joined { whole, pieces: placed })
}

#[cfg(test)]
mod tests {
    use program::Cut;
    use rules::Interval;

    use super::{adds_up, is_counted, locate, part_of};
    use crate::region::any;

    fn at(lo: i64, hi: i64) -> Interval {
        Interval { lo, hi }
    }

    #[test]
    fn extents_are_numbers_and_may_be_zero() {
        assert!(is_counted(&[0, 3]));
        assert!(is_counted(&[1]));
        assert!(!is_counted(&[-1]));
        assert!(!is_counted(&[2, -3]));
        assert!(!is_counted(&[i64::MAX, 2]));
        assert!(!is_counted(&[0, i64::MAX, 2]));
    }

    #[test]
    fn a_factor_of_the_program_is_found_by_its_stride() {
        let located = |known: &[Vec<i64>], given: &[Vec<i64>], factor: usize, lo: i64, hi: i64| {
            locate(known, given, factor, at(lo, hi))
        };
        assert_eq!(located(&[vec![8]], &[vec![2, 4]], 0, 1, 2), [(0, at(4, 8))]);
        assert_eq!(located(&[vec![2, 4]], &[vec![8]], 0, 4, 8), [(0, at(1, 2))]);
        assert_eq!(located(&[vec![2, 4]], &[vec![8]], 0, 2, 4), []);
        let known = [vec![3], vec![2, 4]];
        assert_eq!(located(&known, &[vec![3], vec![8]], 1, 4, 8), [(1, at(1, 2))]);
        assert_eq!(located(&known, &[vec![3], vec![2, 2, 2]], 2, 1, 2), [(2, at(2, 4))]);
        assert_eq!(located(&known, &known, 2, 1, 2), [(2, at(1, 2))]);
        assert_eq!(located(&known, &known, 3, 0, 1), []);
        let none = [vec![2, 0]];
        assert_eq!(located(&none, &none, 0, 0, 1), [(0, at(0, 1))]);
        assert_eq!(located(&none, &[vec![0]], 0, 0, 0), [(1, at(0, 0))]);
    }

    #[test]
    fn a_part_of_what_may_lie_anywhere_may_lie_anywhere() {
        assert_eq!(part_of(&[any(2, 4)], &[4], 0, at(1, 2)), [any(1, 4)]);
        assert_eq!(part_of(&[at(2, 4)], &[4], 0, at(1, 2)), [at(3, 4)]);
    }

    #[test]
    fn pieces_are_all_of_what_is_cut() {
        let fits = |factor: usize, sizes: &[i64], pieces: usize| {
            adds_up(&Cut { extents: vec![], factor, sizes: sizes.to_vec() }, &[vec![4]], pieces)
        };
        assert!(fits(0, &[1, 3], 2));
        assert!(fits(0, &[0, 4], 2));
        assert!(!fits(0, &[-1, 5], 2));
        assert!(!fits(0, &[1, 2], 2));
        assert!(!fits(0, &[1, 3], 3));
        // Too much for a number, of a factor that is not there.
        assert!(!fits(1, &[i64::MAX, 1], 2));
    }
}
