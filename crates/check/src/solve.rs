//! Loops that no operand carries, such as those of a new tensor: from the arguments of what is
//! executed. Each argument is linear in where a part begins and in how long it is.

use std::ops::Range;

use graph::OpId;
use rules::{Interval, Kind};

use crate::args::found_ints;
use crate::held::Scene;
use crate::region::{any, is_any};
use crate::symmetry::divisions;

/// The integers that the rule gives for a part, in the order of its arguments.
type Ints<'f> = &'f mut dyn FnMut(&[Interval]) -> Vec<i64>;

/// Fills in the loops that no operand carries, and where along a loop a part is whose operands are the same
/// all along it, from the arguments that depend on them.
pub(crate) fn solve(scene: &Scene<'_>, op: OpId, at: &[Option<Interval>], ints: Ints<'_>) -> Vec<Interval> {
    let loops = &scene.facts.analysis.op(op).loops;
    let mut known: Vec<Interval> =
        at.iter().zip(loops).map(|(i, l)| i.unwrap_or(Interval::whole(l.size))).collect();
    let mut next = 0;
    while next < at.len() && !scene.facts.op(op).random {
        let dim = next..next + loops[next..].iter().take_while(|l| l.dim == loops[next].dim).count();
        next = dim.end;
        match at[dim.start] {
            None if loops[dim.start].kind == Kind::Map => {
                if let Some(solved) = solve_dim(scene, op, &known, dim.clone(), ints) {
                    known[dim].copy_from_slice(&solved);
                }
            }
            Some(open) if is_any(open) && is_contiguous(scene, op, dim.start) => {
                known[dim.start] = place(scene, op, &known, dim.start, ints).unwrap_or(open);
            }
            _ => {}
        }
    }
    known
}

fn is_contiguous(scene: &Scene<'_>, op: OpId, l: usize) -> bool {
    let rule = scene.facts.analysis.rules[op.index()].as_ref();
    rule.is_some_and(|rule| rule.dim(scene.facts.analysis.op(op).loops[l].dim).contiguous)
}

/// Where along a loop a part of a known length begins: each argument is linear in that.
fn place(scene: &Scene<'_>, op: OpId, at: &[Interval], l: usize, ints: Ints<'_>) -> Option<Interval> {
    let mut with = |lo: i64| {
        let mut at = at.to_vec();
        at[l] = Interval { lo, hi: lo + at[l].len() };
        ints(&at)
    };
    let (first, second) = (with(0), with(1));
    let actual = found_ints(scene.local, scene.own);
    // Numbers of the program are any numbers.
    let tell = |j: usize| {
        let slope = second.get(j)?.checked_sub(*first.get(j)?).filter(|slope| *slope != 0)?;
        actual[j].checked_sub(first[j])?.checked_div(slope)
    };
    let last = scene.facts.analysis.op(op).loops[l].size - at[l].len();
    let lo = (0..actual.len()).find_map(tell).filter(|lo| (0..=last).contains(lo))?;
    Some(Interval { lo, hi: lo + at[l].len() })
}

/// The intervals of a dim's loops. A contiguous dim is divided over its outermost loop only. Of another, the
/// arguments tell how many elements there are, and it does not matter over which loops they are divided:
/// what comes out is the same all along the dim.
fn solve_dim(
    scene: &Scene<'_>,
    op: OpId,
    at: &[Interval],
    dim: Range<usize>,
    ints: Ints<'_>,
) -> Option<Vec<Interval>> {
    let sizes: Vec<i64> = scene.facts.analysis.op(op).loops[dim.clone()].iter().map(|l| l.size).collect();
    let (&size, inner) = sizes.split_first().filter(|(size, _)| **size > 0)?;
    let mut with = |lo: i64, hi: i64| {
        let mut at = at.to_vec();
        at[dim.start] = Interval { lo, hi };
        ints(&at)
    };
    let (full, less) = (with(0, size), with(0, size - 1));
    let actual = found_ints(scene.local, scene.own);
    let contiguous = is_contiguous(scene, op, dim.start);
    let moved = if contiguous { with(1, size) } else { less.clone() };
    if [&full, &less, &moved].iter().any(|ints| ints.len() != actual.len()) {
        return None;
    }
    // Each argument is linear in where the part begins and in its length: in steps of the outermost loop if
    // the dim is contiguous, else in elements.
    let step = if contiguous { 1 } else { inner.iter().product() };
    let row = |j: usize| {
        let change = actual[j].checked_sub(full[j])?.checked_mul(step)?;
        Some((moved[j] - less[j], full[j] - less[j], change))
    };
    let mut equations: Vec<Equation> = (0..actual.len()).map(row).collect::<Option<_>>()?;
    equations.retain(|row| row.0 != 0 || row.1 != 0);
    let (lo, change) = solve_rows(&equations)?;
    let len = change.checked_add(size * step)?;
    if !(0..=size * step).contains(&len) || lo < 0 || (contiguous && lo > size - len) {
        return None;
    }
    if contiguous {
        let inner = inner.iter().map(|&size| Interval::whole(size));
        return Some(std::iter::once(Interval { lo, hi: lo + len }).chain(inner).collect());
    }
    let open: Vec<(i64, Option<i64>)> = sizes.iter().map(|&size| (size, None)).collect();
    let lens = divisions(len, &open).into_iter().next()?;
    Some(lens.into_iter().zip(sizes).map(|(len, size)| any(len, size)).collect())
}

/// `a * begin + b * change = c`, of an argument.
type Equation = (i64, i64, i64);

/// Where a part begins and by how much it is shorter than all; both zero where no row tells.
fn solve_rows(rows: &[Equation]) -> Option<(i64, i64)> {
    let Some(&(a, b, c)) = rows.first() else { return Some((0, 0)) };
    let divide = |x: i64, y: i64| (x.checked_rem(y)? == 0).then(|| x / y);
    let crossed = |a: i64, e: i64, b: i64, d: i64| a.checked_mul(e)?.checked_sub(b.checked_mul(d)?);
    for &(d, e, f) in rows {
        let det = crossed(a, e, b, d)?;
        if det != 0 {
            return Some((divide(crossed(c, e, b, f)?, det)?, divide(crossed(a, f, c, d)?, det)?));
        }
    }
    if b == 0 { Some((divide(c, a)?, 0)) } else { Some((0, divide(c, b)?)) }
}

#[cfg(test)]
mod tests {
    use super::solve_rows;

    #[test]
    fn arguments_may_be_any_numbers() {
        assert_eq!(solve_rows(&[(1, 0, 2), (0, 1, -3)]), Some((2, -3)));
        assert_eq!(solve_rows(&[(-1, 0, i64::MIN)]), None);
        assert_eq!(solve_rows(&[(1, 2, i64::MAX), (2, 1, i64::MIN)]), None);
        assert_eq!(solve_rows(&[]), Some((0, 0)));
    }

    #[test]
    fn one_argument_tells_of_the_begin_or_of_the_length() {
        assert_eq!(solve_rows(&[(1, 0, 2), (2, 0, 4)]), Some((2, 0)));
        assert_eq!(solve_rows(&[(0, 2, -4)]), Some((0, -2)));
        assert_eq!(solve_rows(&[(2, 0, 3)]), None);
    }
}
