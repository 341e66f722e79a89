//! Blocks on their devices: who runs which, and in which order.

use std::collections::BTreeSet;

use program::{Body, Loop, Pass, RankId, Task, Timetable, When};
use schedule::{Block, Shape};

use crate::project::Projected;
use crate::uses::Context;

/// The ranks that run operators of a block.
pub fn owners(cx: &Context<'_>, block: u32) -> BTreeSet<RankId> {
    let own = cx.order.iter().filter(|op| cx.plan.block(**op) == block);
    own.flat_map(|op| &cx.plan.op(*op).devices).copied().map(RankId).collect()
}

/// Gives all ranks their timetables. Those that run the same codes have the same.
pub fn timetables(cx: &Context<'_>, projected: &mut [Projected]) {
    let mut alike: Vec<Vec<(u32, Pass)>> = vec![];
    let number = |it: &Projected| {
        let codes = codes(&it.body);
        let known = alike.iter().position(|other| *other == codes);
        known.unwrap_or_else(|| {
            alike.push(codes);
            alike.len() - 1
        })
    };
    let of: Vec<usize> = projected.iter().map(number).collect();
    let orders = cx.plan.schedule.order(&shape(cx, &alike));
    for (it, device) in projected.iter_mut().zip(of) {
        let there = |pass: Pass| it.body.codes_of(pass).next().is_some();
        let (begins, ends) = (there(Pass::Begin), there(Pass::End));
        let loops = orders.get(device).into_iter().flatten().map(|own| looped(own, &alike[device]));
        let loops = loops.filter(|it| !it.tasks.is_empty()).collect();
        it.body.timetable = Timetable { begins, loops, ends };
    }
}

fn codes(body: &Body) -> Vec<(u32, Pass)> {
    let run = body.codes.iter().filter(|code| !matches!(code.pass, Pass::Begin | Pass::End));
    run.map(|code| (code.block, code.pass)).collect()
}

/// The blocks on those who run the same codes.
fn shape(cx: &Context<'_>, alike: &[Vec<(u32, Pass)>]) -> Shape {
    let mut blocks: Vec<Block> = (0..cx.plan.block_count()).map(|_| Block::default()).collect();
    for (device, codes) in alike.iter().enumerate() {
        for &(block, pass) in codes {
            let block = &mut blocks[block as usize];
            block.trains |= pass.is_backward();
            if block.devices.last() != Some(&device) {
                block.devices.push(device);
            }
        }
    }
    for op in cx.graph.op_ids() {
        let reader = cx.plan.block(op);
        for (maker, _) in cx.graph.op(op).inputs().into_iter().filter_map(|tensor| cx.graph.producer(tensor))
        {
            let (maker, reads) = (cx.plan.block(maker), &mut blocks[reader as usize].reads);
            if maker != reader && !reads.contains(&(maker as usize)) {
                reads.push(maker as usize);
            }
        }
    }
    Shape { blocks }
}

/// A loop of those who have these codes.
fn looped(order: &schedule::Loop, codes: &[(u32, Pass)]) -> Loop {
    let task = |task: &schedule::Task| {
        let block = u32::try_from(task.block).unwrap_or(u32::MAX);
        let made = match task.pass {
            schedule::Pass::Forward => Task::forward(block),
            schedule::Pass::Backward => Task::backward(block, When::Last),
            schedule::Pass::Inputs => Task::inputs(block),
            schedule::Pass::Weights => Task::weights(block, When::Last),
        };
        codes.contains(&(block, made.pass())).then(|| made.at(task.at))
    };
    Loop { every: order.every, tasks: order.tasks.iter().filter_map(task).collect() }
}
