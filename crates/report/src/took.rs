//! How long something was predicted to take, and how long it took.

use std::iter::Sum;
use std::ops::AddAssign;

/// In seconds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Took {
    pub(crate) predicted: f64,
    pub(crate) measured: f64,
}

impl Took {
    /// The mean of so many.
    pub(crate) fn each(self, count: f64) -> Self {
        Self { predicted: self.predicted / count, measured: self.measured / count }
    }

    /// By how much the two differ.
    pub(crate) fn apart(self) -> f64 {
        (self.measured - self.predicted).abs()
    }
}

impl AddAssign for Took {
    fn add_assign(&mut self, other: Self) {
        self.predicted += other.predicted;
        self.measured += other.measured;
    }
}

impl Sum for Took {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        let mut sum = Self::default();
        all.for_each(|one| sum += one);
        sum
    }
}
