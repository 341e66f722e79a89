//! One block on each device, and steps that follow each other without a pause: one forward, one backward, also over the
//! ends of steps. A stage is as many micro-batches behind with its backwards as stages follow it.

use crate::shape::{Orders, Pass, Shape, ShapeLoop, Task};

/// None where a device has several blocks.
pub(crate) fn two_bw(shape: &Shape) -> Option<Orders> {
    (0..shape.devices()).map(|device| loops_of(shape, device)).collect()
}

fn loops_of(shape: &Shape, device: usize) -> Option<Vec<ShapeLoop>> {
    let mut blocks = shape.blocks_of(device);
    let Some(block) = blocks.next() else { return Some(vec![]) };
    let behind = i32::try_from(shape.blocks.len() - 1 - block).ok()?;
    let forward = Task { block, pass: Pass::Forward, at: 0 };
    let backward = Task { block, pass: Pass::Backward, at: -behind };
    let trains = shape.blocks[block].trains.then_some(backward);
    let tasks = std::iter::once(forward).chain(trains).collect();
    blocks.next().is_none().then(|| vec![ShapeLoop { every: 1, iterations: None, tasks }])
}
