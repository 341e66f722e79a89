//! Whether two graphs of a model are the same, but for sizes.

use std::collections::BTreeSet;

use diag::{Error, Result};
use graph::{Arg, Graph, Op, Source, TensorId};

const FIX: &str =
    "let the model do the same for every length, or fill up with `sw.pad_to`, and answer for it yourself";

/// For each operator, whether numbers that it is given differ.
pub(crate) fn compare(long: &Graph, short: &Graph, others: &BTreeSet<String>) -> Result<Vec<bool>> {
    let same = |(a, b): &(&Op, &Op)| {
        let names = |op: &Op| op.kwargs.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
        let made = |op: &Op| op.outputs.clone();
        a.target == b.target && a.inputs() == b.inputs() && names(a) == names(b) && made(a) == made(b)
    };
    if let Some((op, _)) = long.ops.iter().zip(&short.ops).find(|pair| !same(pair)) {
        return Err(other(&format!("{} at {}", op.target, op.line), "from there on"));
    }
    if long.ops.len() != short.ops.len() {
        let more = long.ops.get(short.ops.len()).or(short.ops.get(long.ops.len())).expect("one has more");
        return Err(other(&format!("{} at {}", more.target, more.line), "only for one of them"));
    }
    let sources = |(a, b): (&graph::Tensor, &graph::Tensor)| {
        a.dtype == b.dtype && a.shape.len() == b.shape.len() && a.source == b.source
    };
    if long.tensors.len() != short.tensors.len() || !long.tensors.iter().zip(&short.tensors).all(sources) {
        return Err(other("what it reads", "of other kinds"));
    }
    let differs =
        |id: &TensorId| matches!(&long.tensor(*id).source, Source::Const { name } if others.contains(name));
    if let Some(id) = long.tensor_ids().find(differs) {
        return Err(constant_differs(long, id));
    }
    if long.outputs != short.outputs || long.updates != short.updates {
        return Err(other("what it gives", "other tensors"));
    }
    Ok(long.ops.iter().zip(&short.ops).map(|(a, b)| !numbers(a, b)).collect())
}

fn other(what: &str, how: &str) -> Error {
    Error::new("SW0171", format!("the model does something else for another length: {what}"))
        .why(format!("two batches, one of them shorter, were captured, and the graphs differ: {how}"))
        .fix(FIX)
}

fn constant_differs(graph: &Graph, id: TensorId) -> Error {
    let read = |op: &&Op| op.inputs().contains(&id);
    let line = graph.ops.iter().find(read).map_or("", |op| &op.line);
    Error::new(
        "SW0171",
        format!("a constant of the model, %{}, depends on the length", graph.tensor(id).name),
    )
    .at(line)
    .why("it has another value for a shorter batch: the model makes it of a length, as a number")
    .fix(format!("make it of the mask, such as `mask.sum()`; {FIX}"))
}

pub(crate) fn held_differs(graph: &Graph, id: TensorId) -> Error {
    other(&format!("%{}", graph.tensor(id).name), "a tensor that the model holds or makes has another shape")
}

pub(crate) fn input_differs(graph: &Graph, id: TensorId) -> Error {
    let name = &graph.tensor(id).name;
    Error::new("SW0171", format!("input {name} is not filled up as it is said"))
        .why("it has another shape in a shorter batch, along another dim than that of the lengths")
        .fix("name in `lengths` all inputs that have the length, each with its value")
}

fn numbers(a: &Op, b: &Op) -> bool {
    let same = |x: &[Arg], y: &[Arg]| x.len() == y.len() && x.iter().zip(y).all(|(x, y)| isomorphic(x, y));
    let kwargs = |op: &Op| op.kwargs.iter().map(|(_, arg)| arg.clone()).collect::<Vec<_>>();
    same(&a.args, &b.args) && same(&kwargs(a), &kwargs(b))
}

fn isomorphic(a: &Arg, b: &Arg) -> bool {
    match (a, b) {
        (Arg::Float(x), Arg::Float(y)) => x == y || (x.is_nan() && y.is_nan()),
        _ => a == b,
    }
}
