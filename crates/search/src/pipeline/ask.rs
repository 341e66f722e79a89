//! What is asked of cuts, what stages cost, and where a stage may begin.

use std::ops::Range;
use std::rc::Rc;

use super::flow::{Flow, Stage};
use crate::Stop;

/// Some segments of a model on some devices, from one to before another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Run {
    pub segments: (usize, usize),
    pub devices: (u32, u32),
}

/// What is asked.
#[derive(Clone, Copy)]
pub struct Ask<'s> {
    pub segments: usize,
    pub devices: u32,
    pub batches: u32,
    pub stages: u32,
    /// What takes longer is not wanted, and nothing takes less than the floor.
    pub below: f64,
    pub floor: f64,
    /// Nor is what has a stage that takes longer even if it never waits.
    pub busy: f64,
    /// When it is late, nothing more is looked at.
    pub stop: Stop<'s>,
}

/// What stages cost.
pub trait Costs {
    /// How many devices a stage may have that ends before a device.
    fn groups(&self, end: u32) -> Vec<u32>;
    /// Ways to divide a run within its devices that fit into memory where so many micro-batches are kept.
    /// Of such as take longer than `below` for all micro-batches none need be given.
    fn ways(&mut self, run: Run, kept: u32, below: f64) -> Rc<[Stage]>;
    /// Seconds that any of them takes at least if it never waits: of a run with more segments no less.
    fn busy(&mut self, run: Run) -> f64;
    /// What any of them takes at least, known before they are; none if there is none.
    fn at_least(&mut self, run: Run, kept: u32) -> Option<Stage>;
    /// Seconds in which a micro-batch is sent from one stage to the next, and back.
    fn sent(&self, from: (Run, &Stage), to: (Run, &Flow)) -> (f64, f64);
    /// Device-seconds that a micro-batch takes in the first segments, at least, on so many devices, which have stages behind
    /// them: in more segments no less.
    fn least(&self, segments: usize, devices: u32) -> f64;
    /// Whether so much was looked at that it is enough.
    fn is_enough(&self) -> bool {
        false
    }
}

/// Where a stage may begin that ends before a segment: no further back than it is quick enough, and far enough for what
/// comes before it to be. Those on the first devices begin with the model, and no others.
pub(super) fn begins(
    ask: &Ask<'_>,
    costs: &mut dyn Costs,
    segment: usize,
    devices: (u32, u32),
) -> Range<usize> {
    let (first, _) = devices;
    let is_left = |from: usize| f64::from(ask.batches) * left(costs, from, first) <= ask.below;
    let end = if first == 0 { 1 } else { first_of(1..segment, |from| !is_left(from)) };
    let mut is_quick = |from: usize| costs.busy(Run { segments: (from, segment), devices }) <= ask.below;
    match first {
        0 if is_quick(0) => 0..1,
        0 => 0..0,
        _ => first_of(1..end, is_quick)..end,
    }
}

/// The first of a row of numbers of which something holds, as it does of all after it; else the end.
fn first_of(candidate: Range<usize>, mut holds: impl FnMut(usize) -> bool) -> usize {
    let (mut low, mut high) = (candidate.start, candidate.end);
    while low < high {
        let middle = usize::midpoint(low, high);
        if holds(middle) { high = middle } else { low = middle + 1 }
    }
    low
}

/// Seconds of a micro-batch in what comes before a stage, on the devices that are left for that.
pub(super) fn left(costs: &dyn Costs, segment: usize, device: u32) -> f64 {
    if device == 0 { 0.0 } else { costs.least(segment, device) / f64::from(device) }
}
