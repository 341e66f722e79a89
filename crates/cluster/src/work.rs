//! Some work, as a device is told of it: how much there is, and of what sort it is.

use graph::Dtype;

/// Some work: operations and bytes that are moved.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct OpCost {
    pub operations: f64,
    pub bytes: f64,
}

/// Forward, or what backward does for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    Forward,
    Backward,
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

impl Sort<'static> {
    /// Gradients that are added to those of an earlier micro-batch.
    pub const SUM: Self = Self { kinds: [COPIES, COPIES], dtype: Dtype::F32, direction: Direction::Forward };
    /// An optimizer's step.
    pub const UPDATE: Self = Self { kinds: ["optimizer", "optimizer"], ..Self::SUM };
}
