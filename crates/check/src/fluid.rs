//! Fluid dims: of several factors, all along which the value is the same. Of such a dim only matters how
//! many elements a part has, not over which factor it is divided.

use std::ops::Range;

use graph::TensorId;
use rules::Interval;

use crate::facts::Facts;
use crate::region::{any, unify_all};

/// The dims of a tensor: of each its factors, counted over all dims, and whether it is fluid.
pub(crate) fn dims<'f>(
    facts: &'f Facts<'_>,
    tensor: TensorId,
) -> impl Iterator<Item = (Range<usize>, bool)> + use<'f> {
    let mut next = 0;
    facts.analysis.factors[tensor.index()].iter().map(move |factors| {
        let range = next..next + factors.len();
        next = range.end;
        let fluid = factors.len() > 1 && facts.is_uniform(tensor, range.clone());
        (range, fluid)
    })
}

/// One region for both, if a value in the one is a value in the other: where they may differ, the second.
pub(crate) fn agree(
    facts: &Facts<'_>,
    tensor: TensorId,
    a: &[Interval],
    b: &[Interval],
) -> Option<Vec<Interval>> {
    let mut joined = vec![];
    for (range, fluid) in dims(facts, tensor) {
        let (a, b) = (&a[range.clone()], &b[range]);
        match unify_all(a, b) {
            Some(both) => joined.extend(both),
            None if fluid && count(a) == count(b) => joined.extend_from_slice(b),
            None => return None,
        }
    }
    Some(joined)
}

/// A region with its fluid dims divided as these extents are, which name all factors of a dim or not.
pub(crate) fn divided_as(
    facts: &Facts<'_>,
    tensor: TensorId,
    region: &[Interval],
    extents: &[Vec<i64>],
) -> Vec<Interval> {
    let mut region = region.to_vec();
    for ((range, fluid), wanted) in dims(facts, tensor).zip(extents) {
        let own = &mut region[range.clone()];
        let other = own.iter().zip(wanted).any(|(i, len)| i.len() != *len);
        let fits = fluid && wanted.len() == own.len() && count(own) == wanted.iter().product::<i64>();
        if fits && other {
            let sizes = &facts.flat[tensor.index()][range];
            own.copy_from_slice(
                &wanted.iter().zip(sizes).map(|(&len, &size)| any(len, size)).collect::<Vec<_>>(),
            );
        }
    }
    region
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
