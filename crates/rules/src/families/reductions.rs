//! Sums, means, extremes and what else runs along a dim.

use graph::{Dtype, Op};

use super::common::{
    Terms, along, call, dims, float, get, has_gradient, int, is_split, letter, mark, operand, output, plain,
    shape, term, terms, text, wrap,
};
use super::{Family, Nature, View};
use crate::algebra::Rule;
use crate::cost::{Call, Sketch};
use crate::local::{LocalArg, LocalOp, Part, ints};

pub(super) const FAMILY: Family = Family {
    name: "reductions",
    targets: &[
        "aten.sum.default",
        "aten.sum.dim_IntList",
        "aten.nansum.default",
        "aten.mean.default",
        "aten.mean.dim",
        "aten.count_nonzero.default",
        "aten.count_nonzero.dim_IntList",
        "aten.amax.default",
        "aten.amin.default",
        "aten.max.default",
        "aten.min.default",
        "aten.max.dim",
        "aten.min.dim",
        "aten.any.default",
        "aten.any.dim",
        "aten.any.dims",
        "aten.all.default",
        "aten.all.dim",
        "aten.all.dims",
        "aten.argmax.default",
        "aten.argmin.default",
        "aten.var.default",
        "aten.var.dim",
        "aten.var.correction",
        "aten.std.default",
        "aten.std.dim",
        "aten.std.correction",
        "aten.var_mean.default",
        "aten.var_mean.correction",
        "aten.var_mean.dim",
        "aten.std_mean.default",
        "aten.std_mean.correction",
        "aten.std_mean.dim",
        "aten.logsumexp.default",
        "aten.norm.Scalar",
        "aten.norm.ScalarOpt_dim",
        "aten.linalg_vector_norm.default",
        "aten.prod.default",
        "aten.prod.dim_int",
        "aten.cumsum.default",
        "aten.cumprod.default",
        "aten.logcumsumexp.default",
        "aten.cummax.default",
        "aten.cummin.default",
        "aten.topk.default",
        "aten.sort.default",
        "aten.sort.stable",
        "aten.argsort.default",
        "aten.argsort.stable",
        "aten.histc.default",
    ],
    rule,
    local,
    rewriting: None,
    cost,
    costs: "an operation for each element; keeps nothing of sums, the places of extremes along a dim, \
            else input and result",
    nature: Nature::PLAIN,
};

fn name(op: &Op) -> &str {
    op.target.split('.').nth(1).unwrap_or_default()
}

fn rule(view: View<'_>) -> Option<String> {
    match name(view.op) {
        "cumsum" | "cumprod" | "logcumsumexp" | "cummax" | "cummin" => scan(view, "dim", 1, 0),
        "topk" => scan(view, "dim", 2, -1),
        "sort" | "argsort" => scan(view, "dim", 1, -1),
        "histc" => histogram(view),
        _ => reduce(view),
    }
}

/// The dim that is run along stays whole.
fn scan(view: View<'_>, key: &str, position: usize, default: i64) -> Option<String> {
    let input = shape(view, 0, "self")?;
    let position = if view.op.target.ends_with("stable") { 2 } else { position };
    let dim = wrap(int(view.op, position, key, default), input.len())?;
    let (read, written) = along(input, output(view)?, |at| at != dim);
    let linear = if name(view.op) == "cumsum" { vec![vec![0]] } else { vec![] };
    text(view, &[operand(&read)], &vec![operand(&written); view.op.outputs.len()], &linear)
}

/// Parts count their own elements, between the same bounds.
fn histogram(view: View<'_>) -> Option<String> {
    if float(view.op, 2, "min", 0.0) >= float(view.op, 3, "max", 0.0) {
        return None; // The bounds are those of all elements.
    }
    let counted: Terms = terms(shape(view, 0, "self")?).iter().map(|name| mark(name, "+")).collect();
    let bins = mark(&term(*output(view)?.first()?, "bins"), "^");
    text(view, &[operand(&counted)], &[bins], &[])
}

fn reduce(view: View<'_>) -> Option<String> {
    let input = shape(view, 0, "self")?;
    let reduced = reduced(view.op, input.len())?;
    let sign = sign(view);
    let mut read = terms(input);
    for &dim in &reduced {
        read[dim] = mark(&read[dim], sign);
    }
    let written = remaining(input, &reduced, output(view)?.len() == input.len());
    let outputs = vec![operand(&written); view.op.outputs.len()];
    let linear = matches!(name(view.op), "sum" | "mean").then(|| vec![0]);
    text(view, &[operand(&read)], &outputs, linear.as_slice())
}

fn remaining(input: &[i64], reduced: &[usize], keep: bool) -> Terms {
    let name = |(dim, &size): (usize, &i64)| match reduced.contains(&dim) {
        true => keep.then(|| "1".into()),
        false => Some(term(size, &letter(dim))),
    };
    input.iter().enumerate().filter_map(name).collect()
}

/// The dims that are reduced.
fn reduced(op: &Op, rank: usize) -> Option<Vec<usize>> {
    let overload = op.target.rsplit('.').next().unwrap_or_default();
    match (name(op), overload) {
        ("amax" | "amin" | "logsumexp" | "argmax" | "argmin" | "count_nonzero" | "nansum", _) => {
            dims(op, 1, "dim", rank)
        }
        ("norm", "ScalarOpt_dim") | ("linalg_vector_norm", _) => dims(op, 2, "dim", rank),
        (_, "default" | "Scalar") => Some((0..rank).collect()),
        _ => dims(op, 1, "dim", rank),
    }
}

/// What splitting a reduced dim means. A maximum shares its gradient among ties: where one is
/// needed, it stays whole.
fn sign(view: View<'_>) -> &'static str {
    match (name(view.op), &view.op.target[..]) {
        ("sum" | "nansum" | "mean" | "count_nonzero", _) => "+",
        ("any", _) => "|",
        ("all", _) => "&",
        ("amax", _) | (_, "aten.max.default") if !has_gradient(view) => ">",
        ("amin", _) | (_, "aten.min.default") if !has_gradient(view) => "<",
        _ => "^",
    }
}

fn local(view: View<'_>, rule: &Rule, part: &Part) -> LocalOp {
    let mean = if name(view.op) == "mean" { mean(view, rule, part) } else { None };
    mean.unwrap_or_else(|| plain(view, rule, part))
}

/// The position of an argument that has none.
const KEYWORD_ONLY: usize = usize::MAX;

/// A part of a mean is its sum over the count of the whole.
fn mean(view: View<'_>, rule: &Rule, part: &Part) -> Option<LocalOp> {
    let input = shape(view, 0, "self")?;
    let over = reduced(view.op, input.len())?;
    if !over.iter().any(|&dim| is_split(rule, part, &letter(dim))) {
        return None;
    }
    let local = plain(view, rule, part);
    let list: Vec<i64> = over.iter().map(|&dim| dim as i64).collect();
    let keep = output(view)?.len() == input.len();
    let args = vec![
        LocalArg::Input(0),
        ints(&list),
        LocalArg::Bool(keep),
        LocalArg::Int(over.iter().map(|&dim| input[dim]).product()),
        get(&local, KEYWORD_ONLY, "dtype"),
    ];
    Some(call("sw.mean", args))
}

fn cost(call: &Call<'_>) -> Sketch {
    let sketch = Sketch::new(call).meanwhile(0, steps(call));
    let places = call.made() * Dtype::I64.bytes() as u64;
    let along = call.op.target.ends_with(".dim");
    match call.name() {
        "max" | "min" if along => sketch.keeps("*:").keeps_result(call, 1, places),
        "topk" | "sort" => sketch.keeps("*:").keeps_result(call, 1, places),
        "cummax" | "cummin" => sketch.keeps("*: 0").keeps_result(call, 1, places),
        "amax" | "amin" | "max" | "min" | "std" | "std_mean" | "logsumexp" | "norm"
        | "linalg_vector_norm" | "prod" | "cumprod" | "logcumsumexp" => {
            sketch.keeps("*: 0").keeps_result(call, 0, call.made() * call.width())
        }
        "sum" => sketch.keeps("*:").passes([0]),
        // The runtime's own mean divides the sum.
        "mean" if call.op.target.starts_with("sw.") => sketch.keeps("*:").passes([0]),
        "mean" => sketch.keeps("*:"),
        _ => sketch,
    }
}

/// Bytes of the values that backward computes one from the other.
fn steps(call: &Call<'_>) -> u64 {
    let along = call.op.target.ends_with(".dim");
    let steps = match call.name() {
        "max" | "min" if along => 1,
        "topk" | "sort" | "cummax" | "cummin" | "std" | "var" | "norm" | "linalg_vector_norm" => 1,
        "var_mean" | "std_mean" | "logsumexp" | "cumsum" => 2,
        "prod" => 5,
        "cumprod" | "logcumsumexp" => 7,
        _ => 0,
    };
    steps * call.given(0) * call.width()
}
