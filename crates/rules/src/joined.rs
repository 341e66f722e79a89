//! What belongs together, as far as it was said of pairs.

/// Numbers from zero on, each of which is in one group.
pub struct Joined {
    before: Vec<usize>,
}

impl Joined {
    /// Each of so many by itself.
    pub fn new(count: usize) -> Self {
        Self { before: (0..count).collect() }
    }

    pub fn join(&mut self, a: usize, b: usize) {
        let (a, b) = (self.first(a), self.first(b));
        self.before[a.max(b)] = a.min(b);
    }

    /// The smallest of a group.
    pub fn first(&mut self, mut member: usize) -> usize {
        while self.before[member] != member {
            self.before[member] = self.before[self.before[member]];
            member = self.before[member];
        }
        member
    }

    pub(crate) fn len(&self) -> usize {
        self.before.len()
    }
}
