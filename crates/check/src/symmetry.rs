//! Fluid runs: several factors of a dim, one after the other, all along which the value is the same. Of such a
//! run only matters how many elements a part has, not over which factor it is divided.

use std::ops::Range;

use graph::TensorId;
use rules::Interval;

use crate::facts::Facts;
use crate::region::{any, unify_all};

/// The factors of a tensor, counted over all dims: those of a fluid run together, each other one alone.
pub(crate) fn runs<'f>(
    facts: &'f Facts<'_>,
    tensor: TensorId,
) -> impl Iterator<Item = (Range<usize>, bool)> + use<'f> {
    let mut next = 0;
    facts.analysis.factors[tensor.index()].iter().flat_map(move |factors| {
        let dim = next..next + factors.len();
        next = dim.end;
        runs_of(dim, |factor| facts.is_uniform(tensor, factor))
    })
}

fn runs_of(dim: Range<usize>, uniform: impl Fn(usize) -> bool) -> Vec<(Range<usize>, bool)> {
    let mut runs = vec![];
    let mut next = dim.start;
    while next < dim.end {
        let symmetric = (next..dim.end).take_while(|&factor| uniform(factor)).count();
        let run = next..next + symmetric.max(1);
        next = run.end;
        runs.push((run, symmetric > 1));
    }
    runs
}

/// One region for both, if a value in the one is a value in the other: where they may differ, the second. Whoever
/// holds a value says of which tensor it is; none, if one of the two is of another tensor with other factors.
pub(crate) fn agree(
    facts: &Facts<'_>,
    tensor: TensorId,
    a: &[Interval],
    b: &[Interval],
) -> Option<Vec<Interval>> {
    let factors = facts.flat[tensor.index()].len();
    if a.len() != factors || b.len() != factors {
        return None;
    }
    let mut joined = vec![];
    for (range, symmetry) in runs(facts, tensor) {
        let (a, b) = (&a[range.clone()], &b[range]);
        match unify_all(a, b) {
            Some(both) => joined.extend(both),
            None if symmetry && count(a) == count(b) => joined.extend_from_slice(b),
            None => return None,
        }
    }
    Some(joined)
}

/// A region with its fluid runs divided as these extents are, which name all factors of a dim or not.
pub(crate) fn divided_as(
    facts: &Facts<'_>,
    tensor: TensorId,
    region: &[Interval],
    extents: &[Vec<i64>],
) -> Vec<Interval> {
    let (mut region, sizes) = (region.to_vec(), &facts.flat[tensor.index()]);
    let wanted = named(&facts.analysis.factors[tensor.index()], extents);
    for (run, _) in runs(facts, tensor).filter(|(_, symmetry)| *symmetry) {
        let Some(wanted) = wanted[run.clone()].iter().copied().collect::<Option<Vec<i64>>>() else {
            continue;
        };
        let intervals = &mut region[run.clone()];
        let other = intervals.iter().zip(&wanted).any(|(i, len)| i.len() != *len);
        let same = wanted.iter().try_fold(1_i64, |all, len| all.checked_mul(*len)) == Some(count(intervals));
        if other && same {
            let divided = wanted.iter().zip(&sizes[run]).map(|(&len, &size)| any(len, size));
            intervals.copy_from_slice(&divided.collect::<Vec<_>>());
        }
    }
    region
}

/// How much of each factor extents name: nothing of a dim that they divide otherwise, or do not have.
fn named(factors: &[Vec<i64>], extents: &[Vec<i64>]) -> Vec<Option<i64>> {
    let dim = |(dim, lens): (usize, &Vec<i64>)| -> Vec<Option<i64>> {
        match extents.get(dim).filter(|wanted| wanted.len() == lens.len()) {
            Some(wanted) => wanted.iter().copied().map(Some).collect(),
            None => vec![None; lens.len()],
        }
    };
    factors.iter().enumerate().flat_map(dim).collect()
}

/// The ways to have so many elements of loops of these sizes; of a loop that is known, so many.
pub(crate) fn divisions(count: i64, sizes: &[(i64, Option<i64>)]) -> Vec<Vec<i64>> {
    let Some((&(size, known), rest)) = sizes.split_first() else {
        return if count == 1 { vec![vec![]] } else { vec![] };
    };
    let fits = |len: &i64| if *len == 0 { count == 0 } else { count % len == 0 };
    let lens = (0..=size).filter(|len| known.is_none_or(|known| known == *len)).filter(fits);
    lens.flat_map(|len| {
        // Of nothing, it does not matter of what else.
        let rests = if len == 0 {
            vec![rest.iter().map(|r| r.1.unwrap_or(r.0)).collect()]
        } else {
            divisions(count / len, rest)
        };
        rests.into_iter().map(move |rest: Vec<i64>| [vec![len], rest].concat())
    })
    .collect()
}

pub(crate) fn count(intervals: &[Interval]) -> i64 {
    intervals.iter().map(|i| i.len()).product()
}

#[cfg(test)]
mod tests {
    use super::named;

    #[test]
    fn extents_may_have_any_number_of_dims_and_factors() {
        let factors = [vec![2], vec![3, 4]];
        let all = |extents: &[Vec<i64>]| named(&factors, extents);
        assert_eq!(all(&[vec![1], vec![3, 2]]), [Some(1), Some(3), Some(2)]);
        assert_eq!(all(&[vec![1], vec![6]]), [Some(1), None, None]);
        assert_eq!(all(&[vec![1]]), [Some(1), None, None]);
        assert_eq!(all(&[]), [None, None, None]);
        assert_eq!(all(&[vec![1], vec![3, 2], vec![5]]), [Some(1), Some(3), Some(2)]);
    }
}
