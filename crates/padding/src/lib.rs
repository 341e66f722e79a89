//! Whether what fills a batch up to a length changes anything.
//!
//! Two graphs of one model are compared: `long`, captured with a batch of the length that is filled up to, and `short`,
//! with a shorter one. Where a dim of a tensor differs between them, it ends in a *tail*: in `long` the tensor has all
//! that it has in `short`, and behind it what follows from the fill. For each tensor it is derived
//! which dims have a tail, and what stands there ([`Content`]); and operator by operator, that all outside of tails is
//! what `short` computes, whatever the tail's length. Where a tail would be mixed in, that is refused with the operator's
//! name. So an output without a tail, the loss, is the same function of all parameters, and its gradients are the same;
//! and they are numbers, because a tail that takes part in gradients has finite values and derivatives ([`values`]).
//!
//! Invariants of a [`Filled`]: outside of all tails the tensor is that of `short`; in some tails and no others, its
//! elements are as `contents` says, for every length of a tail from one element on.
//!
//! What it rests on: the model does at other lengths what it does at both that were captured; what a softmax
//! adds to "so low" ([`LOW`]) is small beside it; and a query that is no fill sees some key. It knows no devices, and
//! computes no numbers.

mod content;
mod isomorphic;
mod known;
mod refusal;
mod reshape;
mod state;
mod through;
mod values;

use std::collections::BTreeSet;

use diag::Result;
use graph::{Graph, OpId, Source, TensorId};

pub use content::{Bound, Content, LOW};
pub use state::{Filled, Tail};

/// An input that is filled up: its position among those of the call, the dim, and the value that stands there.
#[derive(Clone, Debug, PartialEq)]
pub struct Fill {
    pub input: usize,
    pub dim: usize,
    pub value: f64,
}

/// A length of the model: its size in both graphs, and the inputs that are filled up along it.
#[derive(Clone, Debug, PartialEq)]
pub struct Length {
    pub long: i64,
    pub short: i64,
    pub fills: Vec<Fill>,
}

impl Length {
    /// With the sizes that the inputs have.
    pub fn new(long: &Graph, short: &Graph, fills: Vec<Fill>) -> Self {
        let size = |graph: &Graph| {
            let dim_size = |fill: &Fill| input_at(graph, fill.input)?.shape.get(fill.dim).copied();
            fills.iter().find_map(dim_size).unwrap_or(1)
        };
        let (long, short) = (size(long), size(short));
        Self { long, short, fills }
    }
}

fn input_at(graph: &Graph, at: usize) -> Option<&graph::Tensor> {
    let is_it = |it: &&graph::Tensor| matches!(it.source, Source::Input { position, .. } if position == at);
    graph.tensors.iter().find(is_it)
}

/// What is known of every tensor of `long`; or the operator that would mix a tail in. `others` are constants, by name,
/// that have another value in `short`.
pub fn prove(
    long: &Graph,
    short: &Graph,
    lengths: &[Length],
    others: &BTreeSet<String>,
) -> Result<Vec<Filled>> {
    let numbers = isomorphic::compare(long, short, others)?;
    let mut proof = Proof { long, short, lengths, numbers, needs_grad: long.needs_grad(), of: vec![] };
    proof.of = vec![Filled::real(); long.tensors.len()];
    for id in long.tensor_ids() {
        proof.source(id)?;
    }
    for op in long.op_ids() {
        proof.step(op)?;
    }
    Ok(proof.of)
}

struct Proof<'a> {
    long: &'a Graph,
    short: &'a Graph,
    lengths: &'a [Length],
    /// For each operator, whether it has other numbers in the two graphs.
    numbers: Vec<bool>,
    needs_grad: Vec<bool>,
    of: Vec<Filled>,
}

impl Proof<'_> {
    fn source(&mut self, id: TensorId) -> Result<()> {
        let tensor = self.long.tensor(id);
        match tensor.source {
            Source::Op { .. } => {}
            Source::Input { position, .. } => self.of[id.index()] = self.input(id, position)?,
            _ if tensor.shape == self.short.tensor(id).shape => {}
            _ => return Err(isomorphic::held_differs(self.long, id)),
        }
        Ok(())
    }

    fn input(&self, id: TensorId, position: usize) -> Result<Filled> {
        let tensor = self.long.tensor(id);
        let mut filled = Filled::real();
        for (length, it) in self.lengths.iter().enumerate() {
            for fill in it.fills.iter().filter(|fill| fill.input == position) {
                let tail = Tail { dim: fill.dim, outer: 1, inner: 1, length, long: it.long, short: it.short };
                filled = filled.and(tail, Content::filled(fill.value, tensor.dtype));
            }
        }
        self.require_shape(id, &filled).map_err(|_| isomorphic::input_differs(self.long, id))?;
        Ok(filled)
    }

    fn step(&mut self, id: OpId) -> Result<()> {
        let op = self.long.op(id);
        let made = known::known(self, id).unwrap_or_else(|| through::by_rule(self, id))?;
        for (out, filled) in op.outputs.iter().zip(made) {
            let Some(out) = *out else { continue };
            let filled = filled.of_type(self.long.tensor(out).dtype);
            self.require_shape(out, &filled).map_err(|()| self.no_shape(id, out))?;
            self.require_finite(id, out, &filled)?;
            self.of[out.index()] = filled;
        }
        Ok(())
    }

    /// Whether without its tails a tensor has the shape that it has in `short`.
    fn require_shape(&self, id: TensorId, filled: &Filled) -> std::result::Result<(), ()> {
        let (long, short) = (&self.long.tensor(id).shape, &self.short.tensor(id).shape);
        let size = |dim: usize| match filled.tails.iter().find(|tail| tail.dim == dim) {
            Some(tail) if tail.outer * tail.long * tail.inner == long[dim] => {
                tail.outer * tail.short * tail.inner
            }
            Some(_) => -1,
            None => long[dim],
        };
        if (0..long.len()).all(|dim| size(dim) == short[dim]) { Ok(()) } else { Err(()) }
    }

    /// A gradient of zero times a derivative that is not finite is no number.
    fn require_finite(&self, op: OpId, out: TensorId, filled: &Filled) -> Result<()> {
        let counts = self.long.tensor(out).dtype.is_float() && self.needs_grad[out.index()];
        if counts && filled.contents.iter().skip(1).any(|content| *content == Content::Wild) {
            return Err(self.not_finite(op));
        }
        Ok(())
    }

    fn inputs(&self, op: OpId) -> Vec<&Filled> {
        self.long.op(op).inputs().iter().map(|input| &self.of[input.index()]).collect()
    }
}
