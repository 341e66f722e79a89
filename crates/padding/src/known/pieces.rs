//! Pieces along a dim that has a tail, and what is put behind or before it.

use diag::Result;
use graph::{Arg, Graph, Op, OpId, TensorId};

use super::{dim_of, int};
use crate::Proof;
use crate::content::{Content, Kin};
use crate::state::{Filled, Tail};
use crate::values::name;

/// From the same start on, up to as many elements before the end, or to the end.
pub(super) fn slice(proof: &Proof<'_>, id: OpId) -> Option<Result<Vec<Filled>>> {
    let op = proof.long.op(id);
    let x = *op.inputs().first()?;
    let dim = dim_of(op, 1, 0, proof.shape(x).len())?;
    let filled = &proof.of[x.index()];
    let out = op.outputs[0]?;
    let tail = filled.tail(dim);
    if tail.is_none() && proof.shape(out)[dim] == proof.short_shape(out)[dim] {
        return None;
    }
    Some(sliced(proof, id, x, out, dim, filled, tail).unwrap_or_else(|| match tail {
        Some((_, tail)) => Err(proof.mixed(id, tail.length, CUT, "")),
        None => Err(proof.other_numbers(id)),
    }))
}

const CUT: &str = "it takes positions that are filled for some batches, and for others are not";

fn sliced(
    proof: &Proof<'_>,
    id: OpId,
    x: TensorId,
    out: TensorId,
    dim: usize,
    filled: &Filled,
    tail: Option<(usize, &Tail)>,
) -> Option<Result<Vec<Filled>>> {
    let long = interval(proof.long, id, proof.shape(x)[dim])?;
    let short = interval(proof.short, id, proof.short_shape(x)[dim])?;
    if long.0 != short.0 {
        return None;
    }
    let Some((bit, tail)) = tail else {
        // Of a table that has more: its rows go on in the tail.
        let made = proof.tail_by_shape(out, dim)?;
        let mut tails = filled.tails.clone();
        tails.push(made);
        let mask = 1 << filled.tails.len();
        let content_of = |set: usize| filled.contents[set & !mask].of_kin(Kin::Other);
        return Some(Ok(vec![Filled::build(tails, content_of)]));
    };
    let (behind, before) = (proof.shape(x)[dim] - long.1, proof.short_shape(x)[dim] - short.1);
    if !tail.is_plain() {
        return None;
    }
    let mask = 1 << bit;
    if long.1 == short.1 && behind != before {
        // The first position is always there.
        let contents = |set: usize| filled.contents[spread(set, bit)];
        let tails = filled.tails.iter().filter(|other| other.dim != dim).cloned().collect();
        return (long == (0, 1)).then(|| Ok(vec![Filled::build(tails, contents)]));
    }
    if behind != before || behind < 0 {
        return None;
    }
    let mut tails = filled.tails.clone();
    tails[bit] = Tail { long: long.1 - long.0, short: short.1 - short.0, ..tail.clone() };
    let content_of = |set: usize| match set & mask != 0 && behind > 0 {
        true => filled.contents[set].or(filled.contents[set & !mask]),
        false => filled.contents[set],
    };
    Some(Ok(vec![Filled::build(tails, content_of)]))
}

/// A set of tails of which one is left out, among all.
fn spread(set: usize, bit: usize) -> usize {
    let low = set & ((1 << bit) - 1);
    low | (set & !((1 << bit) - 1)) << 1
}

/// Where a slice begins and ends.
fn interval(graph: &Graph, id: OpId, size: i64) -> Option<(i64, i64)> {
    let op = graph.op(id);
    let wrapped = |at: i64| if at < 0 { (at + size).max(0) } else { at.min(size) };
    if name(op) == "narrow" {
        let start = wrapped(int(op, 2, "start", 0));
        return Some((start, start + int(op, 3, "length", 0)));
    }
    let number = |position: usize, name: &str, default: i64| match op.arg(position, name) {
        None | Some(Arg::None) => Some(default),
        Some(Arg::Int(value)) => Some(*value),
        Some(_) => None,
    };
    let (start, end) = (wrapped(number(2, "start", 0)?), wrapped(number(3, "end", i64::MAX)?));
    (number(4, "step", 1)? == 1 && start < end).then_some((start, end))
}

/// The first position is there in every batch; which one is the last depends on it.
pub(super) fn select(proof: &Proof<'_>, id: OpId) -> Option<Result<Vec<Filled>>> {
    let op = proof.long.op(id);
    let x = *op.inputs().first()?;
    let dim = dim_of(op, 1, 0, proof.shape(x).len())?;
    let filled = &proof.of[x.index()];
    let (bit, tail) = filled.tail(dim)?;
    if proof.numbers[id.index()] || int(op, 2, "index", -1) != 0 {
        let fix = "find the last position by the mask, and pick it by a product with `one_hot`";
        return Some(Err(proof.mixed(id, tail.length, CUT, fix)));
    }
    let tails = (filled.tails.iter().filter(|other| other.dim != dim))
        .map(|other| Tail { dim: other.dim - usize::from(other.dim > dim), ..other.clone() })
        .collect();
    Some(Ok(vec![Filled::build(tails, |set| filled.contents[spread(set, bit)])]))
}

/// Elements before a dim move its tail; those behind it must be what stands there.
pub(super) fn pad(proof: &Proof<'_>, id: OpId) -> Option<Result<Vec<Filled>>> {
    let op = proof.long.op(id);
    let x = *op.inputs().first()?;
    let filled = &proof.of[x.index()];
    if filled.tails.is_empty() {
        return None;
    }
    Some(padded(proof, id, op, x, filled).unwrap_or_else(|| {
        let why = "what it puts behind is not what the batch is filled up with";
        Err(proof.mixed(id, filled.tails[0].length, why, "fill up with the same value"))
    }))
}

fn padded(proof: &Proof<'_>, id: OpId, op: &Op, x: TensorId, filled: &Filled) -> Option<Result<Vec<Filled>>> {
    let Some(Arg::List(sizes)) = op.arg(1, "pad") else { return None };
    let sizes: Option<Vec<i64>> =
        sizes.iter().map(|arg| if let Arg::Int(by) = arg { Some(*by) } else { None }).collect();
    let (sizes, rank) = (sizes?, proof.shape(x).len());
    let is_constant = name(op) != "pad"
        || matches!(op.arg(2, "mode"), None | Some(Arg::None))
        || op.arg(2, "mode") == Some(&Arg::Str("constant".into()));
    let value = match op.arg(if name(op) == "pad" { 3 } else { 2 }, "value") {
        None | Some(Arg::None) => 0.0,
        Some(Arg::Int(value)) => *value as f64,
        Some(Arg::Float(value)) => *value,
        Some(_) => return None,
    };
    let value = Content::filled(value, proof.long.tensor(x).dtype);
    if !is_constant || sizes.len() > 2 * rank || sizes.iter().any(|by| *by < 0) {
        return None;
    }
    let mut made = filled.clone();
    for (pair, by) in sizes.chunks(2).enumerate() {
        let (dim, &[before, behind]) = (rank - 1 - pair, by) else { return None };
        if (before, behind) != (0, 0) {
            made = padded_along(&made, dim, before, behind, value)?;
        }
    }
    Some(proof.require_same_numbers(id).map(|()| vec![made]))
}

fn padded_along(filled: &Filled, dim: usize, before: i64, behind: i64, value: Content) -> Option<Filled> {
    let Some((bit, tail)) = filled.tail(dim) else {
        return Some(Filled::build(filled.tails.clone(), |set| filled.contents[set].or(value)));
    };
    let mask = 1 << bit;
    let same = value.constant().is_some() && filled.contents[mask].constant() == value.constant();
    if !tail.is_plain() || (behind > 0 && !same) {
        return None;
    }
    let mut tails = filled.tails.clone();
    let more = before + behind;
    tails[bit] = Tail { long: tail.long + more, short: tail.short + more, ..tail.clone() };
    let content_of = |set: usize| match set & mask != 0 {
        true if behind > 0 => filled.contents[set].or(value),
        true => filled.contents[set],
        false => {
            filled.contents[set].or(value).or(if behind > 0 { filled.contents[set | mask] } else { value })
        }
    };
    Some(Filled::build(tails, content_of))
}

/// What stands before a dim that has a tail moves it; nothing may stand behind.
pub(super) fn cat(proof: &Proof<'_>, id: OpId) -> Option<Result<Vec<Filled>>> {
    let op = proof.long.op(id);
    let inputs = op.inputs();
    let dim = dim_of(op, 1, 0, proof.shape(*inputs.first()?).len())?;
    let filled_of = |id: &TensorId| &proof.of[id.index()];
    let (last, others) = inputs.split_last()?;
    let tailed = inputs.iter().find_map(|id| filled_of(id).tail(dim))?;
    let same_rest = others.iter().all(|id| {
        let rest =
            |filled: &Filled| filled.tails.iter().filter(|tail| tail.dim != dim).cloned().collect::<Vec<_>>();
        filled_of(id).tail(dim).is_none()
            && rest(filled_of(id)) == filled_of(id).tails
            && rest(filled_of(last)) == filled_of(id).tails
    });
    let (Some((bit, tail)), true) = (filled_of(last).tail(dim), same_rest) else {
        return Some(Err(proof.mixed(
            id,
            tailed.1.length,
            "what is filled in would stand before something else",
            "",
        )));
    };
    if !tail.is_plain() {
        return Some(Err(proof.mixed_along(id, tail)));
    }
    let before: i64 = others.iter().map(|id| proof.shape(*id)[dim]).sum();
    let mut tails = filled_of(last).tails.clone();
    tails[bit] = Tail { long: tail.long + before, short: tail.short + before, ..tail.clone() };
    let mask = 1 << bit;
    let contents = |set: usize| {
        let rest = |id: &TensorId| filled_of(id).contents[pressed(set, bit)];
        match set & mask != 0 {
            true => filled_of(last).contents[set],
            false => others.iter().map(rest).fold(filled_of(last).contents[set], Content::or),
        }
    };
    Some(Ok(vec![Filled::build(tails, contents)]))
}

/// A set of all tails as one of those without this one.
fn pressed(set: usize, bit: usize) -> usize {
    (set & ((1 << bit) - 1)) | (set >> (bit + 1)) << bit
}
