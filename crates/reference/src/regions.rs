//! Regions of tensors: an interval for each factor, and which elements that are.

use rules::{Interval, Region};

use crate::number::Num;
use crate::tape::Value;

pub fn whole(factors: &[i64]) -> Region {
    Region(factors.iter().map(|size| Interval { lo: 0, hi: *size }).collect())
}

pub fn numel(region: &Region) -> usize {
    region.0.iter().map(|it| (it.hi - it.lo).max(0) as usize).product()
}

/// Where the elements of a region lie in another one that contains it, in order; `None` if it does not.
pub fn places(frame: &Region, region: &Region) -> Option<Vec<usize>> {
    if frame.0.len() != region.0.len() {
        return None;
    }
    let mut places = vec![0usize];
    for (outer, inner) in frame.0.iter().zip(&region.0) {
        if inner.hi < inner.lo || inner.lo < outer.lo || (inner.hi > outer.hi && inner.lo < inner.hi) {
            return None;
        }
        let size = (outer.hi - outer.lo) as usize;
        let span = (inner.lo - outer.lo) as usize..(inner.hi - outer.lo) as usize;
        places = places.iter().flat_map(|at| span.clone().map(move |step| at * size + step)).collect();
    }
    Some(places)
}

/// The shape of a region of a tensor whose dims have these factors.
pub fn shape(region: &Region, factors: &[Vec<i64>]) -> Vec<usize> {
    let mut rest = region.0.iter().map(|it| (it.hi - it.lo).max(0) as usize);
    factors.iter().map(|dim| rest.by_ref().take(dim.len()).product()).collect()
}

/// The part of what is there of a region.
pub fn cut(value: &Value, frame: &Region, region: &Region, factors: &[Vec<i64>]) -> Option<Value> {
    if value.data.len() != numel(frame) {
        return None;
    }
    let data = places(frame, region)?.into_iter().map(|at| value.data[at]).collect();
    Some(Value { kind: value.kind, shape: shape(region, factors), data })
}

/// Combines a part with what is there of a region that contains it.
pub fn join(
    data: &mut [Num],
    frame: &Region,
    part: &[Num],
    region: &Region,
    combine: impl Fn(Num, Num) -> Num,
) -> Option<()> {
    let places = places(frame, region)?;
    if places.len() != part.len() || data.len() != numel(frame) {
        return None;
    }
    places.into_iter().zip(part).for_each(|(at, new)| data[at] = combine(data[at], *new));
    Some(())
}
