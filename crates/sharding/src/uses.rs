//! Shardings as words for a few axes: what each axis does with a tensor. There are millions of them in a search.

/// An axis does one of these, or divides a factor: then it is one more than the factor's number.
pub const COPIES: u8 = 0;
pub const PARTIAL: u8 = u8::MAX;

/// The most axes.
pub const AXES: usize = 6;

/// What each axis does, outermost first; behind the last there are copies. Axes that divide one factor do so in their
/// order.
pub type Uses = [u8; AXES];

/// Some of the axes, as bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AxisSet(pub u32);

impl AxisSet {
    #[must_use]
    pub fn with(self, axis: usize) -> Self {
        Self(self.0 | 1 << axis)
    }

    pub fn from_axes(axes: impl Iterator<Item = usize>) -> Self {
        axes.fold(Self::default(), Self::with)
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Outermost first.
    pub fn axes(self) -> impl Iterator<Item = usize> {
        let next = |left: &u32| Some(left & (left - 1)).filter(|left| *left > 0);
        let lefts = std::iter::successors(Some(self.0).filter(|left| *left > 0), next);
        lefts.map(|left| left.trailing_zeros() as usize)
    }
}
