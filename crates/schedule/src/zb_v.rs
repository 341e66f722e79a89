//! Two blocks on each device, in a V: micro-batches go down through the first blocks of all devices and come up through
//! the second ones, so that the device that begins is the one that ends. Gradients of parameters fill what is left.
//!
//! Until its first micro-batch is back a device runs forwards of its first block, as many as are kept under
//! `1f1b`, and no device waits. In the steady state fewer are under way, as a micro-batch is sooner back, and in their
//! place gradients of parameters are kept for the end: the last device in the V, whose gradients all others wait for, keeps the most.

use crate::shape::{Orders, Pass, Shape, ShapeLoop, Task};

/// None where blocks do not lie in a V.
pub(crate) fn zb_v(shape: &Shape) -> Option<Orders> {
    let devices = shape.devices();
    let all = shape.one_device_each()?;
    let (down, up) = (all.get(..devices)?, all.get(devices..)?);
    if !up.iter().eq(down.iter().rev()) || (0..devices).any(|device| !down.contains(&device)) {
        return None;
    }
    let mut orders = vec![vec![]; devices];
    for (stage, device) in down.iter().enumerate() {
        let mut loops = loops_of(i32::try_from(stage).ok()?, i32::try_from(devices).ok()?);
        for it in &mut loops {
            it.tasks.retain(|task| task.pass == Pass::Forward || shape.blocks[task.block].trains);
        }
        loops.retain(|it| it.iterations != Some(0));
        orders[*device] = loops;
    }
    Some(orders)
}

/// The loops of a stage: until its first gradients are there, until those of its first block are there, and from then on.
/// What the first two need of other stages runs in the first two of these.
fn loops_of(stage: i32, stages: i32) -> Vec<ShapeLoop> {
    use Pass::{Forward, Inputs, Weights};
    let (behind, half) = (stages - 1 - stage, (stage + 1) / 2);
    let first = |pass: Pass, at: i32| Task { block: stage as usize, pass, at };
    let second = |pass: Pass, at: i32| Task { block: (2 * stages - 1 - stage) as usize, pass, at };
    let forwards = vec![first(Forward, 0), second(Forward, -2 * behind)];
    let gradients = vec![second(Inputs, 0), second(Weights, 0), second(Forward, stage + 1)];
    let (down, up) = (first(Forward, stages - half), second(Forward, half));
    let back = [second(Inputs, 0), first(Inputs, -behind)];
    let (late, weights) = (second(Weights, -stage), first(Weights, -behind));
    // Against the gradients, forwards of the next stage are half a turn of six later or earlier: those of both blocks
    // change their places from one stage to the next.
    let all = match stage % 2 {
        0 => vec![up, back[0], back[1], late, weights, down],
        _ => vec![down, late, back[0], back[1], up, weights],
    };
    let iterations =
        |count: i32, tasks: Vec<Task>| ShapeLoop { every: 1, iterations: u32::try_from(count).ok(), tasks };
    vec![
        iterations(stages + behind, forwards),
        iterations(behind, gradients),
        ShapeLoop { every: 1, iterations: None, tasks: all },
    ]
}
