//! A link between devices.

use crate::{Collective, Messages};

#[derive(Clone, Debug, PartialEq)]
pub struct Link {
    /// Bytes a second in each direction, of each device; of all devices of a node together where it is shared.
    pub bandwidth: f64,
    /// Seconds of a hop.
    pub latency: f64,
    /// Seconds before the first byte of a collective moves.
    pub start: f64,
    /// What of its bandwidth a large message reaches.
    pub reached: f64,
    pub shared: bool,
    /// Whether what connects the devices sums what they send, so that each sends and receives it once.
    pub sums: bool,
    /// What was measured of it, which is taken for what is of the same collective among as many devices.
    pub measured: Vec<Messages>,
}

impl Link {
    /// Bytes a second that a large message reaches.
    pub fn rate(&self) -> f64 {
        self.bandwidth * self.reached
    }

    /// Seconds of each byte of any message that was measured among so many devices, or from one to another.
    pub(crate) fn least_of_each(&self, devices: u32) -> f64 {
        let counts = |it: &&Messages| it.devices == devices || it.collective.is_none();
        self.measured.iter().filter(counts).map(|it| it.curve.least_of_each()).fold(f64::INFINITY, f64::min)
    }

    /// Seconds of a message among so many devices, if that was measured.
    pub(crate) fn measured(&self, collective: Option<Collective>, devices: u32, bytes: f64) -> Option<f64> {
        let found = self.measured.iter().find(|it| (it.collective, it.devices) == (collective, devices))?;
        Some(found.curve.seconds(bytes))
    }
}
