//! Lists that are stored once, so that equal ones have equal numbers.

use std::hash::Hash;
use std::rc::Rc;

use hashing::Map;

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
