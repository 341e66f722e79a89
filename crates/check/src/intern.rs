//! Lists that are stored once, so that equal ones have equal numbers.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::rc::Rc;

/// A fast hash for short keys of integers that nobody chooses with bad intent.
#[derive(Clone, Copy, Default)]
pub(crate) struct Quick(u64);

pub(crate) type Map<K, V> = HashMap<K, V, BuildHasherDefault<Quick>>;

const SEED: u64 = 0x51_7c_c1_b7_27_22_0a_95;

impl Hasher for Quick {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(SEED);
    }

    fn write_u8(&mut self, word: u8) {
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

/// Numbered lists; the empty list is number 0.
#[derive(Debug)]
pub(crate) struct Lists<T> {
    lists: Vec<Rc<[T]>>,
    numbers: Map<Rc<[T]>, u32>,
}

impl<T: Hash + Eq + Clone> Lists<T> {
    pub(crate) fn new() -> Self {
        let mut lists = Self { lists: vec![], numbers: Map::default() };
        lists.number(&[]);
        lists
    }

    pub(crate) fn number(&mut self, list: &[T]) -> u32 {
        if let Some(&known) = self.numbers.get(list) {
            return known;
        }
        let number = u32::try_from(self.lists.len()).expect("more than 2^32 of one kind");
        let list: Rc<[T]> = list.into();
        self.lists.push(Rc::clone(&list));
        self.numbers.insert(list, number);
        number
    }

    pub(crate) fn get(&self, number: u32) -> &Rc<[T]> {
        &self.lists[number as usize]
    }
}
