//! Collectives that a rank has begun ahead, and which copies of leaves each brings.

use std::collections::BTreeMap;

use hashing::Map;

use crate::rendezvous::Key;

#[derive(Default)]
pub(crate) struct Coming {
    /// By the order in which they began.
    begun: BTreeMap<usize, (Key, Vec<usize>)>,
    /// Of each copy the numbers of those that bring it.
    bringing: Map<usize, Vec<usize>>,
    count: usize,
}

impl Coming {
    pub(crate) fn is_empty(&self) -> bool {
        self.begun.is_empty()
    }

    pub(crate) fn push(&mut self, key: Key, copies: Vec<usize>) {
        for copy in &copies {
            self.bringing.entry(*copy).or_default().push(self.count);
        }
        self.begun.insert(self.count, (key, copies));
        self.count += 1;
    }

    /// The first that brings one of these copies.
    pub(crate) fn first(&self, copies: &[usize]) -> Option<(usize, Key)> {
        let numbers = copies.iter().filter_map(|copy| self.bringing.get(copy)?.first());
        numbers.min().map(|number| (*number, self.begun[number].0))
    }

    pub(crate) fn remove(&mut self, number: usize) {
        let Some((_, copies)) = self.begun.remove(&number) else { return };
        for copy in copies {
            if let Some(numbers) = self.bringing.get_mut(&copy) {
                numbers.retain(|other| *other != number);
            }
        }
    }
}
