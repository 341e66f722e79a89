//! What a split of an operator makes of its operands and results: it follows from the rule, and is said here only.
//!
//! The parts of a split each have a piece of a tensor, one of several shares of its value, or all that the others have; or
//! the first part alone has it. Whoever asks where an operand lies puts the answers together for all of the splits: for
//! every part by itself, for axes of devices ([`crate::Placed`]), or for each axis a word ([`crate::Uses`]).

use rules::{Kind, On, OpDims, Reduction};

/// What the parts of a split have of a tensor, each its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Has {
    /// A piece along the factor that the loop goes along.
    Piece,
    /// One of several partial results.
    Share,
    /// The same as the others.
    Copy,
    /// The first part has it, and the others do not.
    First,
}

/// An input of an operator, as its rule and the kind of split speak of it.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    /// For each factor the loop that goes along it.
    pub carried: &'a [Option<usize>],
    /// It is given to the first part of every summed dim only.
    pub once: bool,
    /// It is one of those that a split by value divides.
    pub linear: bool,
}

/// What parts are given of an input.
pub fn read(dims: &OpDims, input: Input<'_>, on: On) -> Has {
    match on {
        On::Loop(_) | On::Value if input.once && reduced(dims, on, Reduction::Sum).is_some() => Has::First,
        On::Loop(index) if input.carried.contains(&Some(index)) => Has::Piece,
        On::Value if input.linear => Has::Share,
        // What exchanges rows is rewritten first.
        On::Loop(_) | On::Value | On::Copies | On::Exchange { .. } => Has::Copy,
    }
}

/// What parts give back of an input's gradient. It is partial over every split that the input does not have.
pub fn gradient(dims: &OpDims, input: Input<'_>, on: On) -> Has {
    match (on, read(dims, input, on)) {
        (On::Loop(_) | On::Value, Has::Copy) => Has::Share,
        // Of a sum each summand has the gradient of the sum.
        (_, Has::Share) => Has::Copy,
        (_, has) => has,
    }
}

/// What parts write of an output along whose factors these loops go.
pub fn written(dims: &OpDims, carried: &[Option<usize>], on: On) -> Has {
    match on {
        _ if reduced(dims, on, Reduction::Sum).is_some() => Has::Share,
        On::Loop(index) if carried.contains(&Some(index)) => Has::Piece,
        _ => Has::Copy,
    }
}

/// How what parts write is completed, if that is shares: those of a split by value are of the kind that is given.
pub fn reduced(dims: &OpDims, on: On, by_value: Reduction) -> Option<Reduction> {
    match on {
        On::Loop(index) => match dims.loops[index].kind {
            Kind::Reduce(reduction) => Some(reduction),
            _ => None,
        },
        On::Value => Some(by_value),
        On::Copies | On::Exchange { .. } => None,
    }
}
