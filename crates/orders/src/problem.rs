//! What is to be ordered: the blocks that each micro-batch goes through, and what devices have room for.

use diag::{Error, Result};

pub(crate) const MOST_DEVICES: i64 = 256;
pub(crate) const MOST_BLOCKS: usize = 256;
/// The most that all blocks together take.
pub(crate) const MOST_TIME: i64 = 1 << 20;

/// What every micro-batch goes through.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Problem {
    pub blocks: Vec<Block>,
    /// Of each device the most that it keeps at a time, if there is a limit.
    pub room: Vec<Option<i64>>,
}

/// Runs for one micro-batch, on all its devices at once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Block {
    pub name: String,
    /// In ascending order, at least one.
    pub devices: Vec<usize>,
    /// At least 1.
    pub time: i64,
    /// What each of its devices keeps from its beginning on; less than 0: what is free from its end on.
    pub memory: i64,
    /// The blocks that have ended, for the same micro-batch, before it begins.
    pub after: Vec<usize>,
}

impl Problem {
    /// As it is, if there is an order at all that goes on for ever.
    pub fn checked(self) -> Result<Self> {
        if self.blocks.is_empty() {
            return Err(Error::new("SW0371", "there are no blocks").fix("write `block F0 on 0: time 1`"));
        }
        if self.in_order().is_none() {
            let circle = self.circle();
            return Err(Error::new("SW0371", format!("blocks wait for each other in a cycle: {circle}"))
                .fix("leave one of these out of an `after`"));
        }
        let time: i64 = self.blocks.iter().map(|block| block.time).sum();
        if time > MOST_TIME {
            return Err(Error::new(
                "SW0371",
                format!("all blocks together take {time}, more than {MOST_TIME}"),
            )
            .fix("give times in a coarser unit"));
        }
        for device in (0..self.devices()).filter(|it| self.room[*it].is_some()) {
            let kept: i64 = self.blocks_on(device).map(|block| self.blocks[block].memory).sum();
            if kept != 0 {
                let word = if kept > 0 { "more" } else { "less" };
                let what = format!("device {device} keeps {} {word} after each micro-batch", kept.abs());
                return Err(Error::new("SW0371", what)
                    .why("so each micro-batch would need more room than the one before")
                    .fix("let a later block free it: `memory -1`"));
            }
        }
        Ok(self)
    }

    /// The names of blocks that wait for each other.
    fn circle(&self) -> String {
        let mut left: Vec<usize> = (0..self.blocks.len()).collect();
        loop {
            let count = left.len();
            let waits = |it: &usize| self.blocks[*it].after.iter().any(|other| left.contains(other));
            left = left.iter().copied().filter(|it| waits(it)).collect();
            if left.len() == count {
                break;
            }
        }
        let mut names: Vec<String> = vec![];
        let mut at = left.first().copied();
        while let Some(block) = at.filter(|it| !names.contains(&self.name(*it))) {
            names.push(self.name(block));
            at = self.blocks[block].after.iter().copied().find(|it| left.contains(it));
        }
        names.join(", ")
    }

    fn name(&self, block: usize) -> String {
        format!("`{}`", self.blocks[block].name)
    }

    pub fn devices(&self) -> usize {
        self.room.len()
    }

    /// The blocks of a device.
    pub fn blocks_on(&self, device: usize) -> impl Iterator<Item = usize> {
        (0..self.blocks.len()).filter(move |block| self.blocks[*block].devices.contains(&device))
    }

    /// How long a device works for a micro-batch.
    pub fn work(&self, device: usize) -> i64 {
        self.blocks_on(device).map(|block| self.blocks[block].time).sum()
    }

    /// How long the busiest device works for a micro-batch.
    pub fn most_work(&self) -> i64 {
        (0..self.devices()).map(|device| self.work(device)).max().unwrap_or(0)
    }

    /// The blocks so that none comes before what it waits for. None if they wait for each other in a circle.
    pub fn in_order(&self) -> Option<Vec<usize>> {
        let mut order: Vec<usize> = vec![];
        let mut done = vec![false; self.blocks.len()];
        while order.len() < self.blocks.len() {
            let is_next =
                |block: &usize| !done[*block] && self.blocks[*block].after.iter().all(|it| done[*it]);
            let next = (0..self.blocks.len()).find(is_next)?;
            done[next] = true;
            order.push(next);
        }
        Some(order)
    }

    /// Of each block the time from the first beginning of all to its own, if nothing but other blocks made it wait.
    pub fn heads(&self) -> Vec<i64> {
        let mut heads = vec![0; self.blocks.len()];
        for block in self.in_order().unwrap_or_default() {
            let ends = self.blocks[block].after.iter().map(|it| heads[*it] + self.blocks[*it].time);
            heads[block] = ends.max().unwrap_or(0);
        }
        heads
    }

    /// Of each block the time from its end to the last end of all, likewise.
    pub fn tails(&self) -> Vec<i64> {
        let mut tails = vec![0; self.blocks.len()];
        for block in self.in_order().unwrap_or_default().into_iter().rev() {
            for before in &self.blocks[block].after {
                tails[*before] = tails[*before].max(tails[block] + self.blocks[block].time);
            }
        }
        tails
    }

    /// So many micro-batches as one. They are alike, so each block runs for them in their order.
    pub(crate) fn copies(&self, batches: usize) -> Self {
        let count = self.blocks.len();
        let copy = |batch: usize| {
            self.blocks.iter().enumerate().map(move |(at, block)| {
                let last = batch.checked_sub(1).map(|last| last * count + at);
                let after = block.after.iter().map(|it| batch * count + it).chain(last).collect();
                Block { after, ..block.clone() }
            })
        };
        Self { blocks: (0..batches).flat_map(copy).collect(), room: self.room.clone() }
    }
}
