//! What the stages before a place take at least, however they are made.

use std::collections::HashMap;

use super::ask::{Ask, Costs, Run, begins, left};

/// Seconds of a micro-batch in what comes before a stage.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Ahead {
    /// In one stage after the other: forward, and forward and backward.
    pub(super) forward: f64,
    pub(super) through: f64,
    /// In the one that takes most.
    pub(super) busy: f64,
}

/// Of each place that was asked for, in the model and among the devices; none if no stages that are quick enough end there.
pub(super) struct Before<'a> {
    ask: Ask<'a>,
    known: HashMap<(usize, u32), Option<Ahead>>,
}

impl<'a> Before<'a> {
    pub(super) fn new(ask: Ask<'a>) -> Self {
        Self { ask, known: HashMap::new() }
    }

    pub(super) fn ahead_of(&mut self, costs: &mut dyn Costs, segment: usize, device: u32) -> Option<Ahead> {
        if device == 0 {
            return (segment == 0).then_some(Ahead::default());
        }
        if let Some(known) = self.known.get(&(segment, device)) {
            return *known;
        }
        let ahead = self.looked_for(costs, segment, device);
        self.known.insert((segment, device), ahead);
        ahead
    }

    /// The least of each over all last stages that may be before a place.
    fn looked_for(&mut self, costs: &mut dyn Costs, segment: usize, device: u32) -> Option<Ahead> {
        // Where it is late nothing is made of what is found here.
        if self.ask.stop.is_late() {
            return None;
        }
        // There is a stage behind them.
        let kept = self.ask.batches.min(2);
        let mut best: Option<Ahead> = None;
        for size in costs.groups(device) {
            let first = device - size;
            for from in begins(&self.ask, costs, segment, (first, device)) {
                let run = Run { segments: (from, segment), devices: (first, device) };
                let Some(stage) = costs.at_least(run, kept).filter(|stage| stage.busy <= self.ask.below)
                else {
                    continue;
                };
                let Some(before) = self.ahead_of(costs, from, first) else { continue };
                let through = before.through + stage.forward + stage.backward;
                let all = Ahead { forward: before.forward + stage.forward, through, busy: 0.0 };
                best = Some(best.map_or(all, |known| known.lesser(all)));
            }
        }
        let busy = left(costs, segment, device);
        best.map(|ahead| Ahead { through: ahead.through.max(busy), busy, ..ahead })
    }
}

impl Ahead {
    fn lesser(self, other: Self) -> Self {
        let (forward, through) = (self.forward.min(other.forward), self.through.min(other.through));
        Self { forward, through, ..self }
    }
}
