//! What no step can be shorter than.

use crate::problem::{Block, Problem};

/// What runs on all devices, every other block waits for. Of the rest each device begins when the first of its blocks can, works for
/// all micro-batches, and has what follows its last block behind it; and one micro-batch goes through the longest chain.
pub fn makespan_bound(problem: &Problem, batches: usize) -> i64 {
    let (together, apart) = divided(problem);
    batches as i64 * together
        + of_devices(&apart, batches).max(of_devices(problem, batches) - batches as i64 * together)
}

fn of_devices(problem: &Problem, batches: usize) -> i64 {
    let (heads, tails) = (problem.heads(), problem.tails());
    let least = |device: usize, of: &[i64]| problem.of(device).map(|it| of[it]).min().unwrap_or(0);
    let device = |it: usize| least(it, &heads) + batches as i64 * problem.work(it) + least(it, &tails);
    let chain = heads.iter().zip(&tails).zip(&problem.blocks).map(|((head, tail), it)| head + it.time + tail);
    (0..problem.devices()).map(device).chain(chain).max().unwrap_or(0)
}

/// How long blocks on all devices take, and the problem without them. Whatever the order, their times can be cut out
/// of a step, and what is left is a step of all others.
fn divided(problem: &Problem) -> (i64, Problem) {
    let mut rest = problem.clone();
    let mut time = 0;
    for at in 0..rest.blocks.len() {
        if rest.blocks[at].devices.len() < problem.devices() || problem.devices() == 1 {
            continue;
        }
        let own = std::mem::take(&mut rest.blocks[at]);
        time += own.time;
        for block in &mut rest.blocks {
            pass_on(block, at, &own.after);
        }
        // Of no time on no device it stands for nothing, and nothing waits for it.
        rest.blocks[at].name = own.name;
    }
    (time, rest)
}

/// A block waits for what another one waited for, in its place.
fn pass_on(block: &mut Block, at: usize, after: &[usize]) {
    if block.after.contains(&at) {
        block.after.retain(|it| *it != at);
        block.after.extend(after);
    }
}
