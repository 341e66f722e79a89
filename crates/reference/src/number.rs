//! Formal numbers: integers modulo a large prime, so that sums, products and quotients are exact in any order.
//!
//! What is no polynomial (`exp`, `gelu`) is a table: a fixed, arbitrary value for each argument. Two programs that
//! apply the same functions to the same numbers agree; any others differ, but for a chance of about 2^-61 each.
//! The order is that of integers around zero: total, so `max` is associative, and small integers lie as they should.

use std::cmp::Ordering;

const P: u64 = (1 << 61) - 1;

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Num(u64);

impl Num {
    pub const ZERO: Num = Num(0);
    pub const ONE: Num = Num(1);
    pub const INF: Num = Num(P + 1);
    pub const NEG_INF: Num = Num(P + 2);
    /// As a quotient by zero.
    pub const NAN: Num = Num(P + 3);

    pub fn int(value: i64) -> Self {
        Self(value.rem_euclid(P as i64) as u64)
    }

    pub fn count(value: usize) -> Self {
        Self(value as u64 % P)
    }

    pub fn of_bool(value: bool) -> Self {
        if value { Self::ONE } else { Self::ZERO }
    }

    /// A float is a whole number times a power of two, so it is a formal number too.
    pub fn float(value: f64) -> Self {
        if value.is_nan() {
            return Self::NAN;
        }
        if value.is_infinite() {
            return if value > 0.0 { Self::INF } else { Self::NEG_INF };
        }
        let bits = value.to_bits();
        let exponent = ((bits >> 52) & 0x7ff) as i64;
        let fraction = bits & ((1 << 52) - 1);
        let (mantissa, exponent) =
            if exponent == 0 { (fraction, -1074) } else { (fraction | (1 << 52), exponent - 1075) };
        // Two to the 61 is one.
        let shifted = Self(mantissa % P).times(Self(1 << exponent.rem_euclid(61)));
        if value < 0.0 { shifted.negated() } else { shifted }
    }

    /// Of anything that is hashed.
    pub fn table(words: &[u64]) -> Self {
        Self(hash(words) % P)
    }

    pub fn is_special(self) -> bool {
        self.0 >= P
    }

    pub fn is_true(self) -> bool {
        self != Self::ZERO
    }

    pub fn bits(self) -> u64 {
        self.0
    }

    /// The whole number around zero that it stands for.
    pub fn signed(self) -> i64 {
        if self.0 > P / 2 { -((P - self.0) as i64) } else { self.0 as i64 }
    }

    /// As an index into so many: what is out of range comes round, on every side alike.
    pub fn index(self, size: usize) -> usize {
        if self.is_special() { 0 } else { self.signed().rem_euclid(size.max(1) as i64) as usize }
    }

    pub fn plus(self, other: Self) -> Self {
        if self.is_special() || other.is_special() {
            return self.sum_of_specials(other);
        }
        let sum = self.0 + other.0;
        Self(if sum >= P { sum - P } else { sum })
    }

    fn sum_of_specials(self, other: Self) -> Self {
        match (self.is_special(), other.is_special()) {
            (true, false) => self,
            (false, true) => other,
            _ if self == other => self,
            _ => Self::NAN,
        }
    }

    pub fn negated(self) -> Self {
        match self {
            Self::INF => Self::NEG_INF,
            Self::NEG_INF => Self::INF,
            Self(0) => self,
            Self(value) if value >= P => self,
            Self(value) => Self(P - value),
        }
    }

    pub fn minus(self, other: Self) -> Self {
        self.plus(other.negated())
    }

    pub fn times(self, other: Self) -> Self {
        if self.is_special() || other.is_special() {
            return self.product_of_specials(other);
        }
        let product = u128::from(self.0) * u128::from(other.0);
        let (low, high) = ((product as u64) & P, (product >> 61) as u64);
        let sum = low + high;
        Self(if sum >= P { sum - P } else { sum })
    }

    fn product_of_specials(self, other: Self) -> Self {
        if self == Self::NAN || other == Self::NAN || self == Self::ZERO || other == Self::ZERO {
            return Self::NAN;
        }
        let negative = |x: Self| x == Self::NEG_INF || (!x.is_special() && x.signed() < 0);
        if negative(self) == negative(other) { Self::INF } else { Self::NEG_INF }
    }

    pub fn inverse(self) -> Self {
        match self {
            Self::INF | Self::NEG_INF => Self::ZERO,
            Self(0) => Self::NAN,
            Self(value) if value >= P => self,
            _ => self.power(P - 2),
        }
    }

    pub fn over(self, other: Self) -> Self {
        self.times(other.inverse())
    }

    pub fn power(self, mut exponent: u64) -> Self {
        let (mut result, mut square) = (Self::ONE, self);
        while exponent > 0 {
            if exponent & 1 == 1 {
                result = result.times(square);
            }
            square = square.times(square);
            exponent >>= 1;
        }
        result
    }

    /// Whole numbers around zero, with the infinities at the ends; what is no number is the greatest, as PyTorch has it.
    pub fn compare(self, other: Self) -> Ordering {
        let rank = |x: Self| match x {
            Self::NEG_INF => i64::MIN,
            Self::INF => i64::MAX - 1,
            Self::NAN => i64::MAX,
            other => other.signed(),
        };
        rank(self).cmp(&rank(other))
    }
}

impl std::fmt::Debug for Num {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match *self {
            Self::INF => f.write_str("inf"),
            Self::NEG_INF => f.write_str("-inf"),
            Self::NAN => f.write_str("nan"),
            other => write!(f, "{}", other.signed()),
        }
    }
}

pub fn hash(words: &[u64]) -> u64 {
    words
        .iter()
        .fold(0x9e37_79b9_7f4a_7c15, |state, word| mixed(state ^ word.wrapping_mul(0xff51_afd7_ed55_8ccd)))
}

fn mixed(mut x: u64) -> u64 {
    x = (x.wrapping_add(0x9e37_79b9_7f4a_7c15) ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

pub fn hash_text(text: &str) -> u64 {
    text.bytes().fold(text.len() as u64, |state, byte| hash(&[state, u64::from(byte)]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_exact() {
        let f = Num::float;
        assert_eq!(f(0.1).plus(f(0.1)), f(0.2));
        assert_eq!(f(0.375).times(f(-8.0)), Num::int(-3));
        assert_eq!(f(1e300).times(f(1e300).inverse()), Num::ONE);
        assert_eq!(f(5e-324).plus(f(5e-324)), f(1e-323));
    }

    #[test]
    fn quotients_are_inverse_to_products() {
        for value in [1, -1, 7, 1 << 40] {
            assert_eq!(Num::int(value).over(Num::int(value)), Num::ONE);
            assert_eq!(Num::int(value).signed(), value);
        }
        assert_eq!(Num::ONE.over(Num::ZERO), Num::NAN);
    }

    #[test]
    fn what_is_masked_counts_nothing() {
        assert_eq!(Num::NEG_INF.minus(Num::int(5)), Num::NEG_INF);
        assert_eq!(Num::NEG_INF.minus(Num::NEG_INF), Num::NAN);
        assert_eq!(Num::NEG_INF.times(Num::ZERO), Num::NAN);
        assert_eq!(Num::NEG_INF.compare(Num::int(-5)), Ordering::Less);
    }
}
