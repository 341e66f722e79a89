//! Pipelines whose first stage is on the last devices, and whose last one is on the first.
//!
//! Where all nodes are the same, these are as quick as the others. Where they differ, it matters which of them has the end
//! of the model.

use std::rc::Rc;

use super::ask::{Costs, Run};
use super::cuts::Pipeline;
use super::flow::{Flow, Stage};

/// Costs of stages on devices that are counted from the last one.
pub(super) struct Reversed<'c> {
    costs: &'c mut dyn Costs,
    devices: u32,
    /// By the end of groups, counted so, how many devices they have.
    sizes: Vec<Vec<u32>>,
}

impl<'c> Reversed<'c> {
    pub(super) fn new(costs: &'c mut dyn Costs, devices: u32) -> Self {
        let mut sizes = vec![vec![]; devices as usize + 1];
        for end in 1..=devices {
            for size in costs.groups(end) {
                sizes[(devices - (end - size)) as usize].push(size);
            }
        }
        sizes.iter_mut().for_each(|sizes| sizes.sort_unstable());
        Self { costs, devices, sizes }
    }

    /// The same run, its devices counted from the other end.
    fn turned(&self, run: Run) -> Run {
        let (first, end) = run.devices;
        Run { devices: (self.devices - end, self.devices - first), ..run }
    }

    /// A pipeline on devices that are counted from the first one.
    pub(super) fn pipeline(&self, mut pipeline: Pipeline) -> Pipeline {
        pipeline.stages.iter_mut().for_each(|stage| stage.run = self.turned(stage.run));
        pipeline
    }
}

impl Costs for Reversed<'_> {
    fn groups(&self, end: u32) -> Vec<u32> {
        self.sizes[end as usize].clone()
    }

    fn ways(&mut self, run: Run, kept: u32, below: f64) -> Rc<[Stage]> {
        self.costs.ways(self.turned(run), kept, below)
    }

    fn busy(&mut self, run: Run) -> f64 {
        self.costs.busy(self.turned(run))
    }

    fn at_least(&mut self, run: Run, kept: u32) -> Option<Stage> {
        self.costs.at_least(self.turned(run), kept)
    }

    fn sent(&self, from: (Run, &Stage), to: (Run, &Flow)) -> (f64, f64) {
        self.costs.sent((self.turned(from.0), from.1), (self.turned(to.0), to.1))
    }

    fn least(&self, segments: usize, devices: u32) -> f64 {
        self.costs.least(segments, devices)
    }

    fn is_enough(&self) -> bool {
        self.costs.is_enough()
    }
}
