//! Pieces that are written into a tensor along a dim that has a tail.

use diag::Result;
use graph::{Arg, Graph, OpId, TensorId};

use super::{dim_of, int};
use crate::Proof;
use crate::content::Content;
use crate::state::Filled;

/// From the same start on to the end, what has the same tail.
pub(super) fn slice_scatter(proof: &Proof<'_>, id: OpId) -> Option<Result<Vec<Filled>>> {
    let op = proof.long.op(id);
    let &[base, source] = &op.inputs()[..] else { return None };
    let dim = dim_of(op, 2, 0, proof.shape(base).len())?;
    let (below, above) = (&proof.of[base.index()], &proof.of[source.index()]);
    let (bit, tail) = below.tail(dim).or_else(|| above.tail(dim))?;
    let refused = || proof.mixed(id, tail.length, "it writes over positions that may be filled", "");
    let starts = [proof.long, proof.short].map(|graph| to_the_end(graph, id, base, dim));
    let same_rest = below.tails.len() == above.tails.len()
        && below.tails.iter().zip(&above.tails).all(|(a, b)| a == b || (a.dim == dim && b.dim == dim));
    let fits = |start: i64| {
        above.tail(dim).is_some_and(|(_, other)| {
            let gap = (tail.long - other.long, tail.short - other.short);
            tail.is_plain() && other.is_plain() && gap == (start, start) && other.length == tail.length
        })
    };
    Some(match starts {
        [Some(a), Some(b)] if a == b && same_rest && below.tail(dim).is_some() && fits(a) => {
            let content_of = |set: usize| match set >> bit & 1 == 1 {
                true => above.contents[set],
                false => below.contents[set].or(above.contents[set]),
            };
            Ok(vec![Filled::build(below.tails.clone(), content_of)])
        }
        _ => Err(refused()),
    })
}

/// Where it begins, if it goes on to the end.
fn to_the_end(graph: &Graph, id: OpId, base: TensorId, dim: usize) -> Option<i64> {
    let (op, size) = (graph.op(id), graph.tensor(base).shape[dim]);
    let start = match op.arg(3, "start") {
        None | Some(Arg::None) => 0,
        Some(Arg::Int(start)) if *start >= 0 => *start,
        Some(_) => return None,
    };
    let ends = match op.arg(4, "end") {
        None | Some(Arg::None) => true,
        Some(Arg::Int(end)) => *end >= size,
        Some(_) => false,
    };
    (ends && int(op, 5, "step", 1) == 1).then_some(start)
}

/// At the first position, which is there in every batch.
pub(super) fn select_scatter(proof: &Proof<'_>, id: OpId) -> Option<Result<Vec<Filled>>> {
    let op = proof.long.op(id);
    let &[base, source] = &op.inputs()[..] else { return None };
    let dim = dim_of(op, 2, 0, proof.shape(base).len())?;
    let (below, above) = (&proof.of[base.index()], &proof.of[source.index()]);
    let (bit, tail) = below.tail(dim)?;
    if proof.numbers[id.index()]
        || int(op, 3, "index", -1) != 0
        || !above.tails.is_empty()
        || !tail.is_plain()
    {
        return Some(Err(proof.mixed(id, tail.length, "it writes over a position that may be filled", "")));
    }
    let written = above.contents.first().copied().unwrap_or(Content::Wild);
    let content_of = |set: usize| match set >> bit & 1 == 1 {
        true => below.contents[set],
        false => below.contents[set].or(written),
    };
    Some(Ok(vec![Filled::build(below.tails.clone(), content_of)]))
}
