//! What is known of a tensor: where its tails are, and what stands in them.

use graph::Dtype;

use crate::content::{Content, Kin};

/// More tails than these in one tensor are not followed.
pub(crate) const MOST: usize = 4;

/// The end of a dim: the dim is `outer` rows, each of `long` blocks of `inner` elements, and of each row the blocks
/// from `short` on are the tail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tail {
    pub dim: usize,
    pub outer: i64,
    pub inner: i64,
    /// The model's length that it comes from.
    pub length: usize,
    pub long: i64,
    pub short: i64,
}

impl Tail {
    /// Whether the whole dim is one row of elements.
    pub fn is_plain(&self) -> bool {
        self.outer == 1 && self.inner == 1
    }

    /// Whether another dim has the same tail.
    pub fn is_like(&self, other: &Tail) -> bool {
        Tail { dim: 0, ..self.clone() } == Tail { dim: 0, ..other.clone() }
    }
}

/// `contents[set]` is what stands in the tails of a set, one bit for each of `tails`, and outside of all others;
/// `contents[0]` is what stands in no tail.
#[derive(Clone, Debug, PartialEq)]
pub struct Filled {
    pub tails: Vec<Tail>,
    pub contents: Vec<Content>,
}

impl Filled {
    /// Without a tail, and with numbers of which nothing is known.
    pub fn real() -> Self {
        Self { tails: vec![], contents: vec![Content::REAL] }
    }

    pub fn tail(&self, dim: usize) -> Option<(usize, &Tail)> {
        self.tails.iter().enumerate().find(|(_, tail)| tail.dim == dim)
    }

    /// The same with one tail more, with this content.
    #[must_use]
    pub fn and(mut self, tail: Tail, content: Content) -> Self {
        self.tails.push(tail);
        self.contents.extend(vec![content; self.contents.len()]);
        self
    }

    /// Built of what stands in each set of these tails.
    pub fn build(tails: Vec<Tail>, content: impl Fn(usize) -> Content) -> Self {
        let made = |set: usize| match set {
            0 => content(set).outside(),
            _ => content(set).of_kin(content(set).kin().min(Kin::Chosen)),
        };
        let contents = (0..1 << tails.len()).map(made).collect();
        Self { tails, contents }
    }

    #[must_use]
    pub fn of_type(mut self, dtype: Dtype) -> Self {
        self.contents.iter_mut().for_each(|content| *content = content.of_type(dtype));
        self
    }
}
