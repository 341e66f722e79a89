//! Several blocks on each device, in turns round all of them, as many micro-batches together as there are devices.

use crate::shape::{Orders, Pass, Shape, ShapeLoop, Task};

/// None where devices do not take turns, or not more than once.
pub(crate) fn interleaved(shape: &Shape) -> Option<Orders> {
    let (devices, blocks) = (shape.devices(), &shape.blocks);
    let all = shape.one_device_each()?;
    let (round, levels) = (all.get(..devices)?, all.len() / devices.max(1));
    let has_iterations = all.chunks(devices.max(1)).all(|turn| turn == round);
    if levels < 2 || !has_iterations || (0..devices).any(|device| !round.contains(&device)) {
        return None;
    }
    let mut orders = vec![vec![]; devices];
    for (place, device) in round.iter().enumerate() {
        let mut it = loop_of(place, devices, levels);
        it.tasks.retain(|task| task.pass == Pass::Forward || blocks[task.block].trains);
        orders[*device] = vec![it];
    }
    Some(orders)
}

/// One forward, one backward, of all levels. The first device begins backward when the first micro-batch is back from the
/// last one; each further device is so much nearer.
fn loop_of(device: usize, devices: usize, levels: usize) -> ShapeLoop {
    let ahead = 2 * (devices - 1 - device) + (levels - 1) * devices;
    let forward = |number: usize| {
        let (level, batch) = nth(number + ahead, devices, levels);
        Task { block: level * devices + device, pass: Pass::Forward, at: batch }
    };
    let backward = |number: usize| {
        let (level, batch) = nth(number, devices, levels);
        Task { block: (levels - 1 - level) * devices + device, pass: Pass::Backward, at: batch }
    };
    let tasks = (0..devices * levels).flat_map(|number| [forward(number), backward(number)]);
    ShapeLoop { every: u32::try_from(devices).unwrap_or(u32::MAX), iterations: None, tasks: tasks.collect() }
}

/// The level and micro-batch of the task with a number.
fn nth(number: usize, devices: usize, levels: usize) -> (usize, i32) {
    let batch = number / (devices * levels) * devices + number % devices;
    (number / devices % levels, i32::try_from(batch).unwrap_or(i32::MAX))
}
