//! A fast hash for short keys of numbers that nobody chooses with bad intent.
//!
//! What is looked up millions of times is a few small numbers: a rank, a region, what each axis does. Maps of such keys
//! are [`Map`]s. Nobody walks through one: their order says nothing.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

pub type Map<K, V> = HashMap<K, V, BuildHasherDefault<Quick>>;

/// Mixes word by word.
#[derive(Clone, Copy, Debug, Default)]
pub struct Quick(u64);

const SEED: u64 = 0x51_7c_c1_b7_27_22_0a_95;

impl Hasher for Quick {
    fn finish(&self) -> u64 {
        // The places of a map are numbered by the lowest bits, and mixed are the highest.
        self.0.rotate_left(26)
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(size_of::<u64>()) {
            let mut word = [0; size_of::<u64>()];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(SEED);
    }

    fn write_u8(&mut self, word: u8) {
        self.write_u64(u64::from(word));
    }

    fn write_u16(&mut self, word: u16) {
        self.write_u64(u64::from(word));
    }

    fn write_u32(&mut self, word: u32) {
        self.write_u64(u64::from(word));
    }

    fn write_i64(&mut self, word: i64) {
        self.write_u64(word as u64);
    }

    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }

    fn write_isize(&mut self, word: isize) {
        self.write_u64(word as u64);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::hash::Hash;

    use super::*;

    fn hash(key: impl Hash) -> u64 {
        let mut quick = Quick::default();
        key.hash(&mut quick);
        quick.finish()
    }

    /// As many places as keys: half of them are met, or more, as with a hash that draws them.
    #[test]
    fn small_numbers_are_spread_over_the_places_of_a_map() {
        let places =
            |all: &mut dyn Iterator<Item = u64>| all.map(|it| it % 4096).collect::<BTreeSet<_>>().len();
        assert!(places(&mut (0..4096_u32).map(hash)) > 2048);
        assert!(places(&mut (0..4096_usize).map(|it| hash((it / 64, it % 64)))) > 2048);
        assert!(places(&mut (0..4096_u16).map(|it| hash([it.to_le_bytes(), [0, 1]]))) > 2048);
    }

    #[test]
    fn bytes_count_wherever_they_stand() {
        let keys = [[0_u8, 0, 1], [0, 1, 0], [1, 0, 0], [0, 0, 0]];
        assert_eq!(keys.iter().map(hash).collect::<BTreeSet<_>>().len(), keys.len());
    }
}
