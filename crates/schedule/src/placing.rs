//! Places the tasks of one micro-batch in time so that the next ones follow at equal distance, one *span* after the
//! other, and no device ever has two things to do at once.
//!
//! Every task takes the first time that is free on its devices after all that it waits for; times that differ by spans
//! are the same, as the tasks of the neighbours lie there. What runs on several devices at once chooses its time in the
//! span before others do. The span is as long as the busiest device works for one micro-batch, or longer until
//! all tasks have found a place. A device then runs its tasks in the order of their places within a span, each for the
//! micro-batch whose it is at that time.

use crate::shape::{Pass, Shape, ShapeLoop, Task};

/// The tasks of a micro-batch, in time.
pub(crate) struct Placing<'s> {
    shape: &'s Shape,
    tasks: Vec<Placed>,
    span: i64,
}

/// A task, and its time.
#[derive(Clone, Copy)]
struct Placed {
    block: usize,
    pass: Pass,
    time: i64,
    length: i64,
    /// It begins not before this time.
    early: i64,
}

impl<'s> Placing<'s> {
    /// Of tasks that stand in an order in which they can run, where a whole backward takes so long beside all others. None
    /// if the first of some pairs cannot all come before the second.
    pub fn place(
        shape: &'s Shape,
        tasks: &[(usize, Pass)],
        before: &[(Task, Task)],
        backward: i64,
    ) -> Option<Self> {
        let length = |pass: Pass| if pass == Pass::Backward { backward } else { 1 };
        let task =
            |&(block, pass): &(usize, Pass)| Placed { block, pass, time: 0, length: length(pass), early: 0 };
        let tasks: Vec<Placed> = tasks.iter().map(task).collect();
        let has = |device: usize, task: &Placed| shape.blocks[task.block].devices.contains(&device);
        let work =
            |device: usize| tasks.iter().filter(|task| has(device, task)).map(|task| task.length).sum();
        let least: i64 = (0..shape.devices()).map(work).max().unwrap_or(0);
        let all: i64 = tasks.iter().map(|task| task.length).sum();
        (least.max(1)..=all.max(1)).find_map(|span| {
            let mut tasks = tasks.clone();
            // What comes later than it must moves all that waits for it, and that may move others.
            (0..=tasks.len()).find_map(|_| {
                let placing = Self::in_span(shape, tasks.clone(), span)?;
                let late = placing.late_for(before);
                if late.is_empty() {
                    return Some(Some(placing));
                }
                late.into_iter().for_each(|(at, early)| tasks[at].early = tasks[at].early.max(early));
                None
            })?
        })
    }

    /// Tasks that begin before one ends that must come before them, and when they may.
    fn late_for(&self, before: &[(Task, Task)]) -> Vec<(usize, i64)> {
        let find = |task: &Task| {
            self.tasks.iter().position(|placed| (placed.block, placed.pass) == (task.block, task.pass))
        };
        let early = |(first, then): &(Task, Task)| {
            let (from, to) = (find(first)?, find(then)?);
            let apart = i64::from(then.at) - i64::from(first.at);
            let early = self.tasks[from].time + self.tasks[from].length - apart * self.span;
            (self.tasks[to].time < early).then_some((to, early))
        };
        before.iter().filter_map(early).collect()
    }

    fn in_span(shape: &'s Shape, mut tasks: Vec<Placed>, span: i64) -> Option<Self> {
        let mut room = Room { shape, span, taken: vec![vec![false; span as usize]; shape.devices()] };
        wait_for_each_other(shape, &mut tasks, |task, early| Some(task.time.max(early)))?;
        let is_alone = |task: &Placed| shape.blocks[task.block].devices.len() == 1;
        for task in tasks.iter_mut().filter(|task| !is_alone(task)) {
            task.time = room.take(task, task.time)?;
        }
        let place = |task: &Placed, early: i64| match is_alone(task) {
            true => room.take(task, early),
            false => Some(early + (task.time - early).rem_euclid(span)),
        };
        wait_for_each_other(shape, &mut tasks, place)?;
        Some(Self { shape, tasks, span })
    }

    /// Lets gradients of parameters wait for spans, while a device keeps at most so many micro-batches of a block.
    pub fn late(&mut self, device: usize, most: usize) {
        for at in 0..self.tasks.len() {
            let key = (self.tasks[at].block, self.tasks[at].pass);
            let is_waited_for = self.shape.handed.iter().any(|(first, _)| *first == key);
            let is_own = self.shape.blocks[key.0].devices == [device] && !is_waited_for;
            while is_own && self.tasks[at].pass == Pass::Weights && self.kept(device) < most as i64 {
                self.tasks[at].time += self.span;
            }
        }
    }

    /// How many micro-batches of a block a device keeps at a time, of all its blocks together.
    fn kept(&self, device: usize) -> i64 {
        let kept = |block: usize| {
            let times = || self.tasks.iter().filter(move |task| task.block == block).map(|task| task.time);
            let (first, last) = (times().min().unwrap_or(0), times().max().unwrap_or(-1));
            (last - first).div_euclid(self.span) + 1
        };
        self.shape.blocks_of(device).map(kept).sum()
    }

    /// What a device runs.
    pub fn loop_of(&self, device: usize) -> Option<ShapeLoop> {
        let placed =
            || self.tasks.iter().filter(|task| self.shape.blocks[task.block].devices.contains(&device));
        let first = placed().next()?.time;
        let place = |task: &Placed| {
            let since = task.time - first;
            let at = i32::try_from(-since.div_euclid(self.span)).unwrap_or(0);
            (since.rem_euclid(self.span), Task { block: task.block, pass: task.pass, at })
        };
        let mut ordered: Vec<(i64, Task)> = placed().map(place).collect();
        ordered.sort_by_key(|(place, _)| *place);
        let first = ordered.iter().map(|(_, task)| task.at).min()?;
        let tasks = ordered.into_iter().map(|(_, task)| Task { at: task.at - first, ..task }).collect();
        Some(ShapeLoop { every: 1, iterations: None, tasks })
    }
}

/// The times of a span that devices have not given away.
struct Room<'s> {
    shape: &'s Shape,
    span: i64,
    taken: Vec<Vec<bool>>,
}

impl Room<'_> {
    /// The first time that all devices of a task have, not before another.
    fn take(&mut self, task: &Placed, early: i64) -> Option<i64> {
        let devices = &self.shape.blocks[task.block].devices;
        let places = |time: i64| {
            (time..time + task.length).map(|time| usize::try_from(time.rem_euclid(self.span)).unwrap_or(0))
        };
        let is_free =
            |time: &i64| places(*time).all(|place| devices.iter().all(|device| !self.taken[*device][place]));
        let time = (early..early + self.span).find(is_free)?;
        for place in places(time).collect::<Vec<_>>() {
            devices.iter().for_each(|device| self.taken[*device][place] = true);
        }
        Some(time)
    }
}

/// Gives each task its time, from the end of the last that it waits for.
fn wait_for_each_other(
    shape: &Shape,
    tasks: &mut [Placed],
    mut time: impl FnMut(&Placed, i64) -> Option<i64>,
) -> Option<()> {
    for at in 0..tasks.len() {
        let key = (tasks[at].block, tasks[at].pass);
        let before = tasks[..at].iter().filter(|task| shape.waits(key, (task.block, task.pass)));
        let early = before.map(|task| task.time + task.length).max().unwrap_or(0).max(tasks[at].early);
        tasks[at].time = time(&tasks[at], early)?;
    }
    Some(())
}

/// The forwards of all blocks.
pub(crate) fn forwards(shape: &Shape) -> Vec<(usize, Pass)> {
    (0..shape.blocks.len()).map(|block| (block, Pass::Forward)).collect()
}

/// A pass of all blocks that are trained, the last one first.
pub(crate) fn backwards(shape: &Shape, pass: Pass) -> Vec<(usize, Pass)> {
    let trained = (0..shape.blocks.len()).rev().filter(|block| shape.blocks[*block].trains);
    trained.map(|block| (block, pass)).collect()
}
