//! What stands in a tail, or outside of all.

use graph::Dtype;

/// From here on down a softmax gives exactly 0, beside others that are a tenth of it away from zero or less.
pub const LOW: f64 = -1e4;

/// Numbers of 24 bits are exact in every type that computes.
const WHOLE: f64 = 16_777_216.0;

/// More than rounding changes, in a type of few bits.
const ROUNDED: f64 = 0.01;

/// A number, or a number more than the short size of a length, which is any from one to its long size less one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bound {
    pub length: Option<(usize, i64)>,
    pub plus: f64,
}

impl Bound {
    pub const fn number(plus: f64) -> Self {
        Self { length: None, plus }
    }

    pub fn least(self) -> f64 {
        self.plus + self.length.map_or(0.0, |_| 1.0)
    }

    pub fn most(self) -> f64 {
        self.plus + self.length.map_or(0.0, |(_, long)| (long - 1) as f64)
    }

    pub fn at_most(self, other: Bound) -> bool {
        if self.length == other.length { self.plus <= other.plus } else { self.most() <= other.least() }
    }

    /// Whether it is less, whatever is rounded: whole numbers are not.
    pub fn below(self, other: Bound) -> bool {
        let (a, b) = match self.length == other.length {
            true => (self.plus, other.plus),
            false => (self.most(), other.least()),
        };
        let whole = |at: f64| at.fract() == 0.0 && at.abs() < WHOLE;
        let gap = if whole(a) && whole(b) { 0.0 } else { ROUNDED * a.abs().max(b.abs()).max(1.0) };
        b - a > gap
    }
}

/// How numbers are related to those outside of tails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kin {
    Other,
    /// They are as some tensor has them outside of tails.
    Chosen,
    /// They are the same, for the tensor has no such tail.
    Outside,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Content {
    /// Anything, also what is no number, or with a derivative that is none.
    Wild,
    /// So low that a softmax gives exactly 0; `infinite` where it may be minus infinity.
    Low { infinite: bool },
    /// Each is low or a finite number; `kin` is about which one.
    Mixed { infinite: bool, kin: Kin },
    /// Finite numbers from the one to the other.
    Within { lo: Bound, hi: Bound, kin: Kin },
}

use Content::{Low, Mixed, Wild, Within};

impl Content {
    /// What a batch has, or what the model computes of it.
    pub const REAL: Content =
        Within { lo: Bound::number(f64::NEG_INFINITY), hi: Bound::number(f64::INFINITY), kin: Kin::Outside };

    pub const FINITE: Content = Self::within(f64::NEG_INFINITY, f64::INFINITY);

    pub const fn within(lo: f64, hi: f64) -> Self {
        Within { lo: Bound::number(lo), hi: Bound::number(hi), kin: Kin::Other }
    }

    pub const fn number(value: f64) -> Self {
        Self::within(value, value)
    }

    /// A value that fills up a tensor of this type.
    pub fn filled(value: f64, dtype: Dtype) -> Self {
        if value.is_nan() { Wild.of_type(dtype) } else { Self::number(value).of_type(dtype) }
    }

    /// Finite numbers in this range, whatever `Low` is.
    pub fn range(self) -> Option<(f64, f64)> {
        match self {
            Within { lo, hi, .. } => Some((lo.least(), hi.most())),
            Low { infinite: false } | Mixed { infinite: false, .. } => {
                Some((f64::NEG_INFINITY, f64::INFINITY))
            }
            _ => None,
        }
    }

    pub fn constant(self) -> Option<f64> {
        match self {
            Within { lo, hi, .. } if lo == hi && lo.length.is_none() => Some(lo.plus),
            _ => None,
        }
    }

    pub fn is_zero(self) -> bool {
        self.constant() == Some(0.0)
    }

    pub fn is_finite(self) -> bool {
        self.range().is_some()
    }

    pub fn is_low(self) -> bool {
        matches!(self, Low { .. }) || self.range().is_some_and(|(_, hi)| hi <= LOW)
    }

    pub fn may_be_infinite(self) -> bool {
        matches!(self, Wild | Low { infinite: true } | Mixed { infinite: true, .. })
    }

    pub fn kin(self) -> Kin {
        match self {
            Mixed { kin, .. } | Within { kin, .. } => kin,
            Wild | Low { .. } => Kin::Other,
        }
    }

    #[must_use]
    pub fn of_kin(self, kin: Kin) -> Self {
        match self {
            Within { lo, hi, .. } => Within { lo, hi, kin },
            Mixed { infinite, .. } => Mixed { infinite, kin },
            other => other,
        }
    }

    /// Outside of tails: what is no number there is none in `short` either.
    #[must_use]
    pub fn outside(self) -> Self {
        if self == Wild { Self::REAL } else { self.of_kin(Kin::Outside) }
    }

    /// One or the other.
    #[must_use]
    pub fn or(self, other: Content) -> Self {
        let infinite = self.may_be_infinite() || other.may_be_infinite();
        match (self, other) {
            (Wild, _) | (_, Wild) => Wild,
            (Within { lo: a, hi: b, .. }, Within { lo: c, hi: d, .. }) => Within {
                lo: if a.at_most(c) {
                    a
                } else if c.at_most(a) {
                    c
                } else {
                    Bound::number(a.least().min(c.least()))
                },
                hi: if d.at_most(b) {
                    b
                } else if b.at_most(d) {
                    d
                } else {
                    Bound::number(b.most().max(d.most()))
                },
                kin: Kin::Other,
            },
            (Low { .. }, Low { .. }) => Low { infinite },
            _ => Mixed { infinite, kin: Kin::Other },
        }
    }

    /// As a tensor of this type has it: what is no float is finite, and a bool 0 or 1.
    #[must_use]
    pub fn of_type(self, dtype: Dtype) -> Self {
        match (self, dtype) {
            (_, Dtype::Bool) => self.as_bool(),
            (Low { .. }, Dtype::F16) => Low { infinite: true },
            (_, dtype) if dtype.is_float() => match self.constant() {
                Some(value) if value < -greatest(dtype) => Low { infinite: true },
                Some(value) if value > greatest(dtype) => Wild,
                _ => self.not_so_small(dtype),
            },
            (Within { lo, hi, kin }, _) if lo.plus.abs() < 1e15 && hi.plus.abs() < 1e15 => Within {
                lo: Bound { plus: lo.plus.floor(), ..lo },
                hi: Bound { plus: hi.plus.ceil(), ..hi },
                kin,
            },
            _ => Self::FINITE.of_kin(self.kin()),
        }
    }

    /// What is below the least normal number of a type may be zero there.
    fn not_so_small(self, dtype: Dtype) -> Self {
        let least = match dtype {
            Dtype::F16 => 6.2e-5,
            Dtype::Bf16 | Dtype::F32 | Dtype::C64 => f64::from(f32::MIN_POSITIVE),
            _ => f64::MIN_POSITIVE,
        };
        let zeroed = |bound: Bound| match bound.length {
            None if bound.plus.abs() < least => Bound::number(0.0),
            _ => bound,
        };
        match self {
            // The other bound holds zero, too.
            Within { lo, hi, kin } if lo.plus > 0.0 => Within { lo: zeroed(lo), hi, kin },
            Within { lo, hi, kin } if hi.plus < 0.0 => Within { lo, hi: zeroed(hi), kin },
            other => other,
        }
    }

    fn as_bool(self) -> Self {
        match self.range() {
            Some((lo, hi)) if lo == 0.0 && hi == 0.0 => Self::number(0.0),
            Some((lo, hi)) if lo > 0.0 || hi < 0.0 => Self::number(1.0),
            _ => Self::within(0.0, 1.0).of_kin(self.kin()),
        }
    }
}

/// The greatest finite number of a type.
fn greatest(dtype: Dtype) -> f64 {
    match dtype {
        Dtype::F16 => 65504.0,
        Dtype::Bf16 => 3.389_531_389_251_535_5e38,
        Dtype::F32 | Dtype::C64 => f64::from(f32::MAX),
        _ => f64::MAX,
    }
}
