//! Intervals, and regions: one interval for each factor of a tensor.

/// `lo..hi` along one factor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Interval {
    pub lo: i64,
    pub hi: i64,
}

impl Interval {
    pub fn whole(size: i64) -> Self {
        Self { lo: 0, hi: size }
    }

    pub fn len(self) -> i64 {
        self.hi - self.lo
    }

    pub fn is_empty(self) -> bool {
        self.hi <= self.lo
    }

    pub fn meet(self, other: Self) -> Self {
        Self { lo: self.lo.max(other.lo), hi: self.hi.min(other.hi) }
    }

    pub fn contains(self, other: Self) -> bool {
        self.lo <= other.lo && other.hi <= self.hi
    }

    /// The `index`-th of `count` balanced parts: sizes differ by at most one, larger ones first.
    pub fn part(self, index: u32, count: u32) -> Self {
        let (size, index, count) = (self.len(), i64::from(index), i64::from(count));
        let start = |i: i64| self.lo + i * (size / count) + i.min(size % count);
        Self { lo: start(index), hi: start(index + 1) }
    }
}

/// All balanced parts of an interval.
pub fn parts(whole: Interval, count: u32) -> Vec<Interval> {
    (0..count).map(|index| whole.part(index, count)).collect()
}

/// The piece of a tensor that a shard covers: one interval per factor, outer to inner, over all
/// dims in order. Dims of size one have no factor.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Region(pub Box<[Interval]>);

impl Region {
    pub fn whole(factors: &[i64]) -> Self {
        Self(factors.iter().map(|&size| Interval::whole(size)).collect())
    }

    pub fn numel(&self) -> i64 {
        self.0.iter().map(|i| i.len()).product()
    }

    pub fn is_empty(&self) -> bool {
        self.0.iter().any(|i| i.is_empty())
    }

    pub fn meet(&self, other: &Self) -> Self {
        Self(self.0.iter().zip(&other.0).map(|(a, b)| a.meet(*b)).collect())
    }

    pub fn contains(&self, other: &Self) -> bool {
        self.0.iter().zip(&other.0).all(|(a, b)| a.contains(*b))
    }

    /// The smallest region that holds both.
    pub fn hull(&self, other: &Self) -> Self {
        let hull = |(a, b): (&Interval, &Interval)| Interval { lo: a.lo.min(b.lo), hi: a.hi.max(b.hi) };
        Self(self.0.iter().zip(&other.0).map(hull).collect())
    }

    /// The same region counted from the start of `frame`, which contains it.
    pub fn within(&self, frame: &Self) -> Self {
        let shift = |(a, f): (&Interval, &Interval)| Interval { lo: a.lo - f.lo, hi: a.hi - f.lo };
        Self(self.0.iter().zip(&frame.0).map(shift).collect())
    }

    /// The extent of each dim, given how many factors each dim has.
    pub fn shape(&self, factors: &[Vec<i64>]) -> Vec<i64> {
        let mut rest = self.0.iter();
        factors.iter().map(|dim| rest.by_ref().take(dim.len()).map(|i| i.len()).product()).collect()
    }
}
