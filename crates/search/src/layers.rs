//! The layers of a plan, of which as many are dealt with as memory asks for.

use std::collections::BTreeMap;

use compiler::Memory;
use graph::OpId;
use plan::Plan;

use crate::Question;

/// Those that a plan computes again, of each block in the model's order, and the devices that run it.
pub(crate) struct Layers {
    spans: Vec<Vec<usize>>,
    devices: Vec<Vec<u32>>,
}

impl Layers {
    pub(crate) fn new(plan: &Plan) -> Self {
        let mut spans: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for (number, span) in plan.recompute.iter().enumerate() {
            spans.entry(plan.block(span[0])).or_default().push(number);
        }
        let devices = |block: &u32| {
            let ops = (0..plan.ops.len()).map(OpId::new).filter(|op| plan.block(*op) == *block);
            let mut lists: Vec<&[u32]> = ops.map(|op| &plan.op(op).devices[..]).collect();
            // Most operators share a list.
            lists.dedup_by_key(|list| list.as_ptr());
            let mut devices = lists.concat();
            devices.sort_unstable();
            devices.dedup();
            devices
        };
        Self { devices: spans.keys().map(devices).collect(), spans: spans.into_values().collect() }
    }

    pub(crate) fn all(&self) -> Vec<usize> {
        self.spans.iter().map(Vec::len).collect()
    }

    /// For how many layers of each block memory asks that something is done, if that saves as much of each as of any other:
    /// with it for all, and for none.
    pub(crate) fn counts(&self, question: &Question<'_>, with: &[Memory], without: &[Memory]) -> Vec<usize> {
        let share = |device: &u32| {
            let [with, without] = [with, without].map(|memory| memory[*device as usize].total() as f64);
            let there = question.there(*device) as f64;
            if without > with { ((without - there) / (without - with)).clamp(0.0, 1.0) } else { 1.0 }
        };
        let count_of = |(spans, devices): (&Vec<usize>, &Vec<u32>)| {
            let most = devices.iter().map(share).fold(0.0, f64::max);
            (most * spans.len() as f64).ceil() as usize
        };
        self.spans.iter().zip(&self.devices).map(count_of).collect()
    }

    /// The numbers of so many of the first layers of each block.
    pub(crate) fn first(&self, counts: &[usize]) -> Vec<usize> {
        let first_spans = |(spans, count): (&Vec<usize>, &usize)| spans[..*count].to_vec();
        sorted(self.spans.iter().zip(counts).flat_map(first_spans).collect())
    }

    /// Of so many of each block those that lie among the others as evenly as they can, not at its end.
    pub(crate) fn between(&self, counts: &[usize]) -> Vec<usize> {
        let saved_span = |(spans, count): (&Vec<usize>, &usize)| {
            let (all, count) = (spans.len(), *count);
            let until = move |at: usize| (at * count + all / 2) / all;
            let is_one = move |at: &usize| until(at + 1) > until(*at);
            (0..all).filter(is_one).map(|at| spans[at]).collect::<Vec<_>>()
        };
        sorted(self.spans.iter().zip(counts).flat_map(saved_span).collect())
    }
}

fn sorted(mut numbers: Vec<usize>) -> Vec<usize> {
    numbers.sort_unstable();
    numbers
}
