//! Where a factor is cut into pieces.

use std::sync::Arc;

use rules::Interval;

/// Into how many pieces a factor of some size is cut, and where.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pieces {
    size: i64,
    count: u32,
    bounds: Bounds,
}

/// Invariant: `Given` is never what `Balanced` would be.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Bounds {
    /// Sizes differ by at most one, larger ones first.
    Balanced,
    /// Where each piece begins, and where the last one ends.
    Given(Arc<[i64]>),
}

impl Pieces {
    pub fn balanced(size: i64, count: u32) -> Pieces {
        Pieces { size, count, bounds: Bounds::Balanced }
    }

    /// Pieces of these sizes, one behind another.
    pub fn from_sizes(sizes: &[i64]) -> Pieces {
        let mut at = 0;
        let mut starts = vec![0];
        for size in sizes {
            at += size;
            starts.push(at);
        }
        Pieces::starting(starts)
    }

    /// Balanced pieces that are themselves cut into balanced pieces, and so on.
    pub fn nested(size: i64, counts: &[u32]) -> Pieces {
        counts.iter().fold(Pieces::balanced(size, 1), |pieces, count| pieces.finer(*count))
    }

    fn starting(starts: Vec<i64>) -> Pieces {
        let (count, size) = (starts.len() - 1, starts[starts.len() - 1]);
        let count = u32::try_from(count).expect("fewer pieces than devices can be numbered");
        let balanced = Pieces::balanced(size, count);
        if starts.iter().zip(0..=count).all(|(&start, i)| start == balanced.start(i)) {
            return balanced;
        }
        Pieces { bounds: Bounds::Given(starts.into()), ..balanced }
    }

    pub fn size(&self) -> i64 {
        self.size
    }

    pub fn count(&self) -> u32 {
        self.count
    }

    pub fn is_balanced(&self) -> bool {
        self.bounds == Bounds::Balanced
    }

    pub fn get(&self, index: u32) -> Interval {
        Interval { lo: self.start(index), hi: self.start(index + 1) }
    }

    pub fn sizes(&self) -> Vec<i64> {
        (0..self.count).map(|i| self.get(i).len()).collect()
    }

    pub fn longest(&self) -> i64 {
        let count = i64::from(self.count);
        match &self.bounds {
            Bounds::Balanced => (self.size + count - 1) / count,
            Bounds::Given(_) => self.sizes().into_iter().max().unwrap_or(0),
        }
    }

    pub fn shortest(&self) -> i64 {
        match &self.bounds {
            Bounds::Balanced => self.size / i64::from(self.count),
            Bounds::Given(_) => self.sizes().into_iter().min().unwrap_or(0),
        }
    }

    /// So many neighbours at a time are one piece.
    pub fn coarser(&self, by: u32) -> Pieces {
        let count = self.count / by;
        if self.is_even() || count == 1 {
            return Pieces::balanced(self.size, count);
        }
        Pieces::starting((0..=count).map(|i| self.start(i * by)).collect())
    }

    /// Every piece is cut into so many balanced ones.
    pub fn finer(&self, by: u32) -> Pieces {
        let count = self.count * by;
        if self.is_balanced() && (self.count == 1 || by == 1 || self.size % i64::from(count) == 0) {
            return Pieces::balanced(self.size, count);
        }
        let inside = |i: u32| (0..by).map(move |j| (i, j)).map(|(i, j)| self.get(i).part(j, by).lo);
        Pieces::starting((0..self.count).flat_map(inside).chain([self.size]).collect())
    }

    /// Whether all pieces are of one size.
    pub fn is_even(&self) -> bool {
        self.is_balanced() && self.size % i64::from(self.count) == 0
    }

    fn start(&self, index: u32) -> i64 {
        match &self.bounds {
            Bounds::Balanced if index == self.count => self.size,
            Bounds::Balanced => Interval::whole(self.size).part(index, self.count).lo,
            Bounds::Given(starts) => starts[index as usize],
        }
    }
}
