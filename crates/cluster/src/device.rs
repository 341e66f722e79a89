//! A device, and how long it needs for work.

use graph::Dtype;

#[derive(Clone, Debug, PartialEq)]
pub struct Device {
    pub name: String,
    /// Bytes.
    pub memory: u64,
    /// Bytes a second, of its memory.
    pub bandwidth: f64,
    /// Operations a second, by type; a type that has none runs as the next wider one.
    pub peak: Vec<(Dtype, f64)>,
    /// Seconds to start an operator.
    pub overhead: f64,
    /// What of its peak and of its bandwidth a large operator reaches.
    pub reached: (f64, f64),
    /// Bytes a second from and to the host.
    pub host: f64,
}

/// Some work: operations and bytes that are moved.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Effort {
    pub operations: f64,
    pub bytes: f64,
}

/// From the narrowest to the widest.
const WIDER: [Dtype; 4] = [Dtype::Bf16, Dtype::F16, Dtype::F32, Dtype::F64];

impl Device {
    /// How long an operator takes: as long as what it computes or what it moves, whichever is more, after its start.
    pub fn seconds(&self, effort: Effort, dtype: Dtype) -> f64 {
        if effort == Effort::default() {
            return 0.0;
        }
        let computes = effort.operations / (self.peak_of(dtype) * self.reached.0);
        let moves = effort.bytes / (self.bandwidth * self.reached.1);
        self.overhead + computes.max(moves)
    }

    /// Operations a second of a type. Integers are counted as the widest of floats that is not double.
    pub fn peak_of(&self, dtype: Dtype) -> f64 {
        let at = WIDER.iter().position(|other| *other == dtype).unwrap_or(2);
        let given = |dtype: &Dtype| self.peak.iter().find(|(other, _)| other == dtype).map(|(_, rate)| *rate);
        let wider = WIDER[at..].iter().find_map(given);
        wider.or_else(|| self.peak.iter().map(|(_, rate)| *rate).reduce(f64::min)).unwrap_or(1.0)
    }

    /// Bytes that go to the host or come from it.
    pub fn seconds_to_host(&self, bytes: f64) -> f64 {
        if bytes == 0.0 { 0.0 } else { self.overhead + bytes / self.host }
    }
}
