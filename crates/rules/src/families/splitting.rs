//! Pieces of a tensor along a dim, and tensors put together along one.
//!
//! Equal pieces are the outer factor of a product, so the inner one may be split. What is put together
//! of unequal pieces is so many times their greatest common divisor; what is taken apart keeps the dim whole.

use graph::Op;

use super::common::{
    Terms, along, dims, float, int, ints, letter, mark, operand, output, plain, product, set, shape, term,
    terms, text, unary, whole, wrap,
};
use super::registered::with_sizes;
use super::{Family, Nature, View};
use crate::algebra::Rule;
use crate::cost::{Call, Sketch};
use crate::local::{LocalArg, LocalOp, Part};

pub(super) const FAMILY: Family = Family {
    name: "splitting",
    targets: &[
        "aten.split.Tensor",
        "aten.split.sizes",
        "aten.split_with_sizes.default",
        "aten.unsafe_split.Tensor",
        "aten.unsafe_split_with_sizes.default",
        "aten.chunk.default",
        "aten.unbind.int",
        "aten.cat.default",
        "aten.hstack.default",
        "aten.vstack.default",
        "aten.row_stack.default",
        "aten.dstack.default",
        "aten.column_stack.default",
        "aten.block_diag.default",
        "aten.diag.default",
        "aten.stack.default",
        "aten.glu.default",
        "aten.select.int",
        "aten.slice.Tensor",
        "aten.narrow.default",
        "aten.slice_scatter.default",
        "aten.select_scatter.default",
        "aten.diagonal_scatter.default",
        "aten.diff.default",
        "aten.constant_pad_nd.default",
        "aten.pad.default",
        "aten.roll.default",
        "aten.flip.default",
        "aten.flipud.default",
        "aten.fliplr.default",
        "aten.rot90.default",
    ],
    rule,
    local,
    rewriting: None,
    cost,
    costs: "nothing for pieces: the same memory; what puts tensors together moves them",
    nature: Nature { rearranges: true, ..Nature::PLAIN },
};

fn name(op: &Op) -> &str {
    op.target.split('.').nth(1).unwrap_or_default()
}

fn rule(view: View<'_>) -> Option<String> {
    match name(view.op) {
        "split" | "split_with_sizes" | "chunk" | "unsafe_split" | "unsafe_split_with_sizes" => pieces(view),
        "unbind" => unbind(view),
        "cat" => cat(view, int(view.op, 1, "dim", 0)),
        "stack" => stack(view, int(view.op, 1, "dim", 0)),
        "hstack" | "vstack" | "row_stack" | "dstack" | "column_stack" => rows_or_columns(view),
        "block_diag" | "diag" => entire(view),
        "glu" => glu(view),
        "select" => select(view),
        "slice" | "narrow" => slice(view),
        "slice_scatter" | "select_scatter" => written_into(view),
        "diagonal_scatter" => diagonal(view),
        "diff" => differences(view),
        "constant_pad_nd" | "pad" => pad(view),
        _ => turned(view),
    }
}

fn pieces(view: View<'_>) -> Option<String> {
    let input = shape(view, 0, "self")?;
    let dim = wrap(int(view.op, 2, "dim", 0), input.len())?;
    let sizes = sizes(view, input[dim], dim)?;
    let (whole, parts) = joined(&sizes, &letter(dim));
    let with = |term: &String| {
        let mut all = terms(input);
        all[dim] = term.clone();
        operand(&all)
    };
    text(view, &[with(&whole)], &parts.iter().map(with).collect::<Vec<_>>(), &[vec![0]])
}

/// The sizes of the pieces, also of those that nothing reads.
fn sizes(view: View<'_>, size: i64, dim: usize) -> Option<Vec<i64>> {
    let count = i64::try_from(view.op.outputs.len()).ok().filter(|count| *count > 0)?;
    let step = match name(view.op) {
        "chunk" => {
            let count = int(view.op, 1, "chunks", 1).max(1);
            (size + count - 1) / count
        }
        "split" | "unsafe_split" if view.op.target.ends_with(".Tensor") => {
            int(view.op, 1, "split_size", size)
        }
        _ => return ints(view.op, 1, "split_sizes").or(ints(view.op, 1, "split_size")),
    };
    let shapes = view.output_shapes();
    let piece_size =
        |(i, shape): (i64, &Option<&[i64]>)| shape.map_or((size - i * step).min(step), |shape| shape[dim]);
    Some((0..count).zip(&shapes).map(piece_size).collect())
}

/// The term of a dim that is a sequence of pieces, and the term of each piece.
fn joined(sizes: &[i64], name: &str) -> (String, Vec<String>) {
    let (first, total) = (sizes.first().copied().unwrap_or(0), sizes.iter().sum::<i64>());
    if total > 0 && sizes.iter().all(|size| *size == first) {
        let piece = term(first, name);
        let count = mark(&term(sizes.len() as i64, &format!("{name}_piece")), "^");
        return (product(&[count, piece.clone()]), vec![piece; sizes.len()]);
    }
    let piece = |(i, &size): (usize, &i64)| mark(&term(size, &format!("{name}_{i}")), "^");
    (mark(&term(total, name), "^"), sizes.iter().enumerate().map(piece).collect())
}

/// The same of unequal pieces, each a multiple of one size: `(3 c), (2 c) -> (5 c)`. A part has the same
/// elements of all multiples, which stand in the same order in each piece and in the whole.
fn measured(sizes: &[i64], measure: i64, name: &str) -> (String, Vec<String>) {
    let times = |count: i64, stem: String| product(&[mark(&term(count, &stem), "^"), term(measure, name)]);
    let piece = |(i, size): (usize, &i64)| times(size / measure, format!("{name}_{i}"));
    let total = sizes.iter().sum::<i64>();
    (times(total / measure, format!("{name}_piece")), sizes.iter().enumerate().map(piece).collect())
}

/// The greatest common divisor of unequal pieces, if that is any size at all.
fn measure(sizes: &[i64]) -> Option<i64> {
    let measure = sizes.iter().fold(0, |a, &b| divisor(a, b));
    let is_one = measure > 1 && !sizes.contains(&0) && sizes.iter().any(|size| *size != sizes[0]);
    is_one.then_some(measure)
}

fn divisor(a: i64, b: i64) -> i64 {
    if b == 0 { a } else { divisor(b, a % b) }
}

fn unbind(view: View<'_>) -> Option<String> {
    let input = shape(view, 0, "self")?;
    let dim = wrap(int(view.op, 1, "dim", 0), input.len())?;
    let (read, written) = without(input, dim);
    unary(view, &read, &written, true)
}

/// The dim stays whole on one side and is absent on the other.
fn without(input: &[i64], dim: usize) -> (Terms, Terms) {
    let mut read = terms(input);
    read[dim] = mark(&read[dim], "^");
    let mut rest = read.clone();
    rest.remove(dim);
    (read, rest)
}

fn cat(view: View<'_>, dim: i64) -> Option<String> {
    let result = output(view)?;
    let dim = wrap(dim, result.len())?;
    let shapes = view.input_shapes();
    // A tensor of shape [0] is skipped, whatever the others' rank.
    let skipped = |shape: &[i64]| shape == [0] && result.len() != 1;
    let sizes: Vec<i64> =
        shapes.iter().map(|s| if skipped(s) { 0 } else { s.get(dim).copied().unwrap_or(0) }).collect();
    // The first dim most often is a batch, whose parts are rows in a row.
    let measure = if dim > 0 { measure(&sizes) } else { None };
    let name = letter(dim);
    let (joined, parts) =
        measure.map_or_else(|| joined(&sizes, &name), |measure| measured(&sizes, measure, &name));
    let with = |term: &String| {
        let mut all = terms(result);
        all[dim] = term.clone();
        operand(&all)
    };
    let inputs: Vec<String> = (0..shapes.len())
        .map(|i| if skipped(shapes[i]) { format!("skipped{i}^") } else { with(&parts[i]) })
        .collect();
    let rule = text(view, &inputs, &[with(&joined)], &[(0..inputs.len()).collect()])?;
    Some(measure.map_or_else(|| rule.clone(), |size| with_sizes(&rule, &[(name, size)])))
}

/// Tensors that lack a dim are stacked along it, others are put together along it.
fn rows_or_columns(view: View<'_>) -> Option<String> {
    let ranks: Vec<usize> = view.input_shapes().iter().map(|shape| shape.len()).collect();
    let rank = *ranks.first().filter(|rank| ranks.iter().all(|other| other == *rank))?;
    match (name(view.op), rank) {
        ("hstack", 1) => cat(view, 0),
        ("hstack", 2..) | ("column_stack", 2..) => cat(view, 1),
        ("vstack" | "row_stack", 1) => stack(view, 0),
        ("vstack" | "row_stack", 2..) => cat(view, 0),
        ("column_stack", 1) => stack(view, 1),
        ("dstack", 2) => stack(view, 2),
        ("dstack", 3..) => cat(view, 2),
        _ => None,
    }
}

/// Nothing may be split.
fn entire(view: View<'_>) -> Option<String> {
    let given = view.input_shapes().into_iter().enumerate();
    let inputs: Vec<String> = given.map(|(at, shape)| operand(&whole(shape, &format!("x{at}_")))).collect();
    let linear = (0..inputs.len()).collect();
    text(view, &inputs, &[operand(&whole(output(view)?, "y"))], &[linear])
}

fn stack(view: View<'_>, dim: i64) -> Option<String> {
    let result = output(view)?;
    let dim = wrap(dim, result.len())?;
    let (written, read) = without(result, dim);
    let inputs = vec![operand(&read); view.op.inputs().len()];
    text(view, &inputs, &[operand(&written)], &[(0..inputs.len()).collect()])
}

fn glu(view: View<'_>) -> Option<String> {
    let (input, result) = (shape(view, 0, "self")?, output(view)?);
    let dim = wrap(int(view.op, 1, "dim", -1), input.len())?;
    let written = terms(result);
    let mut read = written.clone();
    read[dim] = product(&["half^".into(), written[dim].clone()]);
    unary(view, &read, &written, false)
}

fn select(view: View<'_>) -> Option<String> {
    let input = shape(view, 0, "self")?;
    let (read, written) = without(input, wrap(int(view.op, 1, "dim", 0), input.len())?);
    unary(view, &read, &written, true)
}

/// A range that is all of the dim changes nothing.
fn slice(view: View<'_>) -> Option<String> {
    let (read, written) = along(shape(view, 0, "self")?, output(view)?, |_| true);
    unary(view, &read, &written, true)
}

/// A tensor of which a range, or one place, is given new values.
fn written_into(view: View<'_>) -> Option<String> {
    let (input, source) = (shape(view, 0, "self")?, shape(view, 1, "src")?);
    let dim = wrap(int(view.op, 2, "dim", 0), input.len())?;
    let (all, given) = match name(view.op) {
        "select_scatter" => without(input, dim),
        _ => along(input, source, |at| at != dim),
    };
    text(view, &[operand(&all), operand(&given)], &[operand(&all)], &[vec![0, 1]])
}

/// A tensor of which a diagonal of two dims is given new values.
fn diagonal(view: View<'_>) -> Option<String> {
    let (input, source) = (shape(view, 0, "self")?, shape(view, 1, "src")?);
    let dim = |position, name, default| wrap(int(view.op, position, name, default), input.len());
    let pair = [dim(3, "dim1", 0)?, dim(4, "dim2", 1)?];
    let mut all = terms(input);
    let mut given: Terms =
        (0..input.len()).filter(|at| !pair.contains(at)).map(|at| all[at].clone()).collect();
    pair.into_iter().for_each(|at| all[at] = mark(&all[at], "^"));
    given.push(mark(&term(*source.last()?, "diagonal"), "^"));
    text(view, &[operand(&all), operand(&given)], &[operand(&all)], &[vec![0, 1]])
}

fn differences(view: View<'_>) -> Option<String> {
    let (input, result) = (shape(view, 0, "self")?, output(view)?);
    let dim = wrap(int(view.op, 2, "dim", -1), input.len())?;
    let (read, written) = along(input, result, |at| at != dim);
    let mut inputs = vec![operand(&read)];
    // What is put before and after it has a length of its own.
    for (position, name) in [(3, "prepend"), (4, "append")] {
        if let Some(more) = shape(view, position, name) {
            let mut all = read.clone();
            all[dim] = mark(&term(more[dim], name), "^");
            inputs.push(operand(&all));
        }
    }
    text(view, &inputs, &[operand(&written)], &[(0..inputs.len()).collect()])
}

fn pad(view: View<'_>) -> Option<String> {
    let (input, result) = (shape(view, 0, "self")?, output(view)?);
    let amounts = ints(view.op, 1, "pad")?;
    let touched = |dim: usize| {
        let at = 2 * (input.len() - 1 - dim);
        amounts.get(at..).is_some_and(|rest| rest.iter().take(2).any(|amount| *amount != 0))
    };
    let (read, written) = along(input, result, |dim| !touched(dim));
    unary(view, &read, &written, pads_with_zeros(view.op))
}

fn pads_with_zeros(op: &Op) -> bool {
    let position = if name(op) == "pad" { 3 } else { 2 };
    let other = matches!(op.arg(2, "mode"), Some(graph::Arg::Str(mode)) if mode != "constant");
    // Copies of the border, or of the tensor itself, are linear too.
    other || float(op, position, "value", 0.0) == 0.0
}

/// Roll and flip, and turns of a plane.
fn turned(view: View<'_>) -> Option<String> {
    let input = shape(view, 0, "self")?;
    let known = match name(view.op) {
        "flipud" => Some(vec![0]),
        "fliplr" => Some(vec![1]),
        "rot90" => match ints(view.op, 2, "dims") {
            Some(_) => Some(dims(view.op, 2, "dims", input.len())?),
            None => Some(vec![0, 1]),
        },
        _ => None,
    };
    if let Some(turned) = known {
        let (read, written) = along(input, output(view)?, |dim| !turned.contains(&dim));
        // A plane whose sides are equal is turned all the same.
        return unary(view, &read, &written, true);
    }
    let position = if name(view.op) == "roll" { 2 } else { 1 };
    let turned = match ints(view.op, position, "dims") {
        Some(list) if list.is_empty() && position == 1 => vec![],
        _ => dims(view.op, position, "dims", input.len())?,
    };
    let (read, written) = along(input, output(view)?, |dim| !turned.contains(&dim));
    unary(view, &read, &written, true)
}

fn local(view: View<'_>, rule: &Rule, part: &Part) -> LocalOp {
    let mut local = plain(view, rule, part);
    let rank = part.inputs.first().map_or(0, Vec::len);
    match name(view.op) {
        "chunk" | "split" | "split_with_sizes" | "unsafe_split" | "unsafe_split_with_sizes" => {
            divide(view, part, &mut local);
        }
        "narrow" => {
            let dim = wrap(int(view.op, 1, "dim", 0), rank).unwrap_or(0);
            set(&mut local, 3, "length", LocalArg::Int(part.outputs[0][dim]));
        }
        _ => {}
    }
    local
}

/// A dim that is split has equal pieces, of this part's own size.
fn divide(view: View<'_>, part: &Part, local: &mut LocalOp) {
    let dim = wrap(int(view.op, 2, "dim", 0), part.inputs[0].len()).unwrap_or(0);
    let whole = shape(view, 0, "self").map_or(0, |shape| shape[dim]);
    if whole == part.inputs[0][dim] {
        return;
    }
    let count = view.op.outputs.len().max(1);
    let size = part.inputs[0][dim] / count as i64;
    // Pieces without elements can only be asked for one by one.
    let (target, argument) = match size {
        0 => ("aten.split_with_sizes.default", crate::local::ints(&vec![0; count])),
        size => ("aten.split.Tensor", LocalArg::Int(size)),
    };
    let args = vec![LocalArg::Input(0), argument, LocalArg::Int(dim as i64)];
    *local = super::common::call(target, args);
}

fn cost(call: &Call<'_>) -> Sketch {
    let sketch = Sketch::new(call);
    match call.name() {
        "glu" => sketch,
        "diff" => sketch.keeps("*:"),
        "pad" | "constant_pad_nd" => padded(call, sketch),
        "cat" | "stack" => sketch.flops(0).passes(0..call.operands.len()),
        "hstack" | "vstack" | "row_stack" | "dstack" | "column_stack" | "block_diag" | "diag" => {
            sketch.flops(0)
        }
        "roll" | "flip" | "flipud" | "fliplr" | "rot90" | "slice_scatter" | "select_scatter"
        | "diagonal_scatter" => sketch.flops(0),
        // Pieces: their gradients are put together again.
        _ => sketch.view(0),
    }
}

/// Of what is mirrored or repeated at the border, autograd keeps all.
fn padded(call: &Call<'_>, sketch: Sketch) -> Sketch {
    let bordered =
        matches!(call.arg(2, "mode"), Some(LocalArg::Str(mode)) if mode == "reflect" || mode == "replicate");
    sketch.flops(0).keeps(if bordered { "0: 0" } else { "0:" })
}
