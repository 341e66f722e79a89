//! Order and other statistics along dims, which stay whole: medians, quantiles, norms of matrices, integrals.

use graph::{Dtype, Op};

use super::common::{
    Terms, along, dims, flag, int, ints, mark, operand, output, plain, shape, terms, text, unary, whole, wrap,
};
use super::{Family, Nature, View};
use crate::algebra::Rule;
use crate::cost::{Call, Sketch};
use crate::local::{LocalOp, Part};

pub(super) const FAMILY: Family = Family {
    name: "statistics",
    targets: &[
        "aten.median.default",
        "aten.median.dim",
        "aten.nanmedian.default",
        "aten.nanmedian.dim",
        "aten.mode.default",
        "aten.kthvalue.default",
        "aten.aminmax.default",
        "aten.nanmean.default",
        "aten.quantile.default",
        "aten.quantile.scalar",
        "aten.nanquantile.default",
        "aten.nanquantile.scalar",
        "aten.frobenius_norm.dim",
        "aten.linalg_norm.default",
        "aten.linalg_norm.ord_str",
        "aten.linalg_matrix_norm.default",
        "aten.linalg_matrix_norm.str_ord",
        "aten.trapezoid.dx",
        "aten.trapezoid.x",
        "aten.trapz.dx",
        "aten.trapz.x",
        "aten.cumulative_trapezoid.dx",
        "aten.cumulative_trapezoid.x",
        "aten.msort.default",
        "aten.renorm.default",
        "aten.dist.default",
        "aten.trace.default",
    ],
    rule,
    local,
    rewriting: None,
    cost,
    costs: "an operation for each element; keeps the places of what is picked, else input, result and about what each \
            step computes",
    nature: Nature::PLAIN,
};

fn name(op: &Op) -> &str {
    op.target.split('.').nth(1).unwrap_or_default()
}

fn rule(view: View<'_>) -> Option<String> {
    let input = *view.input_shapes().first()?;
    match name(view.op) {
        "msort" => kept(view, input, |dim| dim != 0),
        "renorm" => {
            let dim = wrap(int(view.op, 2, "dim", 0), input.len())?;
            kept(view, input, |at| at == dim)
        }
        "cumulative_trapezoid" | "trapezoid" | "trapz" => integral(view, input),
        "quantile" | "nanquantile" if view.op.target.ends_with("default") => quantiles(view, input),
        "dist" | "trace" => entire(view),
        _ => reduce(view, input),
    }
}

fn kept(view: View<'_>, input: &[i64], kept: impl Fn(usize) -> bool) -> Option<String> {
    let (read, written) = along(input, output(view)?, kept);
    unary(view, &read, &written, false)
}

/// Nothing may be split.
fn entire(view: View<'_>) -> Option<String> {
    let inputs: Vec<String> = view
        .input_shapes()
        .iter()
        .enumerate()
        .map(|(at, shape)| operand(&whole(shape, &format!("x{at}_"))))
        .collect();
    let linear = if name(view.op) == "trace" { vec![vec![0]] } else { vec![] };
    text(view, &inputs, &[operand(&whole(output(view)?, "y"))], &linear)
}

/// Of values at equal distances, or at places that are given: for all rows, or for each.
fn integral(view: View<'_>, input: &[i64]) -> Option<String> {
    let dim = wrap(int(view.op, KEYWORD_ONLY, "dim", -1), input.len())?;
    let mut read = terms(input);
    read[dim] = mark(&read[dim], "^");
    let written = match name(view.op) {
        "cumulative_trapezoid" => along(input, output(view)?, |at| at != dim).1,
        _ => without(&read, dim, false),
    };
    let mut inputs = vec![operand(&read)];
    match view.input_shapes().get(1) {
        Some(places) if *places == input => inputs.push(operand(&read)),
        Some([_]) => inputs.push(read[dim].clone()),
        Some(_) => return None,
        None => {}
    }
    let linear = if inputs.len() == 1 { vec![vec![0]] } else { vec![] };
    text(view, &inputs, &[operand(&written)], &linear)
}

/// The position of an argument that has none.
const KEYWORD_ONLY: usize = usize::MAX;

/// The quantiles come before the dims that are left.
fn quantiles(view: View<'_>, input: &[i64]) -> Option<String> {
    let asked = shape(view, 1, "q")?;
    let over = dims(view.op, 2, "dim", input.len())?;
    let (mut read, asked) = (terms(input), whole(asked, "q"));
    over.iter().for_each(|&dim| read[dim] = mark(&read[dim], "^"));
    let left = match over[..] {
        [dim] => without(&read, dim, flag(view.op, 3, "keepdim", false)),
        _ if flag(view.op, 3, "keepdim", false) => vec!["1".into(); input.len()],
        _ => vec![],
    };
    let written = [asked.clone(), left].concat();
    text(view, &[operand(&read), operand(&asked)], &[operand(&written)], &[])
}

fn without(names: &[String], dim: usize, keeps: bool) -> Terms {
    let mut rest = names.to_vec();
    if keeps {
        rest[dim] = "1".into();
    } else {
        rest.remove(dim);
    }
    rest
}

fn reduce(view: View<'_>, input: &[i64]) -> Option<String> {
    let over = reduced(view.op, input.len())?;
    let mut read = terms(input);
    over.iter().for_each(|&dim| read[dim] = mark(&read[dim], "^"));
    let keep = output(view)?.len() == input.len();
    let left = |(dim, name): (usize, &String)| match over.contains(&dim) {
        true => keep.then(|| "1".to_string()),
        false => Some(name.clone()),
    };
    let written: Terms = read.iter().enumerate().filter_map(left).collect();
    unary(view, &read, &written, false)
}

/// The dims that are reduced.
fn reduced(op: &Op, rank: usize) -> Option<Vec<usize>> {
    let last = |position, default| Some(vec![wrap(int(op, position, "dim", default), rank)?]);
    match (name(op), op.target.rsplit('.').next()?) {
        ("mode", _) | ("median" | "nanmedian", "dim") => last(1, -1),
        ("kthvalue", _) => last(2, -1),
        ("aminmax", _) => dims(op, KEYWORD_ONLY, "dim", rank),
        ("quantile" | "nanquantile" | "linalg_norm", _) => dims(op, 2, "dim", rank),
        ("linalg_matrix_norm", _) => match ints(op, 2, "dim") {
            Some(_) => dims(op, 2, "dim", rank),
            None => Some((rank.checked_sub(2)?..rank).collect()),
        },
        ("frobenius_norm" | "nanmean", _) => dims(op, 1, "dim", rank),
        _ => Some((0..rank).collect()),
    }
}

fn local(view: View<'_>, rule: &Rule, part: &Part) -> LocalOp {
    plain(view, rule, part)
}

fn cost(call: &Call<'_>) -> Sketch {
    let sketch = Sketch::new(call);
    let places = call.made() * Dtype::I64.bytes() as u64;
    match call.name() {
        "median" | "nanmedian" | "mode" | "kthvalue" if call.results.len() > 1 => {
            sketch.keeps("*:").keeps_result(call, 1, places)
        }
        "msort" => sketch.keeps("*:").keeps_more(call.given(0) * Dtype::I64.bytes() as u64),
        "trapezoid" | "trapz" | "cumulative_trapezoid" if call.operands.len() > 1 => {
            sketch.keeps("*:").keeps_more(call.given(0) * call.width())
        }
        "quantile" | "nanquantile" => {
            sketch.keeps("*:").keeps_more(3 * call.given(0) * Dtype::I64.bytes() as u64)
        }
        "trace" | "renorm" | "nanmean" | "trapezoid" | "trapz" | "cumulative_trapezoid" => sketch,
        _ => sketch.keeps_result(call, 0, call.made() * call.width()),
    }
}
