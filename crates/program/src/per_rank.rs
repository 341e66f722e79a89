//! What the ranks of a role have, where that may differ among them.

use std::sync::Arc;

use rules::Region;

use crate::{Of, Table};

/// A value for each rank of a role, in their order. What is the same for all is there once.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum PerRank<T> {
    Same(T),
    /// Not all of them are equal.
    Each(Arc<[T]>),
}

impl<T: PartialEq> PerRank<T> {
    /// Of one value for each rank; there is at least one rank.
    pub fn from_values(mut values: Vec<T>) -> Self {
        if values.iter().all(|value| *value == values[0]) {
            PerRank::Same(values.swap_remove(0))
        } else {
            PerRank::Each(values.into())
        }
    }
}

impl<T> PerRank<T> {
    pub fn get(&self, at: usize) -> &T {
        match self {
            PerRank::Same(value) => value,
            PerRank::Each(values) => &values[at],
        }
    }

    /// What occurs, some of it more than once.
    pub fn values(&self) -> &[T] {
        match self {
            PerRank::Same(value) => std::slice::from_ref(value),
            PerRank::Each(values) => values,
        }
    }

    /// Whether there is a value for each of so many ranks.
    pub fn fits(&self, ranks: usize) -> bool {
        match self {
            PerRank::Same(_) => true,
            PerRank::Each(values) => values.len() == ranks,
        }
    }
}

/// What one rank has of its role's table.
#[derive(Clone, Copy, Debug)]
pub struct Own<'a> {
    pub table: &'a Table,
    /// The position of the rank in its role.
    pub at: usize,
}

impl<'a> Own<'a> {
    pub fn constant(self, hole: u32) -> Option<i64> {
        self.table.constants.get(hole as usize).map(|per_rank| *per_rank.get(self.at))
    }

    pub fn shard(self, number: usize) -> &'a Region {
        self.table.shards[number].region.get(self.at)
    }

    pub fn copy(self, number: usize) -> &'a Region {
        self.table.copies[number].region.get(self.at)
    }

    /// What a leaf is part of, and its region.
    pub fn leaf(self, number: usize) -> (Of, &'a Region) {
        let (origin, region) = &self.table.leaves[number];
        (*origin, region.get(self.at))
    }

    /// The shard that a leaf's gradient is for.
    pub fn shard_of(self, leaf: usize) -> usize {
        match self.table.leaves[leaf].0 {
            Of::Shard(shard) => shard,
            Of::Copy(copy) => self.table.copies[copy].shard,
        }
    }

    pub fn inputs(self) -> impl Iterator<Item = &'a Region> {
        self.table.inputs.iter().map(move |region| region.get(self.at))
    }

    pub fn output(self, number: usize) -> Option<&'a Region> {
        self.table.outputs[number].as_ref().map(|region| region.get(self.at))
    }
}
