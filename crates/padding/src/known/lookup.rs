//! Rows of a table by index: those of a tail are some rows that it has, or PyTorch refuses them.

use diag::Result;
use graph::{Arg, Dtype, OpId};

use super::dim_of;
use crate::Proof;
use crate::content::Content;
use crate::state::{Filled, Tail};
use crate::values::name;

pub(super) fn looked_up(proof: &Proof<'_>, id: OpId) -> Option<Result<Vec<Filled>>> {
    let op = proof.long.op(id);
    let [table, indices] = op.inputs()[..] else { return None };
    let filled = &proof.of[indices.index()];
    if filled.tails.is_empty() || !proof.of[table.index()].tails.is_empty() {
        return None;
    }
    let shape = proof.shape(table);
    let (dim, shift) = match name(op) {
        // Frequencies would be counted over what is filled in.
        "embedding" if op.arg(3, "scale_grad_by_freq") == Some(&Arg::Bool(true)) => return None,
        "embedding" => (0, 0),
        "gather" => (dim_of(op, 1, 0, shape.len())?, 0),
        _ => {
            let dim = dim_of(op, 1, 0, shape.len())?;
            (dim, dim)
        }
    };
    let rows = shape[dim];
    let none = |content: Content| content.range().is_some_and(|(lo, hi)| hi < 0.0 || lo >= rows as f64);
    if let Some(content) = filled.contents.iter().skip(1).find(|content| none(**content)) {
        return Some(Err(no_row(proof, id, &filled.tails[0], *content, rows)));
    }
    let is_float = proof.long.tensor(table).dtype.is_float();
    let made = |_| match (is_float, proof.long.tensor(table).dtype) {
        (false, Dtype::Bool) => Content::within(0.0, 1.0),
        _ => Content::FINITE,
    };
    let tails = filled.tails.iter().map(|tail| Tail { dim: tail.dim + shift, ..tail.clone() }).collect();
    Some(proof.require_same_numbers(id).map(|()| vec![Filled::build(tails, made)]))
}

fn no_row(proof: &Proof<'_>, id: OpId, tail: &Tail, content: Content, rows: i64) -> diag::Error {
    let row = content.constant().map_or_else(|| "one that it has not".into(), |value| value.to_string());
    let why = format!("row {row} would be looked up, and there are {rows}");
    proof.mixed(id, tail.length, &why, "fill up with the number of a row, such as 0")
}
