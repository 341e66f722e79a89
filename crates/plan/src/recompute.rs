//! What is computed again for backward instead of being kept.
//!
//! A span is a set of operators of which forward keeps only what they read from outside; backward computes
//! the rest again when it comes to them. Of two spans one is inside of the other, or they are apart.
//!
//! ```text
//! recompute "h.*"                      # each layer is a span
//! recompute "h.*" but "h.*.attn"       # without its attention
//! recompute "h.*" but dear             # without what is dear to compute: products, convolutions, attention
//! recompute "h.*" but products         # without products with weights, and convolutions
//! recompute "h.*.mlp" aten.gelu.*      # each of these operators is one
//! recompute %linear_3 %gelu_3          # these are one
//! recompute %conv2d..%relu_7           # all from one to another, in the graph's order, are one
//! recompute model                      # what the model itself computes again; so it is where nothing is said
//! recompute none                       # nothing
//! ```

use std::collections::BTreeMap;

use diag::{Error, Result};
use graph::{Graph, OpId};
use rules::families;

use crate::glob::enclosing;
use crate::op_index::OpIndex;
use crate::ranges::ranges;
use crate::select::{clip, folded_path, near, one_or_run, parse, select};
use crate::{Plan, place, title};

/// The spans that a line of a plan file names.
pub(crate) fn read(line: &str, index: &OpIndex<'_>) -> Result<Vec<Vec<OpId>>> {
    let graph = index.graph;
    match line {
        "model" => return Ok(of_model(graph)),
        "none" => return Ok(vec![]),
        _ => {}
    }
    let mut sides = line.split(" but ").map(str::trim);
    let spans = named(sides.next().unwrap_or_default(), index)?;
    let mut without: Vec<OpId> = vec![];
    for side in sides {
        match side {
            "dear" => without.extend(graph.op_ids().filter(|op| is_dear(graph, *op))),
            "products" => without.extend(products(graph)),
            _ => without.extend(named(side, index)?.into_iter().flatten()),
        }
    }
    let rest = |span: Vec<OpId>| span.into_iter().filter(|op| !without.contains(op)).collect::<Vec<_>>();
    Ok(spans.into_iter().map(rest).filter(|span| !span.is_empty()).collect())
}

/// Whether what an operator gives is rather kept than computed again.
pub(crate) fn is_dear(graph: &Graph, op: OpId) -> bool {
    families::is_dear(&graph.op(op).target)
}

/// Dear operators that read weights: products with them, and convolutions. Attention is none of them, not even as products
/// of activations with each other.
pub(crate) fn products(graph: &Graph) -> Vec<OpId> {
    let mut is_weight: Vec<bool> = graph.tensor_ids().map(|tensor| graph.is_parameter(tensor)).collect();
    let mut products = vec![];
    for op in graph.op_ids() {
        let it = graph.op(op);
        let inputs = it.inputs();
        let weights = inputs.iter().filter(|tensor| is_weight[tensor.index()]).count();
        if weights == inputs.len() {
            it.outputs.iter().flatten().for_each(|tensor| is_weight[tensor.index()] = weights > 0);
        }
        if weights > 0 && is_dear(graph, op) && !families::nature_of(&it.target).attends {
            products.push(op);
        }
    }
    products
}

/// The spans in which the model itself has operators computed again.
pub(crate) fn of_model(graph: &Graph) -> Vec<Vec<OpId>> {
    let mut spans: BTreeMap<usize, Vec<OpId>> = BTreeMap::new();
    for op in graph.op_ids() {
        graph.op(op).spans.iter().for_each(|span| spans.entry(*span).or_default().push(op));
    }
    sorted(spans.into_values().collect())
}

/// For each operator whether something that gets a gradient is made of what it makes.
pub fn teaching(graph: &Graph, needs_grad: &[bool]) -> Vec<bool> {
    let mut teaches: Vec<bool> =
        graph.ops.iter().map(|op| op.outputs.iter().flatten().any(|t| needs_grad[t.index()])).collect();
    for op in (0..teaches.len()).rev().map(OpId::new) {
        if teaches[op.index()] {
            let makers = graph.op(op).inputs().into_iter().filter_map(|t| graph.producer(t));
            makers.for_each(|(maker, _)| teaches[maker.index()] = true);
        }
    }
    teaches
}

fn named(who: &str, index: &OpIndex<'_>) -> Result<Vec<Vec<OpId>>> {
    if who.starts_with('%') {
        let mut span = vec![];
        for name in who.split_whitespace() {
            span.extend(one_or_run(name, index)?);
        }
        return Ok(vec![span]);
    }
    let selector = parse(who)?;
    if !selector.target.is_empty() || selector.nth.is_some() {
        return Ok(select(who, index)?.into_iter().map(|op| vec![op]).collect());
    }
    let mut spans = index.below(selector.path);
    spans.sort();
    if spans.is_empty() {
        return Err(Error::new("SW0302", format!("no module is named {}", clip(who)))
            .why(near(who, index.graph))
            .fix("paths are those of the model's modules; `*` stands for any text"));
    }
    Ok(spans)
}

/// Outer spans before those inside of them, each once.
pub(crate) fn sorted(mut spans: Vec<Vec<OpId>>) -> Vec<Vec<OpId>> {
    for span in &mut spans {
        span.sort_unstable();
        span.dedup();
    }
    spans.retain(|span| !span.is_empty());
    spans.sort_by(|a, b| (a[0], b.len()).cmp(&(b[0], a.len())).then_with(|| a.cmp(b)));
    spans.dedup();
    spans
}

/// Refuses two spans that share operators, of which neither is inside of the other.
pub(crate) fn validate(plan: &Plan, graph: &Graph) -> Result<()> {
    let mut open: Vec<Option<usize>> = vec![None; graph.ops.len()];
    let mut by_size: Vec<usize> = (0..plan.recompute.len()).collect();
    by_size.sort_by_key(|&span| std::cmp::Reverse(plan.recompute[span].len()));
    for span in by_size {
        let ops = &plan.recompute[span];
        let around = open[ops[0].index()];
        if let Some(op) = ops.iter().find(|op| open[op.index()] != around) {
            return Err(Error::new(
                "SW0318",
                format!(
                    "two spans that are recomputed overlap: both have {}, and neither is inside the other",
                    title(graph, *op)
                ),
            )
            .at(place(graph, *op))
            .why("of two spans one must be inside the other, or they must be apart")
            .fix("name modules that are apart or inside each other, or leave operators out with `but`"));
        }
        ops.iter().for_each(|op| open[op.index()] = Some(span));
    }
    Ok(())
}

/// Lines that name these spans: modules by their paths, those that are alike by one, other spans by
/// their operators.
pub(crate) fn print(plan: &Plan, index: &OpIndex<'_>, handle: impl Fn(OpId) -> String) -> String {
    let models = of_model(index.graph);
    if !models.is_empty() && (plan.recompute.is_empty() || plan.recompute == models) {
        return format!("recompute {}\n", if plan.recompute.is_empty() { "none" } else { "model" });
    }
    lines("recompute", &plan.recompute, index, handle)
}

/// Lines of a word that name spans.
pub(crate) fn lines(
    word: &str,
    spans: &[Vec<OpId>],
    index: &OpIndex<'_>,
    handle: impl Fn(OpId) -> String,
) -> String {
    let mut same: Vec<(String, Vec<Named<'_>>)> = vec![];
    let products = if spans.is_empty() { vec![] } else { products(index.graph) };
    for span in spans {
        let named = Named::new(span, index, &products);
        let by_ops = || ops(span, &handle);
        let key = named.module.map_or_else(by_ops, |module| named.line(&folded_path(module)));
        match same.iter_mut().find(|(known, _)| *known == key) {
            Some((_, members)) => members.push(named),
            None => same.push((key, vec![named])),
        }
    }
    let means = |line: &str, members: &[Named<'_>]| {
        line.starts_with('%')
            || read(line, index).is_ok_and(|read| read.iter().eq(members.iter().map(|it| it.span)))
    };
    let mut text = String::new();
    for (line, members) in same {
        if means(&line, &members) {
            text += &format!("{word} {line}\n");
            continue;
        }
        let modules: Vec<&str> = members.iter().filter_map(|it| it.module).collect();
        let mut rest = &members[..];
        for (pattern, count) in ranges(&modules) {
            let (run, behind) = rest.split_at(count);
            rest = behind;
            let line = run[0].line(&pattern);
            if means(&line, run) {
                text += &format!("{word} {line}\n");
                continue;
            }
            run.iter().for_each(|it| text += &format!("{word} {}\n", ops(it.span, &handle)));
        }
    }
    text
}

fn ops(span: &[OpId], handle: impl Fn(OpId) -> String) -> String {
    let runs = span.chunk_by(|a, b| a.index() + 1 == b.index());
    let written = |run: &[OpId]| match run {
        [first, _, .., last] => format!("{}..{}", handle(*first), handle(*last)),
        few => few.iter().map(|op| handle(*op)).collect::<Vec<_>>().join(" "),
    };
    runs.map(written).collect::<Vec<_>>().join(" ")
}

/// A span, and the module that is all of it.
struct Named<'s> {
    span: &'s Vec<OpId>,
    module: Option<&'s str>,
    but: &'static str,
}

impl<'s> Named<'s> {
    /// The outermost module whose operators are all in a span, or all but those that are dear, or products, if there are no
    /// others in it.
    fn new<'g: 's>(span: &'s Vec<OpId>, index: &OpIndex<'g>, products: &[OpId]) -> Self {
        let graph = index.graph;
        let none = Named { span, module: None, but: "" };
        let Some(first) = span.first() else { return none };
        let path = &graph.op(*first).module[..];
        let named = |module: &'s str| {
            let [all] = &index.below(module)[..] else { return None };
            let is_product = |op: &OpId| products.binary_search(op).is_ok();
            let but = if all == span {
                Some("")
            } else if all.iter().filter(|op| !is_dear(graph, **op)).eq(span) {
                Some(" but dear")
            } else {
                all.iter().filter(|op| !is_product(op)).eq(span).then_some(" but products")
            };
            but.map(|but| Named { span, module: Some(module), but })
        };
        enclosing(path).find_map(named).unwrap_or(none)
    }

    fn line(&self, pattern: &str) -> String {
        format!("{pattern:?}{}", self.but)
    }
}
