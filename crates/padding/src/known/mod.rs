//! Operators of which more is known than that parts of them are computed alike: an interval of a dim that has a
//! tail, attention, losses that leave some targets out.

mod along;
mod attention;
mod creation;
mod lookup;
mod loss;
mod pieces;
mod written;

use diag::Result;
use graph::{Arg, Op, OpId, TensorId};

use crate::Proof;
use crate::reshape::reshaped;
use crate::state::{Filled, Tail};
use crate::values::name;

/// What an operator gives, if it is one of these and this is such a case.
pub(crate) fn known(proof: &Proof<'_>, id: OpId) -> Option<Result<Vec<Filled>>> {
    match name(proof.long.op(id)) {
        _ if proof.long.op(id).target == "aten.view.dtype" => None,
        "view" | "_unsafe_view" | "reshape" | "flatten" | "unflatten" => Some(view(proof, id)),
        "zeros" | "ones" | "full" | "new_zeros" | "new_ones" | "new_full" | "arange" | "rand" | "randn"
        | "empty" | "new_empty" | "rand_like" | "randn_like" => creation::made(proof, id),
        "scaled_dot_product_attention" => attention::attention(proof, id),
        "cross_entropy_loss" | "nll_loss" | "nll_loss_nd" => loss::loss(proof, id),
        "embedding" | "gather" | "index_select" => lookup::looked_up(proof, id),
        "softmax" | "_softmax" => along::softmax(proof, id),
        "cumsum" => along::cumsum(proof, id),
        "tril" | "triu" => along::triangle(proof, id),
        "slice" | "narrow" => pieces::slice(proof, id),
        "select" => pieces::select(proof, id),
        "pad" | "constant_pad_nd" => pieces::pad(proof, id),
        "cat" => pieces::cat(proof, id),
        "slice_scatter" => written::slice_scatter(proof, id),
        "select_scatter" => written::select_scatter(proof, id),
        _ => None,
    }
}

/// The same elements in the same order: only shapes matter.
fn view(proof: &Proof<'_>, id: OpId) -> Result<Vec<Filled>> {
    let op = proof.long.op(id);
    let (x, out) = (op.inputs()[0], op.outputs[0]);
    let filled = &proof.of[x.index()];
    let to = out.map_or(&[][..], |out| &proof.long.tensor(out).shape);
    let tails = reshaped(&proof.long.tensor(x).shape, &filled.tails, to);
    match (tails, filled.tails.first()) {
        (Some(tails), _) => Ok(vec![Filled { tails, contents: filled.contents.clone() }]),
        (None, Some(tail)) => {
            let why = "it puts positions together in other groups than rows";
            Err(proof.mixed(id, tail.length, why, ""))
        }
        (None, None) => Ok(vec![filled.clone()]),
    }
}

impl Proof<'_> {
    /// The tail of a dim that operators make of its size only: of the one length whose sizes differ as much.
    pub fn tail_by_shape(&self, out: TensorId, dim: usize) -> Option<Tail> {
        let (long, short) = (self.long.tensor(out).shape[dim], self.short.tensor(out).shape[dim]);
        let differs = |at: &usize| self.lengths[*at].long - self.lengths[*at].short == long - short;
        let mut fitting = (0..self.lengths.len()).filter(differs);
        let length = fitting.next().filter(|_| long != short && fitting.next().is_none())?;
        Some(Tail { dim, outer: 1, inner: 1, length, long, short })
    }

    fn shape(&self, tensor: TensorId) -> &[i64] {
        &self.long.tensor(tensor).shape
    }

    fn short_shape(&self, tensor: TensorId) -> &[i64] {
        &self.short.tensor(tensor).shape
    }

    /// Refuses an operator that is given other numbers where only sizes may differ.
    fn require_same_numbers(&self, id: OpId) -> Result<()> {
        if self.numbers[id.index()] { Err(self.other_numbers(id)) } else { Ok(()) }
    }
}

fn int(op: &Op, position: usize, name: &str, default: i64) -> i64 {
    match op.arg(position, name) {
        Some(Arg::Int(value)) => *value,
        _ => default,
    }
}

fn dim_of(op: &Op, position: usize, default: i64, rank: usize) -> Option<usize> {
    let dim = int(op, position, "dim", default);
    let wrapped = if dim < 0 { dim + rank as i64 } else { dim };
    usize::try_from(wrapped).ok().filter(|dim| *dim < rank)
}
