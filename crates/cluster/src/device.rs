//! A device, and how long it needs for work.

use graph::Dtype;

use crate::{Curves, OpCost, Operators, Runtime, Sort};

#[derive(Clone, Debug, PartialEq)]
pub struct Device {
    pub name: String,
    /// Bytes.
    pub memory: u64,
    /// Bytes a second, of its memory.
    pub bandwidth: f64,
    /// Operations a second, by type; one that has none runs as one that has all of its numbers.
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

/// What a type runs as where it has no rate of its own: the narrowest that has all of its numbers. Float16 has not those of
/// bfloat16, so a device without that computes it as float32. Integers are counted as that, too.
fn runs_as(dtype: Dtype) -> &'static [Dtype] {
    match dtype {
        Dtype::Bf16 => &[Dtype::Bf16, Dtype::F32, Dtype::F64],
        Dtype::F16 => &[Dtype::F16, Dtype::F32, Dtype::F64],
        Dtype::F64 => &[Dtype::F64],
        _ => &[Dtype::F32, Dtype::F64],
    }
}

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

    /// The same, from what was measured of its kind and type, where there is something: that is what it takes, whatever
    /// kernels usually reach. Else it takes at least as long as copies of so many bytes.
    pub fn seconds_of(&self, op_cost: OpCost, sort: Sort<'_>) -> f64 {
        if op_cost == OpCost::default() {
            return 0.0;
        }
        if let Some(measured) = self.measured_of(sort) {
            return measured
                .curve
                .seconds(measured.size(op_cost))
                .max(self.other_seconds(measured, op_cost, sort));
        }
        let usual = self.usual(op_cost, sort);
        let copies = self.measured_of(Sort { dtype: sort.dtype, ..Sort::SUM });
        copies.map_or(usual, |copies| usual.max(copies.curve.seconds(op_cost.bytes)))
    }

    /// Of what was measured by operations the seconds of its bytes at all of the bandwidth, and the other way round: what
    /// was measured need not have had as many of these.
    fn other_seconds(&self, measured: &Operators, work: OpCost, sort: Sort<'_>) -> f64 {
        if measured.by_operations {
            work.bytes / self.bandwidth
        } else {
            work.operations / self.peak_of(sort.dtype)
        }
    }

    /// As long as kernels of its kind and size take.
    fn usual(&self, op_cost: OpCost, sort: Sort<'_>) -> f64 {
        let (compute, memory) =
            self.curves.reached(sort.kinds, sort.direction, op_cost.operations, op_cost.bytes);
        let computes = op_cost.operations / (self.peak_of(sort.dtype) * compute.unwrap_or(self.reached.0));
        let moves = op_cost.bytes / (self.bandwidth * memory.unwrap_or(self.reached.1));
        self.overhead + computes.max(moves)
    }

    /// What no plan can beat: parts of some work, however many, take no less than this together.
    pub fn lower_bound(&self, work: OpCost, sort: Sort<'_>) -> f64 {
        if let Some(measured) = self.measured_of(sort) {
            let fastest = measured.curve.least_of_each() * measured.size(work);
            return fastest.max(self.other_seconds(measured, work, sort));
        }
        if work == OpCost::default() {
            return 0.0;
        }
        // A smaller kernel reaches no more than a larger one.
        let usual = self.usual(work, sort);
        if self.measured.is_empty() { usual } else { (usual - self.overhead).max(0.0) }
    }

    fn measured_of(&self, sort: Sort<'_>) -> Option<&Operators> {
        let is = |it: &&Operators, kind: &str| {
            (&it.kind[..], it.dtype, it.direction) == (kind, sort.dtype, sort.direction)
        };
        sort.kinds.iter().find_map(|kind| self.measured.iter().find(|it| is(it, kind)))
    }

    /// Operations a second of a type.
    pub fn peak_of(&self, dtype: Dtype) -> f64 {
        let given = |dtype: &Dtype| self.peak.iter().find(|(other, _)| other == dtype).map(|(_, rate)| *rate);
        let peak = runs_as(dtype).iter().find_map(given);
        peak.or_else(|| self.peak.iter().map(|(_, rate)| *rate).reduce(f64::min)).unwrap_or(1.0)
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
