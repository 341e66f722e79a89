//! What is to be ordered, and orders.

use std::collections::HashSet;

/// The blocks of a model, each of which reads what earlier ones make.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shape {
    pub blocks: Vec<Block>,
    /// Of one micro-batch, passes of blocks of which a device keeps something of the first for the second, besides what blocks
    /// read of each other: what two blocks of a device read is received in the first of them, and what both give back is
    /// sent in the last.
    pub handed: Vec<(ShapeStep, ShapeStep)>,
}

/// A pass of a block.
pub type ShapeStep = (usize, Pass);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Block {
    /// The devices that run it, in ascending order. Those that do the same may be one.
    pub devices: Vec<usize>,
    pub trains: bool,
    /// The blocks that it reads something of.
    pub reads: Vec<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Pass {
    Forward,
    /// Both of the following in one.
    Backward,
    /// The gradients that earlier blocks wait for.
    Inputs,
    /// Those of parameters.
    Weights,
}

/// Tasks for `b` = ..., -every, 0, every, ...: those for what is no micro-batch are left out, and those that have run
/// in an earlier loop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShapeLoop {
    pub every: u32,
    /// So many turns, from `b` = 0 on; without that, all that there are.
    pub iterations: Option<u32>,
    pub tasks: Vec<Task>,
}

/// The loops of each device, one after the other.
pub type Orders = Vec<Vec<ShapeLoop>>;

/// A pass of a block, for the micro-batch that is `at` further than `b`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Task {
    pub block: usize,
    pub pass: Pass,
    pub at: i32,
}

impl Shape {
    pub fn devices(&self) -> usize {
        self.blocks.iter().flat_map(|block| &block.devices).max().map_or(0, |last| last + 1)
    }

    pub fn trains(&self) -> bool {
        self.blocks.iter().any(|block| block.trains)
    }

    /// The device of each block, if each has one.
    pub(crate) fn one_device_each(&self) -> Option<Vec<usize>> {
        let alone = |block: &Block| block.devices.first().copied().filter(|_| block.devices.len() == 1);
        self.blocks.iter().map(alone).collect()
    }

    /// Blocks of which one keeps something for another on a device, where that does not follow from what they read.
    #[must_use]
    pub fn handing_on(mut self, all: impl IntoIterator<Item = (ShapeStep, ShapeStep)>) -> Self {
        let new: Vec<(ShapeStep, ShapeStep)> =
            all.into_iter().filter(|(first, then)| !self.waits(*then, *first)).collect();
        self.handed.extend(new);
        self.handed.sort_unstable();
        self.handed.dedup();
        self
    }

    /// Whether a task waits for another one of the same micro-batch.
    pub fn waits(&self, (block, pass): ShapeStep, (other, done): ShapeStep) -> bool {
        let reads = |reader: usize, read: usize| self.blocks[reader].reads.contains(&read);
        if self.handed.contains(&((other, done), (block, pass))) {
            return true;
        }
        match (pass, done) {
            (Pass::Forward, Pass::Forward) => reads(block, other),
            (Pass::Backward | Pass::Inputs, Pass::Forward) => block == other,
            (Pass::Backward | Pass::Inputs, Pass::Backward | Pass::Inputs) => reads(other, block),
            (Pass::Weights, Pass::Inputs) => block == other,
            _ => false,
        }
    }

    /// The blocks of a device.
    pub fn blocks_of(&self, device: usize) -> impl Iterator<Item = usize> {
        (0..self.blocks.len()).filter(move |block| self.blocks[*block].devices.contains(&device))
    }
}

/// Whether the first task comes before the second one for every micro-batch, if both are there.
pub fn comes_before(loops: &[ShapeLoop], first: Task, then: Task) -> bool {
    let places = |wanted: Task| {
        let all = loops.iter().enumerate().flat_map(|(number, it)| {
            it.tasks.iter().enumerate().map(move |(place, task)| (number, i64::from(it.every), place, *task))
        });
        all.filter(move |row| (row.3.block, row.3.pass) == (wanted.block, wanted.pass)).collect::<Vec<_>>()
    };
    // Of the micro-batch that `first` is about, the turns of both.
    let fits = |a: &(usize, i64, usize, Task), b: &(usize, i64, usize, Task)| {
        let late = i64::from(a.3.at) - i64::from(first.at);
        let early = i64::from(b.3.at) - i64::from(then.at);
        match a.0 == b.0 {
            true => (late - early).rem_euclid(a.1) != 0 || (-late, a.2) < (-early, b.2),
            false => a.0 < b.0,
        }
    };
    let (firsts, thens) = (places(first), places(then));
    firsts.iter().all(|a| thens.iter().all(|b| fits(a, b)))
}

/// A task that is not for each micro-batch once, or not in their order.
pub fn not_in_turn(loops: &[ShapeLoop]) -> Option<Task> {
    let all =
        || loops.iter().enumerate().flat_map(|(at, it)| it.tasks.iter().map(move |task| (at, it, task)));
    let wrong = |(at, it, task): &(usize, &ShapeLoop, &Task)| {
        let same = |(other, _, candidate): &(usize, &ShapeLoop, &Task)| {
            ((candidate.block, candidate.pass) == (task.block, task.pass))
                .then_some((*other, i64::from(candidate.at)))
        };
        let placed: Vec<(usize, i64)> = all().filter_map(|row| same(&row)).collect();
        let every = i64::from(it.every);
        let next = placed[0].1 + every;
        let in_order = placed.iter().map(|row| row.1).chain([next]).collect::<Vec<_>>();
        placed.len() as i64 != every
            || placed.iter().any(|(other, _)| other != at)
            || in_order.windows(2).any(|two| two[0] >= two[1])
    };
    all().find(wrong).map(|(_, _, task)| *task)
}

/// What loops run of a step of so many micro-batches: tasks, and the micro-batch of each.
pub(crate) fn tasks(loops: &[ShapeLoop], batches: u32) -> Vec<(Task, u32)> {
    let mut run = HashSet::new();
    let all = loops.iter().flat_map(|it| it.tasks(batches));
    all.filter(|(task, batch)| run.insert((task.block, task.pass, *batch))).collect()
}

impl ShapeLoop {
    fn tasks(&self, batches: u32) -> Vec<(Task, u32)> {
        let (every, batches) = (i64::from(self.every), i64::from(batches));
        let far = self.tasks.iter().map(|task| i64::from(task.at).abs()).max().unwrap_or(0) / every + 1;
        let iterations = match self.iterations {
            Some(iterations) => 0..i64::from(iterations),
            None => -far..far + batches / every + 1,
        };
        let all = iterations
            .flat_map(|turn| self.tasks.iter().map(move |task| (*task, turn * every + i64::from(task.at))));
        let there = all.filter(|(_, batch)| (0..batches).contains(batch));
        there.filter_map(|(task, batch)| Some((task, u32::try_from(batch).ok()?))).collect()
    }
}
