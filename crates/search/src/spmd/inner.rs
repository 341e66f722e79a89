//! A way to divide a run of segments, and what it takes.

use std::rc::Rc;

use super::objective::{Look, Totals, Weights};
use crate::pipeline::Stage;

/// Under the first a stage waits for what it sends at its end, under the second hardly.
pub(super) const LOOKS: [Look; 2] = [Look::hiding(0.25, 0.5), Look::hiding(0.02, 0.1)];
/// So much of what stages send each other is not hidden.
pub(super) const SENT: [f64; 2] = [1.0, 0.1];
/// What a byte costs, in as good as nothing.
pub(super) const PRICES: [f64; 5] = [1.0, 32.0, 256.0, 2048.0, 16384.0];

/// A look, a price, and of how many micro-batches something is kept.
pub(super) type InnerKey = (usize, usize, u32);

/// A way to divide a run, and to compute some of it again.
#[derive(Clone, Debug)]
pub(crate) struct Inner {
    pub(super) fallback: usize,
    /// How many of its layers are recomputed, the first ones, if not all are that its rung recomputes.
    pub(super) recomputed: Option<usize>,
    pub(super) asked: InnerKey,
    pub(super) values: Rc<[usize]>,
    pub(super) weights: Weights,
    /// Seconds of a micro-batch, forward and backward.
    pub(super) forward: f64,
    pub(super) backward: f64,
    pub(super) totals: Totals,
    /// Bytes that forward keeps of a micro-batch.
    pub(super) kept: f64,
    /// Bytes that are there besides while it computes: what an operator reads and makes, and what a recomputed layer keeps.
    pub(super) working: f64,
    /// Bytes that all devices need of what comes from before the run, and hold of what goes on behind it.
    pub(super) crossing: (f64, f64),
}

/// What a way to divide a run is least in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunClaim {
    pub(super) fallback: usize,
    pub(super) asked: InnerKey,
    /// The price of a byte.
    pub(super) byte: f64,
    pub(super) kept: u32,
}

impl Inner {
    /// What the pipeline is told of it.
    pub(crate) fn stage(&self) -> Stage {
        let it = &self.totals;
        Stage {
            forward: self.forward,
            backward: self.backward,
            tail: (it.late - it.last).max(0.0) + it.updates,
            busy: it.least(),
            takes: self.crossing.0,
            gives: self.crossing.1,
        }
    }

    /// What it is least in, where it is kept of so many micro-batches.
    pub(crate) fn claim(&self, kept: u32) -> RunClaim {
        RunClaim { fallback: self.fallback, asked: self.asked, byte: self.weights.byte, kept }
    }

    /// As few of `layers` recomputed as fit where so many micro-batches are kept; `none` is the same with none of them.
    /// Layers are taken to be equal. None where that is all of them, or none.
    pub(super) fn with_fewer(&self, none: &Self, layers: usize, kept: u32, limit: f64) -> Option<Self> {
        let (more, less) = (none.bytes(kept), self.bytes(kept));
        let share = (more - limit) / (more - less);
        let count = (share * layers as f64).ceil();
        if !(0.0 < count && count < layers as f64) {
            return None;
        }
        let share = count / layers as f64;
        let mix = |none: f64, all: f64| none + share * (all - none);
        Some(Self {
            recomputed: Some(count as usize),
            forward: mix(none.forward, self.forward),
            backward: mix(none.backward, self.backward),
            totals: none.totals.mixed(&self.totals, mix),
            kept: mix(none.kept, self.kept),
            crossing: (mix(none.crossing.0, self.crossing.0), mix(none.crossing.1, self.crossing.1)),
            ..self.clone()
        })
    }

    /// Where it is kept of so many micro-batches.
    pub(super) fn bytes(&self, kept: u32) -> f64 {
        self.totals.bytes + (f64::from(kept) - 1.0) * self.kept + self.working
    }
}
