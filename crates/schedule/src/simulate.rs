//! Runs the orders of devices with given times: who waits how long.

use std::collections::BTreeMap;

use crate::shape::{Pass, Shape, ShapeLoop, Task, tasks};

/// How long each pass of a block takes. What is sent is there at once.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    pub forward: u64,
    pub inputs: u64,
    pub weights: u64,
}

/// What a device did: each of its tasks with the micro-batch and the time at which it began.
#[derive(Clone, Debug, Default)]
pub struct Lane {
    pub tasks: Vec<(Task, u32, u64)>,
    pub busy: u64,
    pub end: u64,
}

impl Times {
    /// A whole backward takes as long as two forwards.
    pub const EQUAL: Times = Times { forward: 1, inputs: 1, weights: 1 };

    pub fn length(&self, pass: Pass) -> u64 {
        match pass {
            Pass::Forward => self.forward,
            Pass::Backward => self.inputs + self.weights,
            Pass::Inputs => self.inputs,
            Pass::Weights => self.weights,
        }
    }
}

impl Lane {
    /// For how long it waited between its first task and its last.
    pub fn waited(&self) -> u64 {
        self.end - self.tasks.first().map_or(self.end, |task| task.2) - self.busy
    }
}

/// Who waits for ever, and in which task for which micro-batch.
pub type Stuck = Vec<(usize, Task, u32)>;

/// What devices do, if they come to their ends.
pub fn simulate(
    shape: &Shape,
    orders: &[Vec<ShapeLoop>],
    batches: u32,
    times: Times,
) -> Result<Vec<Lane>, Stuck> {
    let steps: Vec<Vec<(Task, u32)>> = orders.iter().map(|loops| tasks(loops, batches)).collect();
    let mut lanes = vec![Lane::default(); steps.len()];
    let mut done: BTreeMap<(usize, Pass, u32), u64> = BTreeMap::new();
    loop {
        let heads = lanes.iter().zip(&steps).map(|(lane, step)| step.get(lane.tasks.len()).copied());
        let heads: Vec<Option<(Task, u32)>> = heads.collect();
        let mut moved = false;
        for device in 0..steps.len() {
            let Some((task, batch)) = heads[device] else { continue };
            // Not all devices of a block have something to do in each of its passes.
            let runs = |device: &&usize| {
                let mut tasks = orders[**device].iter().flat_map(|it| &it.tasks);
                tasks.any(|other| (other.block, other.pass) == (task.block, task.pass))
            };
            let together: Vec<usize> =
                shape.blocks[task.block].devices.iter().filter(runs).copied().collect();
            let same = |other: &usize| {
                heads[*other].is_some_and(|(head, micro_batch)| {
                    (head.block, head.pass, micro_batch) == (task.block, task.pass, batch)
                })
            };
            let first = together.first() == Some(&device);
            let Some(ready) = ready(shape, task.block, task.pass, batch, &done).filter(|_| first) else {
                continue;
            };
            if !together.iter().all(same) {
                continue;
            }
            let start = together.iter().map(|device| lanes[*device].end).max().unwrap_or(0).max(ready);
            for lane in &together {
                let head = heads[*lane].map_or(task, |(head, _)| head);
                lanes[*lane].tasks.push((head, batch, start));
                lanes[*lane].busy += times.length(task.pass);
                lanes[*lane].end = start + times.length(task.pass);
            }
            done.insert((task.block, task.pass, batch), start + times.length(task.pass));
            moved = true;
        }
        if !moved {
            let waits = |(device, head): (usize, &Option<(Task, u32)>)| {
                head.map(|(task, batch)| (device, task, batch))
            };
            let stuck: Stuck = heads.iter().enumerate().filter_map(waits).collect();
            return if stuck.is_empty() { Ok(lanes) } else { Err(stuck) };
        }
    }
}

/// When all is there that a task waits for.
fn ready(
    shape: &Shape,
    block: usize,
    pass: Pass,
    batch: u32,
    done: &BTreeMap<(usize, Pass, u32), u64>,
) -> Option<u64> {
    let end_of = |block: usize, pass: Pass| done.get(&(block, pass, batch)).copied();
    let gradient = |block: usize| end_of(block, Pass::Backward).or_else(|| end_of(block, Pass::Inputs));
    let mut all: Vec<Option<u64>> = vec![];
    match pass {
        Pass::Forward => {
            all.extend(shape.blocks[block].reads.iter().map(|read| end_of(*read, Pass::Forward)));
        }
        Pass::Backward | Pass::Inputs => {
            all.push(end_of(block, Pass::Forward));
            let readers = (0..shape.blocks.len()).filter(|other| shape.blocks[*other].reads.contains(&block));
            all.extend(readers.filter(|other| shape.blocks[*other].trains).map(gradient));
        }
        Pass::Weights => all.push(end_of(block, Pass::Inputs)),
    }
    let handed = shape.handed.iter().filter(|(_, then)| *then == (block, pass));
    all.extend(handed.map(|((first, done), _)| end_of(*first, *done)));
    all.into_iter().try_fold(0, |latest, time| Some(latest.max(time?)))
}
