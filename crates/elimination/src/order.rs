//! Which variable is eliminated next.

use std::collections::BTreeSet;

/// For each variable those with which it shares a table.
#[derive(Clone)]
pub(crate) struct Neighbours {
    of: Vec<BTreeSet<usize>>,
    left: BTreeSet<usize>,
}

impl Neighbours {
    pub(crate) fn new<'s>(count: usize, scopes: impl Iterator<Item = &'s [usize]>) -> Self {
        let mut of = vec![BTreeSet::new(); count];
        for scope in scopes {
            for &one in scope {
                of[one].extend(scope.iter().copied().filter(|other| *other != one));
            }
        }
        Self { of, left: (0..count).collect() }
    }

    /// The one that leaves the smallest table, of several the first; none of those that are to stay.
    pub(crate) fn next(&self, sizes: &[usize], stays: Option<usize>) -> Option<usize> {
        let entries = |one: usize| self.of[one].iter().map(|other| sizes[*other] as f64).product::<f64>();
        let work = |one: usize| (entries(one) * sizes[one] as f64, one);
        let open = self.left.iter().copied().filter(|one| Some(*one) != stays);
        open.map(work).min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1))).map(|found| found.1)
    }

    /// Whether all can be eliminated so that no table has more entries than so many, nor takes more work.
    pub(crate) fn are_within(&self, sizes: &[usize], room: f64, work: f64) -> bool {
        let mut rest = self.clone();
        while let Some(one) = rest.next(sizes, None) {
            let entries: f64 = rest.eliminate(one).iter().map(|it| sizes[*it] as f64).product();
            if entries > room || entries * sizes[one] as f64 > work {
                return false;
            }
        }
        true
    }

    /// Its neighbours become neighbours of each other.
    pub(crate) fn eliminate(&mut self, one: usize) -> Vec<usize> {
        let around = std::mem::take(&mut self.of[one]);
        self.left.remove(&one);
        for other in &around {
            self.of[*other].extend(around.iter().copied().filter(|it| it != other));
            self.of[*other].remove(&one);
        }
        around.into_iter().collect()
    }
}
