//! How an operator is split into parts: what each split divides, as its rule allows.

use graph::OpId;

use crate::factors::Analysis;

/// The most parts of an operator: more is a mistake.
pub const MOST_PARTS: u32 = 1 << 20;

/// What one split of an operator divides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum On {
    /// A loop of the operator: an index into [`crate::OpDims::loops`].
    Loop(usize),
    /// Nothing: every part computes the same.
    Copies,
    /// The value: every part computes with one of several shares of some operands, of a kind through which the
    /// operator passes.
    Value,
    /// Two loops of a mixture of experts at once: every part has some tokens and some experts, and rows are exchanged.
    Exchange { tokens: usize, experts: usize },
}

impl On {
    /// How it is called where its parts are counted.
    pub fn word(self, analysis: &Analysis, op: OpId) -> String {
        let name = |index: usize| &analysis.op(op).loops[index].name;
        match self {
            On::Loop(index) => name(index).clone(),
            On::Copies => "replicate".into(),
            On::Value => "value".into(),
            On::Exchange { tokens, .. } => format!("exchange {}", name(tokens)),
        }
    }

    /// The loops that it divides.
    pub fn loops(self) -> impl Iterator<Item = usize> {
        let (first, second) = match self {
            On::Loop(index) => (Some(index), None),
            On::Exchange { tokens, experts } => (Some(tokens), Some(experts)),
            On::Copies | On::Value => (None, None),
        };
        first.into_iter().chain(second)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Split {
    pub on: On,
    pub parts: u32,
}
