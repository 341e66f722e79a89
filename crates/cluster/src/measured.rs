//! What was measured on a device or a link, in several sizes.
//!
//! What something takes is told as what of the device's peak it reaches, which changes with size and not by leaps: between
//! two sizes that were measured seconds are interpolated in logarithms. A smaller size takes no less than the smallest,
//! and a larger one reaches what the largest does.

use graph::Dtype;

use crate::{Collective, Direction, OpCost};

/// Seconds by size: operations or bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    points: Vec<(f64, f64)>,
}

impl Curve {
    /// `None` unless there are points, of rising sizes, and all is above zero.
    pub fn new(points: Vec<(f64, f64)>) -> Option<Self> {
        let is_number = |value: f64| value.is_finite() && value > 0.0;
        let valid = points.iter().all(|(size, seconds)| is_number(*size) && is_number(*seconds));
        let rising = points.windows(2).all(|pair| pair[0].0 < pair[1].0);
        (valid && rising && !points.is_empty()).then_some(Self { points })
    }

    /// Seconds of each byte or operation, of any size: between two that were measured it is between what these take.
    pub fn least_of_each(&self) -> f64 {
        self.points.iter().map(|(size, seconds)| seconds / size).fold(f64::INFINITY, f64::min)
    }

    /// Sizes with their seconds.
    pub(crate) fn points(&self) -> &[(f64, f64)] {
        &self.points
    }

    /// All sizes take a part of their time.
    pub(crate) fn speed_up(&mut self, times: f64) {
        self.points.iter_mut().for_each(|(_, seconds)| *seconds /= times);
    }

    pub fn seconds(&self, size: f64) -> f64 {
        let after = self.points.partition_point(|(other, _)| *other < size);
        let (first, last) = (self.points[0], self.points[self.points.len() - 1]);
        if after == 0 {
            return first.1;
        }
        if after == self.points.len() {
            return last.1 * size / last.0;
        }
        let ((low, before), (high, behind)) = (self.points[after - 1], self.points[after]);
        let share = (size / low).ln() / (high / low).ln();
        (before.ln() + share * (behind / before).ln()).exp()
    }
}

/// Operators of a kind, which is a name: of an operator, or of a family of them.
#[derive(Clone, Debug, PartialEq)]
pub struct Operators {
    pub kind: String,
    pub dtype: Dtype,
    pub direction: Direction,
    /// Whether sizes are operations; else they are bytes.
    pub by_operations: bool,
    pub curve: Curve,
}

impl Operators {
    /// Of some work what the curve is by.
    pub(crate) fn size(&self, work: OpCost) -> f64 {
        if self.by_operations { work.operations } else { work.bytes }
    }
}

/// Messages of a collective among so many devices of a node; no collective is from one to another.
#[derive(Clone, Debug, PartialEq)]
pub struct Messages {
    pub collective: Option<Collective>,
    pub devices: u32,
    pub curve: Curve,
}

/// What a rank's runtime takes besides operators and messages.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Runtime {
    /// Seconds of a step, whatever is in it.
    pub step: f64,
    /// Seconds around each call of local code, and around its backward.
    pub call: f64,
    /// Seconds until a rank goes on that has waited for others.
    pub wake: f64,
    /// Seconds that an operator takes more whose gradients of parameters are computed in a half of their own.
    pub apart: f64,
    /// What of a message that goes on while the device computes does not hold it up.
    pub hidden: f64,
    /// Seconds in which the host starts an operator, where the device works off what was started on a clock of its own:
    /// `call` is of the host's, too, then. None where they are the same, as on CPUs.
    pub launch: Option<f64>,
}

impl Default for Runtime {
    fn default() -> Self {
        Self { step: 0.0, call: 0.0, wake: 0.0, apart: 0.0, hidden: 1.0, launch: None }
    }
}

/// Where measured figures are from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    pub device: String,
    pub torch: String,
    pub threads: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn between_sizes_it_is_interpolated_in_logarithms() {
        let curve = Curve::new(vec![(1e3, 1e-5), (1e5, 1e-4), (1e6, 2e-3)]).expect("it is a curve");
        let is = |size: f64, seconds: f64| {
            let actual = curve.seconds(size);
            assert!((actual / seconds - 1.0).abs() < 1e-9, "{size}: {actual}");
        };
        is(1e3, 1e-5);
        is(1e5, 1e-4);
        is(1e4, 1e-4 / 10_f64.sqrt());
        // No less than the smallest, and as quick as the largest.
        is(1.0, 1e-5);
        is(1e7, 2e-2);
    }

    #[test]
    fn what_is_no_curve() {
        for points in [
            vec![],
            vec![(1.0, 0.0)],
            vec![(0.0, 1.0)],
            vec![(2.0, 1.0), (1.0, 2.0)],
            vec![(1.0, 1.0), (1.0, 2.0)],
            vec![(f64::NAN, 1.0)],
            vec![(1.0, f64::INFINITY)],
        ] {
            assert!(Curve::new(points.clone()).is_none(), "{points:?}");
        }
    }
}
