//! A device, and how long it needs for work.

use graph::Dtype;

use crate::{Curves, Direction, Operators, Runtime};

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
    /// What of its peak and of its bandwidth a large operator reaches, at most.
    pub reached: (f64, f64),
    /// What of these its kernels reach by kind and size.
    pub curves: Curves,
    /// Bytes a second from and to the host.
    pub host: f64,
    /// Bytes of its host's memory that are its own.
    pub host_memory: u64,
    /// Bytes a second of that memory, for what the host computes for this device.
    pub host_bandwidth: f64,
    /// What was measured of operators.
    pub measured: Vec<Operators>,
    pub runtime: Runtime,
}

/// Some work: operations and bytes that are moved.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct OpCost {
    pub operations: f64,
    pub bytes: f64,
}

/// What some work is: names of its kind, the narrower one first, its type, and of which pass it is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sort<'n> {
    pub kinds: [&'n str; 2],
    pub dtype: Dtype,
    pub direction: Direction,
}

/// What moves bytes and is no operator: slices, sums, casts.
pub const COPIES: &str = "copies";

/// From the narrowest to the widest.
const WIDER: [Dtype; 4] = [Dtype::Bf16, Dtype::F16, Dtype::F32, Dtype::F64];

impl Device {
    /// How long an operator takes: as long as what it computes or what it moves, whichever is more, after its start.
    pub fn seconds(&self, op_cost: OpCost, dtype: Dtype) -> f64 {
        if op_cost == OpCost::default() {
            return 0.0;
        }
        let computes = op_cost.operations / (self.peak_of(dtype) * self.reached.0);
        let moves = op_cost.bytes / (self.bandwidth * self.reached.1);
        self.overhead + computes.max(moves)
    }

    /// The same, from what was measured of its kind and type, where there is something; else it takes at least as long as
    /// copies of so many bytes. Never less than its peak allows: that is what no plan can beat.
    pub fn seconds_of(&self, op_cost: OpCost, sort: Sort<'_>) -> f64 {
        if op_cost == OpCost::default() {
            return 0.0;
        }
        let usual = self.usual(op_cost, sort);
        if let Some(measured) = self.measured_of(sort) {
            let size = if measured.by_operations { op_cost.operations } else { op_cost.bytes };
            return measured.curve.seconds(size).max(self.seconds(op_cost, sort.dtype) - self.overhead);
        }
        let copies =
            self.measured_of(Sort { kinds: [COPIES, COPIES], direction: Direction::Forward, ..sort });
        copies.map_or(usual, |copies| usual.max(copies.curve.seconds(op_cost.bytes)))
    }

    /// As long as kernels of its kind and size take.
    fn usual(&self, op_cost: OpCost, sort: Sort<'_>) -> f64 {
        let (compute, memory) =
            self.curves.reached(sort.kinds, sort.direction, op_cost.operations, op_cost.bytes);
        let computes = op_cost.operations / (self.peak_of(sort.dtype) * compute.unwrap_or(self.reached.0));
        let moves = op_cost.bytes / (self.bandwidth * memory.unwrap_or(self.reached.1));
        self.overhead + computes.max(moves)
    }

    /// What no effort takes less than, whatever was measured.
    pub fn least(&self, op_cost: OpCost, dtype: Dtype) -> f64 {
        let usual = self.seconds(op_cost, dtype);
        if self.measured.is_empty() { usual } else { (usual - self.overhead).max(0.0) }
    }

    fn measured_of(&self, sort: Sort<'_>) -> Option<&Operators> {
        let is = |it: &&Operators, kind: &str| {
            (&it.kind[..], it.dtype, it.direction) == (kind, sort.dtype, sort.direction)
        };
        sort.kinds.iter().find_map(|kind| self.measured.iter().find(|it| is(it, kind)))
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

    /// The host reads and writes so many bytes of its own.
    pub fn seconds_on_host(&self, bytes: f64) -> f64 {
        bytes / self.host_bandwidth
    }
}
