//! Whether what fills up batches changes nothing.

use std::collections::BTreeSet;
use std::sync::Arc;

use graph::TensorId;
use padding::{Bound, Content, Fill, Filled, Length};
use pyo3::prelude::*;

use crate::graph_py::Graph;
use crate::guard::{Evidence, guarded};

/// A tensor by its name, its tails (dim, rows, blocks in both graphs, elements of a block), and for each set of them what
/// stands there: `wild`, `low`, `mixed` or `within` two numbers.
type KnownTail = (String, Vec<(usize, i64, i64, i64, i64)>, Vec<(&'static str, f64, f64)>);

/// Refuses a model that mixes in what a batch is filled up with, or says what is known of its tensors. It was captured with
/// a batch of the length that is filled up to, and with a shorter one. `lengths` says for each what is filled up: the
/// position of the input, the dim and the value; `others` are constants of other values.
#[pyfunction]
pub(crate) fn prove_filled(
    long: &Graph,
    short: &Graph,
    lengths: Vec<Vec<(usize, usize, f64)>>,
    others: Vec<String>,
) -> PyResult<Vec<KnownTail>> {
    let others: BTreeSet<String> = others.into_iter().collect();
    let (long, short) = (Arc::clone(&long.model), Arc::clone(&short.model));
    guarded(Evidence::from_model(&long), || {
        let fills = |fills: Vec<(usize, usize, f64)>| {
            fills.into_iter().map(|(input, dim, value)| Fill { input, dim, value }).collect()
        };
        let length_of = |group| Length::new(&long.graph, &short.graph, fills(group));
        let lengths: Vec<Length> = lengths.into_iter().map(length_of).collect();
        let proved = padding::prove(&long.graph, &short.graph, &lengths, &others)?;
        let known = |(at, filled): (usize, &Filled)| {
            let name = long.graph.tensor(TensorId::new(at)).name.clone();
            let tails =
                filled.tails.iter().map(|it| (it.dim, it.outer, it.long, it.short, it.inner)).collect();
            (name, tails, filled.contents.iter().map(|content| said(*content, &lengths)).collect())
        };
        Ok(proved.iter().enumerate().map(known).collect())
    })
}

fn said(content: Content, lengths: &[Length]) -> (&'static str, f64, f64) {
    let number = |bound: Bound| bound.plus + bound.length.map_or(0.0, |(at, _)| lengths[at].short as f64);
    match content {
        Content::Wild => ("wild", f64::NEG_INFINITY, f64::INFINITY),
        Content::Low { .. } => ("low", f64::NEG_INFINITY, f64::INFINITY),
        Content::Mixed { .. } => ("mixed", f64::NEG_INFINITY, f64::INFINITY),
        Content::Within { lo, hi, .. } => ("within", number(lo), number(hi)),
    }
}
