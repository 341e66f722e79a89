//! Operators along a dim that has a tail: softmax, sums of what stands before, triangles.

use diag::Result;
use graph::OpId;

use super::{dim_of, int};
use crate::Proof;
use crate::content::{Content, Kin, LOW};
use crate::state::{Filled, Tail};
use crate::values::name;

/// The operand, and the dim that the operator runs along, which has this tail.
fn running<'a>(proof: &'a Proof<'_>, id: OpId) -> Option<(&'a Filled, usize, &'a Tail)> {
    let op = proof.long.op(id);
    let x = *op.inputs().first()?;
    let dim = dim_of(op, 1, -1, proof.shape(x).len())?;
    let filled = &proof.of[x.index()];
    filled.tail(dim).map(|(bit, tail)| (filled, bit, tail))
}

/// Where a tail is so low that it gets exactly 0, all others share what they would without it.
pub(super) fn softmax(proof: &Proof<'_>, id: OpId) -> Option<Result<Vec<Filled>>> {
    let (filled, bit, tail) = running(proof, id)?;
    let mask = 1 << bit;
    if !filled.contents[mask].is_low() || filled.contents[0].is_low() {
        let why = "what is filled in gets a share of it: it is not known to be so low that it gets none";
        let fix = "fill scores with -inf (or `torch.finfo(dtype).min`) where the mask is 0, before softmax";
        return Some(Err(proof.mixed(id, tail.length, why, fix)));
    }
    let content_of = |set: usize| {
        let (before, behind) = (filled.contents[set & !mask], filled.contents[set | mask]);
        let finite = |content: Content| !content.may_be_infinite();
        // A row of nothing but minus infinity has no softmax.
        match set & !mask == 0 || sees_some(before) {
            true if set & mask != 0 && behind.is_low() => Content::number(0.0),
            false if set & !mask != 0 && !finite(before) && !finite(behind) => Content::Wild,
            _ if before == Content::Wild || behind == Content::Wild => Content::Wild,
            _ => Content::within(0.0, 1.0),
        }
    };
    Some(Ok(vec![Filled::build(filled.tails.clone(), content_of)]))
}

/// Whether some of it is not low, as outside of all tails.
fn sees_some(content: Content) -> bool {
    match content {
        Content::Mixed { kin, .. } => kin >= Kin::Chosen,
        other => other.range().is_some_and(|(lo, _)| lo > LOW),
    }
}

/// Each position has the sum up to it: the tail is behind.
pub(super) fn cumsum(proof: &Proof<'_>, id: OpId) -> Option<Result<Vec<Filled>>> {
    let (filled, bit, tail) = running(proof, id)?;
    if !tail.is_plain() {
        return Some(Err(proof.mixed_along(id, tail)));
    }
    let content_of = |set: usize| {
        let both = [filled.contents[set & !(1 << bit)], filled.contents[set]];
        if both.iter().all(|content| content.is_finite()) { Content::FINITE } else { Content::Wild }
    };
    Some(proof.require_same_numbers(id).map(|()| vec![Filled::build(filled.tails.clone(), content_of)]))
}

/// Positions of a row and a column of the same length are compared; else zeros may be anywhere.
pub(super) fn triangle(proof: &Proof<'_>, id: OpId) -> Option<Result<Vec<Filled>>> {
    let op = proof.long.op(id);
    let x = *op.inputs().first()?;
    let (filled, rank) = (&proof.of[x.index()], proof.shape(x).len());
    let [row, column] = [rank.checked_sub(2)?, rank - 1].map(|dim| filled.tail(dim));
    let sides: Vec<&Tail> = [row, column].into_iter().flatten().map(|(_, tail)| tail).collect();
    if let Some(tail) = sides.iter().find(|tail| !tail.is_plain()) {
        return Some(Err(proof.mixed_along(id, tail)));
    }
    let isomorphic = matches!(sides[..], [a, b] if a.is_like(b));
    let (lower, by) = (name(op) == "tril", int(op, 1, "diagonal", 0));
    let content_of = |set: usize| {
        let is = |side: Option<(usize, &Tail)>| side.is_some_and(|(bit, _)| set >> bit & 1 == 1);
        // By how much the column is before or behind the row, at least.
        let kept = match (is(row), is(column)) {
            (false, true) if isomorphic => sure(lower, by <= 0, by <= 1),
            (true, false) if isomorphic => sure(!lower, by >= 0, by >= -1),
            _ => None,
        };
        let content = filled.contents[set];
        match kept {
            Some(true) => content,
            Some(false) => Content::number(0.0),
            None => content.or(Content::number(0.0)),
        }
    };
    Some(proof.require_same_numbers(id).map(|()| vec![Filled::build(filled.tails.clone(), content_of)]))
}

/// Whether elements are kept: those of the one triangle are not if `none`, those of the other are if `all`.
fn sure(drops: bool, none: bool, all: bool) -> Option<bool> {
    match drops {
        true => none.then_some(false),
        false => all.then_some(true),
    }
}
