//! Losses of classes: targets that are ignored count nothing.

use diag::Result;
use graph::OpId;

use super::int;
use crate::Proof;
use crate::content::Content;
use crate::state::{Filled, Tail};

const NONE: i64 = 0;

pub(super) fn loss(proof: &Proof<'_>, id: OpId) -> Option<Result<Vec<Filled>>> {
    let op = proof.long.op(id);
    let &[input, target, ..] = &op.inputs()[..] else { return None };
    let (x, labels) = (&proof.of[input.index()], &proof.of[target.index()]);
    if x.tails.is_empty() && labels.tails.is_empty() {
        return None;
    }
    // Classes are the second dim of several.
    let rank = proof.shape(input).len();
    let rows: Vec<Tail> = x
        .tails
        .iter()
        .map(|tail| Tail { dim: tail.dim - usize::from(tail.dim > 1), ..tail.clone() })
        .collect();
    let of_classes = x.tails.iter().find(|tail| tail.dim == usize::from(rank > 1));
    let by_class = !proof.long.tensor(target).dtype.is_float();
    if let Some(tail) = of_classes.or(x.tails.first().filter(|_| !by_class || rows != labels.tails)) {
        return Some(Err(proof.mixed_along(id, tail)));
    }
    let tail = labels.tails.first()?;
    if rows != labels.tails {
        return Some(Err(proof.mixed_along(id, tail)));
    }
    let ignored = int(op, 4, "ignore_index", -100);
    let ignores = |content: &Content| content.constant() == Some(ignored as f64);
    if int(op, 3, "reduction", 1) != NONE && !labels.contents[1..].iter().all(ignores) {
        let why =
            format!("targets that are filled in are {}, and those that are ignored {ignored}", said(labels));
        let fix = "fill up the labels with its `ignore_index`";
        return Some(Err(proof.mixed(id, tail.length, &why, fix)));
    }
    let finite = |set: usize| x.contents[set].is_finite();
    let made = |set: usize| match ignores(&labels.contents[set]) {
        _ if !finite(set) => Content::Wild,
        true => Content::number(0.0),
        false => Content::Wild,
    };
    let result = if int(op, 3, "reduction", 1) == NONE {
        Filled::build(labels.tails.clone(), made)
    } else if (1..x.contents.len()).all(finite) {
        Filled::real()
    } else {
        return Some(Err(proof.not_finite(id)));
    };
    let outputs = op.outputs.len();
    Some(proof.require_same_numbers(id).map(|()| vec![result; outputs]))
}

fn said(labels: &Filled) -> String {
    match labels.contents[1].constant() {
        Some(value) => value.to_string(),
        None => "not known".into(),
    }
}
