//! Attention: batch and heads map, and so do queries; where a mask is made from their place, a part knows its own.

use graph::{Dtype, Op};

use super::common::{
    Terms, batch, broadcast, call, flag, float, get, is_split, mark, operand, output, plain, product, shape,
    start, term, text, wide,
};
use super::{Family, Nature, View};
use crate::algebra::Rule;
use crate::cost::{Call, Sketch, numel};
use crate::local::{LocalArg, LocalOp, Part};

pub(super) const FAMILY: Family = Family {
    name: "attention",
    targets: &["aten.scaled_dot_product_attention.default"],
    rule,
    local,
    rewriting: None,
    cost,
    costs: "the products with keys and with values, without what a causal mask hides where one kernel \
            does it; keeps queries, keys, values, the result and a number for each query. With \
            dropout, with a mask that has a gradient, with values of another width than keys or of other than \
            four dims it is computed in steps, and keeps the scores",
    nature: Nature {
        dear: true,
        attends: true,
        dims: &[("h", "heads"), ("g", "heads"), ("l", "sequence"), ("s", "sequence")],
        ..Nature::PLAIN
    },
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
    let queries = mark(&term(q[q.len() - 2], "l"), if is_causal(view.op) { "~" } else { "" });
    let keys = fixed("s", k[k.len() - 2]);
    let width = fixed("e", *q.last()?);
    let made = mark(&term(*v.last()?, "d"), if random { "^" } else { "" });
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
    // Keys are named so.
    names.iter_mut().filter(|name| *name == "s").for_each(|name| *name = "r".into());
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

fn is_causal(op: &Op) -> bool {
    flag(op, 5, "is_causal", false)
}

fn local(view: View<'_>, rule: &Rule, part: &Part) -> LocalOp {
    let local = plain(view, rule, part);
    let placed = is_causal(view.op) && is_split(rule, part, "l");
    if !is_random(view.op) && !placed {
        return local;
    }
    let or = |position, name, default| match get(&local, position, name) {
        LocalArg::None => default,
        arg => arg,
    };
    let operands = [get(&local, 0, "query"), get(&local, 1, "key"), get(&local, 2, "value")];
    let (scale, groups) = (get(&local, 6, "scale"), or(7, "enable_gqa", LocalArg::Bool(false)));
    let first = if is_causal(view.op) { start(rule, part, "l") } else { 0 };
    if !is_random(view.op) {
        return call(PLACED, [&operands[..], &[scale, groups, LocalArg::Int(first)]].concat());
    }
    let rest = [
        get(&local, 3, "attn_mask"),
        LocalArg::Float(float(view.op, 4, "dropout_p", 0.0)),
        or(5, "is_causal", LocalArg::Bool(false)),
        scale,
        groups,
        LocalArg::Int(first),
        LocalArg::Int(i64::from(view.id.0)),
        LocalArg::Int(part.slot),
    ];
    call("sw.attention", [&operands[..], &rest].concat())
}

/// Causal attention of queries that are not all of them.
const PLACED: &str = "sw.causal_attention";

/// Products of queries with keys, and of what comes of them with values.
fn cost(call: &Call<'_>) -> Sketch {
    let Some(sizes) = Sizes::new(call) else { return Sketch::new(call) };
    if is_fused(call) { fused(call, &sizes) } else { in_steps(call, &sizes) }
}

struct Sizes {
    /// Elements of the scores.
    scores: u64,
    /// Those that are computed where a kernel leaves out what a causal mask hides.
    seen: u64,
    queries: u64,
    /// How many keys there are, and how many of them are read.
    all: u64,
    read: u64,
    /// The width of keys, and that of values.
    keys: u64,
    values: u64,
}

impl Sizes {
    fn new(call: &Call<'_>) -> Option<Self> {
        let [q, k, v, ..] = &call.operands[..] else { return None };
        let last = |shape: &[i64], at: usize| Some(shape[shape.len().checked_sub(at)?].unsigned_abs());
        let (queries, seen) = (last(&q.shape, 2)?, last(&k.shape, 2)?);
        let rows = numel(&q.shape) / last(&q.shape, 1)?.max(1);
        let causal = |first: u64| (first + 1..=first + queries).map(|row| row.min(seen)).sum();
        let place = first(call);
        let each = place.map_or(queries * seen, causal);
        let behind = place.filter(|_| is_placed(call)).map(|first| first + queries);
        let read = behind.map_or(seen, |end| seen.min(end));
        let heads = rows / queries.max(1);
        Some(Self {
            scores: rows * read,
            seen: heads * each,
            queries: rows,
            all: seen,
            read,
            keys: last(&q.shape, 1)?,
            values: last(&v.shape, 1)?,
        })
    }
}

/// The place of the first query, if a query sees keys up to its own place only.
fn first(call: &Call<'_>) -> Option<u64> {
    let at = match call.name() {
        _ if is_placed(call) => call.int(5, "start", 0),
        "attention" => call.int(8, "start", 0),
        _ => 0,
    };
    (is_placed(call) || call.flag(5, "is_causal")).then(|| at.unsigned_abs())
}

/// Whether keys behind the last query are not read.
fn is_placed(call: &Call<'_>) -> bool {
    call.op.target == PLACED
}

/// Whether one kernel computes all of it, which never has the scores in memory: of a batch of heads.
fn is_fused(call: &Call<'_>) -> bool {
    let [q, k, v, rest @ ..] = &call.operands[..] else { return false };
    let width = q.shape.last();
    call.name() != "attention"
        && q.shape.len() == 4
        && k.shape.last() == width
        && v.shape.last() == width
        && !rest.iter().any(|mask| mask.learns)
}

/// Scores are computed again for backward.
fn fused(call: &Call<'_>, sizes: &Sizes) -> Sketch {
    let (keys, values) = (2 * sizes.seen * sizes.keys, 2 * sizes.seen * sizes.values);
    let first = call.operands.iter().position(|operand| operand.learns).unwrap_or(0);
    let mut gradients = vec![keys, keys, values, 0];
    gradients.truncate(call.operands.len());
    // All gradients are computed, whoever asks for one.
    let others = |at: &usize| *at != first && call.learns(*at);
    gradients[first] = 3 * keys + 2 * values - (0..3).filter(others).map(|at| gradients[at]).sum::<u64>();
    let statistics = sizes.queries * wide_width(call);
    let sketch = Sketch::new(call).flops(keys + values).gradients(gradients);
    let sketch = sketch.keeps("*: 0 1 2 r0").keeps_more(statistics);
    match call.operands.get(3) {
        // A mask of truths becomes one of numbers.
        Some(mask) if mask.dtype == Dtype::Bool => sketch.keeps_more(numel(&mask.shape) * call.width()),
        mask => sketch.keeps_operand(mask.map(|_| 3)),
    }
}

/// Queries and keys are scaled before their product, and softmax and dropout keep what they keep.
fn in_steps(call: &Call<'_>, sizes: &Sizes) -> Sketch {
    let (keys, values) = (2 * sizes.scores * sizes.keys, 2 * sizes.scores * sizes.values);
    let scored = call.learns(0) || call.learns(1) || call.learns(3);
    let mut gradients = vec![keys, keys, values, 0];
    gradients.truncate(call.operands.len());
    if let Some(first) = [0, 1, 3].into_iter().find(|at| call.learns(*at)) {
        gradients[first] += values;
    }
    let (q, k, v) = (&call.operands[0], &call.operands[1], &call.operands[2]);
    let dropped = call.name() == "attention";
    let width = if dropped { call.width() } else { wide_width(call) };
    // With keys for several heads, each head is given its own.
    let heads = |shape: &[i64]| numel(&shape[..shape.len() - 2]).max(1);
    let copies = heads(&q.shape) / heads(&k.shape);
    let read = |shape: &[i64]| numel(shape) / sizes.all.max(1) * sizes.read;
    let mut more = sizes.scores * width;
    more += if call.learns(0) { copies * read(&k.shape) * width } else { 0 };
    more += if call.learns(1) { numel(&q.shape) * width } else { 0 };
    let mut sketch = Sketch::new(call).flops(keys + values).gradients(gradients).keeps("*:");
    let scores = sizes.scores * width;
    sketch = sketch.meanwhile(if dropped { scores } else { 0 }, scores);
    if scored && copies == 1 && width == v.dtype.bytes() as u64 {
        sketch = sketch.keeps_operand(Some(2));
    } else if scored {
        more += copies * read(&v.shape) * width;
    }
    if dropped && scored {
        // Probabilities before and after dropout, and the mask.
        more += sizes.scores + if call.learns(2) { sizes.scores * width } else { 0 };
        more += hidden(call);
    }
    sketch.keeps_more(more)
}

/// Bytes of the mask that hides scores.
fn hidden(call: &Call<'_>) -> u64 {
    let (q, k) = (&call.operands[0].shape, &call.operands[1].shape);
    match call.operands.get(3) {
        _ if call.flag(5, "is_causal") => (q[q.len() - 2] * k[k.len() - 2]).unsigned_abs(),
        Some(mask) if mask.dtype == Dtype::Bool => numel(&mask.shape),
        _ => 0,
    }
}

/// Bytes of a number in which sums are computed.
fn wide_width(call: &Call<'_>) -> u64 {
    call.operands.first().map_or(0, |operand| wide(operand.dtype).bytes() as u64)
}
