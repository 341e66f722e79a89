//! Which variable is eliminated next.

use std::collections::BTreeSet;

/// For each variable those with which it shares a table.
pub(crate) struct Neighbours<'s> {
    sizes: &'s [usize],
    of: Vec<BTreeSet<usize>>,
    /// Those that are left and may be eliminated, by the work that takes, as the bits of what is never negative.
    left: BTreeSet<(u64, usize)>,
}

impl<'s> Neighbours<'s> {
    /// Of variables of some sizes that share tables with these scopes; one of them may have to stay.
    pub(crate) fn new<'t>(
        sizes: &'s [usize],
        scopes: impl Iterator<Item = &'t [usize]>,
        stays: Option<usize>,
    ) -> Self {
        let mut neighbours = vec![BTreeSet::new(); sizes.len()];
        for scope in scopes {
            for &one in scope {
                neighbours[one].extend(scope.iter().copied().filter(|other| *other != one));
            }
        }
        let mut graph = Self { sizes, of: neighbours, left: BTreeSet::new() };
        graph.left =
            (0..sizes.len()).filter(|one| Some(*one) != stays).map(|one| (graph.work(one), one)).collect();
        graph
    }

    fn entries(&self, one: usize) -> f64 {
        self.of[one].iter().map(|other| self.sizes[*other] as f64).product()
    }

    fn work(&self, one: usize) -> u64 {
        (self.entries(one) * self.sizes[one] as f64).to_bits()
    }

    /// The one that takes least work, of several the first.
    fn next(&self) -> Option<usize> {
        self.left.first().map(|(_, one)| *one)
    }

    /// All, each with its neighbours when it is eliminated; none if a table would have more entries than so many, or take
    /// more work.
    pub(crate) fn in_order(mut self, room: f64, work: f64) -> Option<Vec<(usize, Vec<usize>)>> {
        let mut order = Vec::with_capacity(self.left.len());
        while let Some(one) = self.next() {
            let entries = self.entries(one);
            if entries > room || entries * self.sizes[one] as f64 > work {
                return None;
            }
            let around = self.eliminate(one);
            order.push((one, around));
        }
        Some(order)
    }

    /// Its neighbours become neighbours of each other.
    fn eliminate(&mut self, one: usize) -> Vec<usize> {
        self.left.remove(&(self.work(one), one));
        let around = std::mem::take(&mut self.of[one]);
        for other in &around {
            let was = self.left.remove(&(self.work(*other), *other));
            self.of[*other].extend(around.iter().copied().filter(|it| it != other));
            self.of[*other].remove(&one);
            if was {
                self.left.insert((self.work(*other), *other));
            }
        }
        around.into_iter().collect()
    }
}
