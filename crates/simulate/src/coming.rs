//! Collectives that a rank has begun ahead, and which copies of leaves each brings.

use crate::rendezvous::Key;

#[derive(Default)]
pub(crate) struct Coming {
    /// In the order in which they began.
    begun: Vec<(Key, Vec<usize>)>,
    /// How many of these bring a copy: most are looked for when they are here.
    bringing: Vec<u32>,
}

impl Coming {
    pub(crate) fn is_empty(&self) -> bool {
        self.begun.is_empty()
    }

    pub(crate) fn push(&mut self, key: Key, copies: Vec<usize>) {
        for copy in &copies {
            self.bringing.resize(self.bringing.len().max(copy + 1), 0);
            self.bringing[*copy] += 1;
        }
        self.begun.push((key, copies));
    }

    /// The place of the first that brings one of these copies, and what it is.
    pub(crate) fn first(&self, copies: &[usize]) -> Option<(usize, Key)> {
        if copies.iter().all(|copy| self.bringing.get(*copy).is_none_or(|count| *count == 0)) {
            return None;
        }
        let brings = |(_, brought): &(Key, Vec<usize>)| brought.iter().any(|copy| copies.contains(copy));
        let place = self.begun.iter().position(brings)?;
        Some((place, self.begun[place].0))
    }

    pub(crate) fn remove(&mut self, place: usize) {
        let (_, copies) = self.begun.remove(place);
        copies.into_iter().for_each(|copy| self.bringing[copy] -= 1);
    }
}
