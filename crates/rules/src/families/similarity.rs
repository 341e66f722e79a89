//! Distances and similarities of rows: the dim that is compared stays whole.

use graph::Op;

use super::common::{
    batch, broadcast, flag, float, int, mark, operand, output, plain, set, shape, term, terms, text, wrap,
};
use super::{Family, Nature, View};
use crate::algebra::Rule;
use crate::cost::{Call, Sketch};
use crate::local::{LocalArg, LocalOp, Part};

pub(super) const FAMILY: Family = Family {
    name: "similarity",
    targets: &["aten.cdist.default", "aten.cosine_similarity.default", "aten.pairwise_distance.default"],
    rule,
    local,
    rewriting: None,
    cost,
    costs: "3 operations for each element of each pair; keeps both tensors and about what each step computes",
    nature: Nature { dear: true, ..Nature::PLAIN },
};

fn name(op: &Op) -> &str {
    op.target.split('.').nth(1).unwrap_or_default()
}

fn rule(view: View<'_>) -> Option<String> {
    let (one, other) = (*view.input_shapes().first()?, *view.input_shapes().get(1)?);
    match name(view.op) {
        "cdist" => all_pairs(view, one, other),
        "cosine_similarity" => pairs(view, one, other, int(view.op, 2, "dim", 1), false),
        _ => pairs(view, one, other, -1, flag(view.op, 4, "keepdim", false)),
    }
}

fn all_pairs(view: View<'_>, one: &[i64], other: &[i64]) -> Option<String> {
    let result = output(view)?;
    let leading = result.len().checked_sub(2)?;
    let names = batch(leading, result);
    let (p, r) = (term(result[leading], "p"), term(result[leading + 1], "r"));
    let compared = mark(&term(*one.last()?, "m"), "^");
    let terms = |shape: &[i64], row_term: &String| {
        let before = broadcast(&shape[..shape.len() - 2], &result[..leading], &names);
        operand(&[before, vec![row_term.clone(), compared.clone()]].concat())
    };
    if one.len() < 2 || other.len() < 2 {
        return None;
    }
    let made = operand(&[names.clone(), vec![p.clone(), r.clone()]].concat());
    text(view, &[terms(one, &p), terms(other, &r)], &[made], &[])
}

fn pairs(view: View<'_>, one: &[i64], other: &[i64], dim: i64, keeps: bool) -> Option<String> {
    if one.len() != other.len() {
        return None;
    }
    let larger = |(a, b): (&i64, &i64)| if *a == 1 { *b } else { *a };
    let common: Vec<i64> = one.iter().zip(other).map(larger).collect();
    let (mut names, dim) = (terms(&common), wrap(dim, common.len())?);
    names[dim] = mark(&names[dim], "^");
    let inputs = [one, other].map(|shape| operand(&broadcast(shape, &common, &names)));
    if keeps {
        names[dim] = "1".into();
    } else {
        names.remove(dim);
    }
    text(view, &inputs, &[operand(&names)], &[])
}

/// Whether Euclidean distances of many rows are computed by a product: parts do as the whole does.
fn local(view: View<'_>, rule: &Rule, part: &Part) -> LocalOp {
    const EXACT: i64 = 2;
    const BY_PRODUCT: i64 = 1;
    const MANY: i64 = 25;
    let mut local = plain(view, rule, part);
    let chosen = int(view.op, 3, "compute_mode", 0);
    let euclidean = (float(view.op, 2, "p", 2.0) - 2.0).abs() < f64::EPSILON;
    if name(view.op) == "cdist" && chosen == 0 && euclidean {
        let rows = |position, name| shape(view, position, name).and_then(|s| s.iter().nth_back(1)).copied();
        let many = rows(0, "x1") > Some(MANY) || rows(1, "x2") > Some(MANY);
        let mode = LocalArg::Int(if many { BY_PRODUCT } else { EXACT });
        set(&mut local, 3, "compute_mode", mode);
    }
    local
}

fn cost(call: &Call<'_>) -> Sketch {
    const OPERATIONS: u64 = 3;
    let sketch = Sketch::new(call);
    let compared = call.operands.first().and_then(|it| it.shape.last()).map_or(1, |size| size.unsigned_abs());
    match call.name() {
        "cdist" => sketch.flops(OPERATIONS * call.made() * compared).keeps("*: 0 1 r0"),
        _ => sketch.flops(OPERATIONS * call.largest()).keeps_more(2 * call.largest() * call.width()),
    }
}
