//! Attention: batch and heads map, and so do queries where no mask is made from their place.

use graph::Op;

use super::common::{
    Terms, batch, broadcast, bytes, flag, float, float_inputs, get, mark, numel, operand, output, plain,
    product, shape, term, text,
};
use super::{Cost, Family, View};
use crate::algebra::Rule;
use crate::local::{LocalArg, LocalOp, Part};

pub(super) const FAMILY: Family = Family {
    name: "attention",
    targets: &["aten.scaled_dot_product_attention.default"],
    rule,
    local,
    rewriting: None,
    cost,
};

fn rule(view: View<'_>) -> Option<String> {
    let q = shape(view, 0, "query")?;
    let (k, v) = (shape(view, 1, "key")?, shape(view, 2, "value")?);
    let result = output(view)?;
    if q.len() < 2 || k.len() < 2 || v.len() < 2 || result.len() < 2 {
        return None;
    }
    let leading = result.len() - 2;
    let names = heads(view.op, &result[..leading], k);
    let random = is_random(view.op);
    let fixed = |name: &str, size: i64| mark(&term(size, name), "^");
    let free = |name: &str, size: i64, fix: bool| {
        if fix { fixed(name, size) } else { term(size, name) }
    };
    let queries = free("l", q[q.len() - 2], random || flag(view.op, 5, "is_causal", false));
    let keys = fixed("s", k[k.len() - 2]);
    let width = fixed("e", *q.last()?);
    let made = free("d", *v.last()?, random);
    let with = |shape: &[i64], names: &[String], last: [&String; 2]| {
        let mut terms = broadcast(&shape[..shape.len() - 2], &result[..leading], names);
        terms.extend(last.map(Clone::clone));
        operand(&terms)
    };
    let shared = shared(&names);
    let mut inputs = vec![
        with(q, &names, [&queries, &width]),
        with(k, &shared, [&keys, &width]),
        with(v, &shared, [&keys, &made]),
    ];
    if let Some(mask) = shape(view, 3, "attn_mask") {
        let names = [names.clone(), vec![queries.clone(), keys]].concat();
        let last = [q[q.len() - 2], k[k.len() - 2]];
        inputs.push(operand(&broadcast(mask, &[&result[..leading], &last].concat(), &names)));
    }
    let written = with(result, &names, [&queries, &made]);
    let linear = if random { vec![] } else { vec![vec![2]] };
    text(view, &inputs, &[written], &linear)
}

/// The dims before the last two. Heads of a group share their keys: `(h g)`.
fn heads(op: &Op, leading: &[i64], keys: &[i64]) -> Terms {
    let mut names = batch(leading.len(), leading);
    if let (Some(last), Some(&heads)) = (names.last_mut(), leading.last()) {
        *last = term(heads, "h");
        let kept = keys.len().checked_sub(3).map_or(1, |dim| keys[dim]);
        if flag(op, 7, "enable_gqa", false) && kept > 0 && kept < heads {
            *last = product(&[term(kept, "h"), term(heads / kept, "g")]);
        }
    }
    names
}

/// The same names for keys and values.
fn shared(batch: &[String]) -> Terms {
    let mut names = batch.to_vec();
    if let Some(last) = names.last_mut() {
        *last = match &last[..] {
            "(h g)" => "h".into(),
            "g" => "1".into(),
            same => same.into(),
        };
    }
    names
}

fn is_random(op: &Op) -> bool {
    float(op, 4, "dropout_p", 0.0) > 0.0
}

fn local(view: View<'_>, rule: &Rule, part: &Part) -> LocalOp {
    let local = plain(view, rule, part);
    if !is_random(view.op) {
        return local;
    }
    let or = |position, name, default| match get(&local, position, name) {
        LocalArg::None => default,
        arg => arg,
    };
    let args = vec![
        get(&local, 0, "query"),
        get(&local, 1, "key"),
        get(&local, 2, "value"),
        get(&local, 3, "attn_mask"),
        LocalArg::Float(float(view.op, 4, "dropout_p", 0.0)),
        or(5, "is_causal", LocalArg::Bool(false)),
        get(&local, 6, "scale"),
        or(7, "enable_gqa", LocalArg::Bool(false)),
        LocalArg::Int(i64::from(view.id.0)),
        LocalArg::Int(part.slot),
    ];
    super::common::call("sw.attention", args)
}

fn cost(view: View<'_>) -> Cost {
    let rows = shape(view, 0, "query").map_or(0.0, numel);
    let made = output(view).map_or(0.0, numel);
    let keys = shape(view, 1, "key").and_then(|k| k.len().checked_sub(2).map(|dim| k[dim]));
    let seen = if flag(view.op, 5, "is_causal", false) { 0.5 } else { 1.0 };
    Cost {
        flops: 2.0 * seen * (rows + made) * keys.unwrap_or(0) as f64,
        backward: 2.5,
        bytes: bytes(view),
        saved: float_inputs(view) + output(view).map_or(0.0, numel) * width(view),
    }
}

fn width(view: View<'_>) -> f64 {
    let output = view.op.outputs.iter().flatten().next();
    output.map_or(0.0, |id| view.graph.tensor(*id).dtype.bytes() as f64)
}
