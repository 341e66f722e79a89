//! Which operators commute with maxima and minima: those that move elements, and functions that only rise or fall.
//!
//! Only functions that are defined everywhere are here: the part of a maximum that one rank has may be negative
//! where the maximum is not, and a root of it would be no number. Sums of two tensors are not either: of infinite ones
//! of both signs.

use graph::{Arg, Dtype, Op};

use super::View;
use super::common::float;

/// Operators that move elements: what they are linear in, they also take maxima of.
const MOVES: [&str; 46] = [
    "_unsafe_index",
    "_unsafe_view",
    "alias",
    "broadcast_tensors",
    "broadcast_to",
    "cat",
    "chunk",
    "clone",
    "contiguous",
    "detach",
    "detach_copy",
    "diagonal",
    "expand",
    "expand_as",
    "flatten",
    "flip",
    "gather",
    "index",
    "index_select",
    "lift_fresh_copy",
    "movedim",
    "narrow",
    "permute",
    "repeat",
    "repeat_interleave",
    "reshape",
    "reshape_as",
    "roll",
    "select",
    "slice",
    "split",
    "split_with_sizes",
    "squeeze",
    "stack",
    "swapaxes",
    "t",
    "take",
    "take_along_dim",
    "tile",
    "transpose",
    "unbind",
    "unflatten",
    "unfold",
    "unsqueeze",
    "view",
    "view_as",
];

/// Functions of one element that never fall.
const RISING: [&str; 20] = [
    "asinh",
    "atan",
    "ceil",
    "clamp",
    "clamp_max",
    "clamp_min",
    "erf",
    "exp",
    "exp2",
    "expm1",
    "floor",
    "hardsigmoid",
    "hardtanh",
    "relu",
    "relu6",
    "round",
    "sigmoid",
    "sinh",
    "tanh",
    "trunc",
];

/// Functions of one element that never rise.
const FALLING: [&str; 2] = ["erfc", "neg"];

/// The clauses of an operator whose rule has this text.
pub(super) fn clauses(view: View<'_>, text: &str) -> String {
    let name = view.op.target.split('.').nth(1).unwrap_or_default();
    if MOVES.contains(&name) || view.op.target == "aten.where.self" {
        let linear = text.split(';').filter_map(|clause| clause.trim().strip_prefix("linear "));
        return linear.map(|operands| format!(" ; rising {operands}")).collect();
    }
    if view.op.inputs().len() != 1 {
        return String::new();
    }
    match direction(view, name) {
        Some(true) => " ; rising 0".into(),
        Some(false) => " ; falling 0".into(),
        None => String::new(),
    }
}

/// Whether the one operand is given to a function that rises, or to one that falls.
fn direction(view: View<'_>, name: &str) -> Option<bool> {
    if RISING.contains(&name) || is_wider(view, name) {
        return Some(true);
    }
    if name == "logical_not" && reads(view, |dtype| dtype == Dtype::Bool)
        || FALLING.contains(&name) && is_float(view)
    {
        return Some(false);
    }
    let factor = scale(view.op, name)?;
    (is_float(view) && factor.is_finite() && factor != 0.0).then_some(factor > 0.0)
}

/// What an element is multiplied with, where numbers are added to it or multiplied with it.
fn scale(op: &Op, name: &str) -> Option<f64> {
    let tensor_first = matches!(op.args.first(), Some(Arg::Tensor(_)));
    let number = || match op.args.get(1)? {
        Arg::Float(value) => Some(*value),
        Arg::Int(value) => Some(*value as f64),
        _ => None,
    };
    let finite = |value: f64| value.is_finite().then_some(1.0);
    match name {
        "mul" if tensor_first => number(),
        "div" if tensor_first && matches!(&op.target[..], "aten.div.Tensor" | "aten.div.Scalar") => number(),
        "add" | "sub" if tensor_first => finite(number()?),
        "rsub" if tensor_first => finite(number()?).map(|_| -float(op, 2, "alpha", 1.0)),
        _ => None,
    }
}

fn reads(view: View<'_>, dtype: impl Fn(Dtype) -> bool) -> bool {
    view.op.inputs().iter().all(|id| dtype(view.graph.tensor(*id).dtype))
}

fn is_float(view: View<'_>) -> bool {
    let float = |id: &graph::TensorId| view.graph.tensor(*id).dtype.is_float();
    reads(view, Dtype::is_float) && view.op.outputs.iter().flatten().all(float)
}

/// Whether it is a cast between types of floating point, or one that changes nothing.
fn is_wider(view: View<'_>, name: &str) -> bool {
    let is_cast = ["to", "_to_copy"].contains(&name);
    let input_dtype = view.op.inputs().first().map(|id| view.graph.tensor(*id).dtype);
    let made = view.op.outputs.iter().flatten().next().map(|id| view.graph.tensor(*id).dtype);
    is_cast && (input_dtype == made || is_float(view))
}
