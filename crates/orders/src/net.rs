//! Differences of times: how much later than one thing another one is at least, for all pairs.

use crate::pairs::Pair;

/// There is no such bound.
const NONE: i32 = i32::MIN / 4;
/// Times are less than this, so that sums of bounds are numbers. Small numbers, as most of the search is spent on them.
pub(crate) const FAR: i64 = 1 << 28;

/// Closed: what follows from two bounds is a bound.
#[derive(Clone)]
pub(crate) struct Net {
    count: usize,
    least: Vec<i32>,
}

/// No times are so.
#[derive(Debug)]
pub(crate) struct Clash;

impl Net {
    pub fn new(count: usize) -> Self {
        let mut least = vec![NONE; count * count];
        (0..count).for_each(|at| least[at * count + at] = 0);
        Self { count, least }
    }

    /// How much later the second is at least.
    pub fn least(&self, first: usize, then: usize) -> i64 {
        i64::from(self.least[first * self.count + then])
    }

    /// How much later the second is at most.
    pub fn most(&self, first: usize, then: usize) -> i64 {
        -self.least(then, first)
    }

    /// The difference of a pair's times lies in between. Says whether that is new.
    pub fn within(&mut self, pair: &Pair, low: i64, high: i64) -> Result<bool, Clash> {
        Ok(self.later(pair.first, pair.then, low)? | self.later(pair.then, pair.first, -high)?)
    }

    /// The second is at least so much later. Says whether that is new.
    pub fn later(&mut self, first: usize, then: usize, by: i64) -> Result<bool, Clash> {
        if by <= self.least(first, then) {
            return Ok(false);
        }
        if by > self.most(first, then) {
            return Err(Clash);
        }
        let (count, by) = (self.count, i32::try_from(by).map_err(|_| Clash)?);
        let after: Vec<i32> = self.least[then * count..][..count].to_vec();
        for at in 0..count {
            let until = self.least[at * count + first].saturating_add(by);
            // What says nothing new of `then` says nothing new of what follows it.
            if until <= self.least[at * count + then] || self.least[at * count + first] <= NONE / 2 {
                continue;
            }
            let row = &mut self.least[at * count..][..count];
            for (known, more) in row.iter_mut().zip(&after) {
                *known = (*known).max(until + *more);
            }
        }
        Ok(true)
    }
}
