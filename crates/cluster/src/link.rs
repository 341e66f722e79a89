//! A link between devices.

use crate::{Collective, Messages};

/// GB/s each way of PCIe of the fourth generation.
pub(crate) const BUS: f64 = 25.0;
const GIGA: f64 = 1e9;
const MICRO: f64 = 1e-6;

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
        let measurement =
            self.measured.iter().find(|it| (it.collective, it.devices) == (collective, devices))?;
        Some(measurement.curve.seconds(bytes))
    }
}

pub(crate) fn nvlink(bandwidth: f64, sums: bool) -> Link {
    Link {
        bandwidth: bandwidth * GIGA,
        latency: 3.4 * MICRO,
        start: 8.4 * MICRO,
        reached: 0.77,
        shared: false,
        sums,
        measured: vec![],
    }
}

pub(crate) fn pcie() -> Link {
    Link { latency: 5.0 * MICRO, ..shared(BUS) }
}

/// Between devices that have no access to each other's memory, on buses of so many GB/s.
///
/// NCCL takes what they send through the host's memory: the sender writes it there, and the receiver reads it. So every
/// byte crosses the buses and the host's memory twice, and half as many get through. A hop takes as long as copies
/// between such devices do.
pub(crate) fn over_host(bus: f64) -> Link {
    Link { latency: 14.0 * MICRO, ..shared(bus / 2.0) }
}

/// A network of so many Gbit/s.
pub(crate) fn network(gigabits: f64, shared: bool) -> Link {
    Link {
        bandwidth: gigabits / 8.0 * GIGA,
        latency: 14.0 * MICRO,
        start: 20.0 * MICRO,
        reached: 0.85,
        shared,
        sums: false,
        measured: vec![],
    }
}

/// What the devices of a node have together.
pub(crate) fn shared(gigabytes: f64) -> Link {
    Link { shared: true, ..network(gigabytes * 8.0, true) }
}
