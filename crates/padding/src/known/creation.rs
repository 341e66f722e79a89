//! Tensors made of numbers: what has a length has its tail, and positions count on in it.

use diag::Result;
use graph::{Arg, OpId};

use crate::Proof;
use crate::content::{Bound, Content, Kin};
use crate::state::{Filled, Tail};
use crate::values::name;

pub(super) fn made(proof: &Proof<'_>, id: OpId) -> Option<Result<Vec<Filled>>> {
    let op = proof.long.op(id);
    let out = op.outputs[0]?;
    // What else there is than sizes is the same for both.
    let number = |position: usize| match op.args.get(position) {
        other if other != proof.short.op(id).args.get(position) => None,
        Some(Arg::Int(value)) => Some(*value as f64),
        Some(Arg::Float(value)) => Some(*value),
        Some(Arg::Bool(value)) => Some(f64::from(*value)),
        _ => None,
    };
    let dtype = proof.long.tensor(out).dtype;
    let content = match name(op) {
        "zeros" | "new_zeros" => Content::number(0.0),
        "ones" | "new_ones" => Content::number(1.0),
        "full" => Content::filled(number(1)?, dtype),
        "new_full" => Content::filled(number(2)?, dtype),
        "rand" | "rand_like" => Content::within(0.0, 1.0),
        "empty" | "new_empty" => Content::Wild,
        "arange" => return Some(positions(proof, id)),
        _ => Content::FINITE,
    };
    let rank = proof.shape(out).len();
    let tails: Vec<Tail> = (0..rank).filter_map(|dim| proof.tail_by_shape(out, dim)).collect();
    Some(Ok(vec![Filled::build(tails, |_| content)]))
}

/// Integers from a first one on, one by one; others are not followed.
fn positions(proof: &Proof<'_>, id: OpId) -> Result<Vec<Filled>> {
    let numbers = |graph: &graph::Graph| -> Option<(i64, i64)> {
        let ints: Option<Vec<i64>> = (graph.op(id).args.iter())
            .map(|arg| if let Arg::Int(value) = arg { Some(*value) } else { None })
            .collect();
        match ints?[..] {
            [_] => Some((0, 1)),
            [first, _] => Some((first, 1)),
            [first, _, step] => Some((first, step)),
            _ => None,
        }
    };
    let out = proof.long.op(id).outputs[0];
    let Some(tail) = out.and_then(|out| proof.tail_by_shape(out, 0)) else {
        proof.require_same_numbers(id)?;
        return Ok(vec![Filled::real()]);
    };
    let (Some((first, 1)), true) = (numbers(proof.long), numbers(proof.long) == numbers(proof.short)) else {
        return Err(proof.other_numbers(id));
    };
    let sizes = &proof.lengths[tail.length];
    let more = (first + tail.short - sizes.short) as f64;
    let length = Some((tail.length, sizes.long));
    let within = |lo: Bound, hi: Bound| Content::Within { lo, hi, kin: Kin::Other };
    let last = Bound::number((first + tail.long - 1) as f64);
    let before = within(Bound::number(first as f64), Bound { length, plus: more - 1.0 });
    let behind = within(Bound { length, plus: more }, last);
    Ok(vec![Filled::build(vec![tail], |set| if set == 0 { before } else { behind })])
}
