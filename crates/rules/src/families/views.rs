//! The same elements under another shape: dims are regrouped, permuted, added, repeated.

use graph::Op;

use super::common::{
    NOTHING, Terms, along, call, int, ints, letter, mark, operand, output, plain, product, shape, term,
    terms, text, whole, wrap,
};
use super::{Family, Nature, View};
use crate::algebra::Rule;
use crate::cost::{Call, Sketch};
use crate::local::{self, LocalArg, LocalOp, Part};

pub(super) const FAMILY: Family = Family {
    name: "views",
    targets: &[
        "aten.view.default",
        "aten._unsafe_view.default",
        "aten.reshape.default",
        "aten.flatten.using_ints",
        "aten.unflatten.int",
        "aten.squeeze.default",
        "aten.squeeze.dim",
        "aten.squeeze.dims",
        "aten.unsqueeze.default",
        "aten.view_as.default",
        "aten.reshape_as.default",
        "aten.transpose.int",
        "aten.swapaxes.default",
        "aten.swapdims.default",
        "aten.t.default",
        "aten.numpy_T.default",
        "aten.mT.default",
        "aten.permute.default",
        "aten.movedim.int",
        "aten.movedim.intlist",
        "aten.expand.default",
        "aten.expand_as.default",
        "aten.broadcast_to.default",
        "aten.repeat.default",
        "aten.tile.default",
        "aten.repeat_interleave.self_int",
        "aten.unfold.default",
        "aten.diagonal.default",
        "aten.diag_embed.default",
        "aten.view_as_real.default",
        "aten.view_as_complex.default",
        "aten.meshgrid.default",
        "aten.meshgrid.indexing",
    ],
    rule,
    local,
    rewriting: None,
    cost,
    costs: "nothing: the same memory; what repeats elements moves them",
    nature: Nature { needs_no_values: true, is_view: true, rearranges: true, ..Nature::PLAIN },
};

/// What a target of this family does.
#[derive(Clone, Copy, PartialEq)]
enum Act {
    Regroup,
    Permute,
    Expand,
    Repeat,
    Interleave,
    Window,
    Diagonal,
    Mesh,
    Complex,
    Embed,
}

fn act(op: &Op) -> Act {
    match op.target.split('.').nth(1).unwrap_or_default() {
        "transpose" | "swapaxes" | "swapdims" | "t" | "numpy_T" | "mT" | "permute" | "movedim" => {
            Act::Permute
        }
        "expand" | "expand_as" | "broadcast_to" => Act::Expand,
        "repeat" | "tile" => Act::Repeat,
        "repeat_interleave" => Act::Interleave,
        "unfold" => Act::Window,
        "diagonal" => Act::Diagonal,
        "meshgrid" => Act::Mesh,
        "view_as_real" | "view_as_complex" => Act::Complex,
        "diag_embed" => Act::Embed,
        _ => Act::Regroup,
    }
}

fn rule(view: View<'_>) -> Option<String> {
    let result = output(view)?;
    if act(view.op) == Act::Mesh {
        return mesh(view);
    }
    let input = *view.input_shapes().first()?;
    let (read, written) = match act(view.op) {
        _ if input.contains(&0) || result.contains(&0) => (whole(input, "i"), whole(result, "o")),
        Act::Regroup | Act::Mesh => regroup(input, result),
        Act::Permute => permute(view.op, input)?,
        Act::Expand => expanded(input, result),
        Act::Repeat => repeated(input, result),
        Act::Interleave => interleaved(view.op, input, result)?,
        Act::Window => window(view.op, input, result)?,
        Act::Diagonal => diagonal(view.op, input, result)?,
        Act::Complex => complex(input, result),
        Act::Embed => embedded(view.op, input, result)?,
    };
    let mut inputs = vec![NOTHING.to_string(); view.op.inputs().len()];
    inputs[0] = operand(&read);
    text(view, &inputs, &[operand(&written)], &[vec![0]])
}

/// Groups the dims of both shapes in the smallest blocks of equal size. In a block, the strides of
/// both sides together cut it into factors, if each divides the next; else it stays whole.
fn regroup(input: &[i64], output: &[i64]) -> (Terms, Terms) {
    let mut sides = (vec!["1".to_string(); input.len()], vec!["1".to_string(); output.len()]);
    let (left, right) = (longer(input), longer(output));
    let (mut i, mut j, mut used) = (0, 0, 0);
    while i < left.len() && j < right.len() {
        let (from, to) = (i, j);
        let (mut a, mut b) = (input[left[i]], output[right[j]]);
        (i, j) = (i + 1, j + 1);
        while a != b {
            match (a < b, left.get(i), right.get(j)) {
                (true, Some(&dim), _) => (a, i) = (a * input[dim], i + 1),
                (false, _, Some(&dim)) => (b, j) = (b * output[dim], j + 1),
                _ => return (whole(input, "i"), whole(output, "o")),
            }
        }
        block(input, &left[from..i], output, &right[to..j], &mut sides, &mut used);
    }
    sides
}

/// The dims that have more than one element.
fn longer(shape: &[i64]) -> Vec<usize> {
    (0..shape.len()).filter(|&dim| shape[dim] != 1).collect()
}

fn block(
    input: &[i64],
    left: &[usize],
    output: &[i64],
    right: &[usize],
    sides: &mut (Terms, Terms),
    used: &mut usize,
) {
    let (from, to) = (cuts(input, left), cuts(output, right));
    let mut all: Vec<i64> = from.iter().chain(&to).copied().collect();
    all.sort_unstable_by(|a, b| b.cmp(a));
    all.dedup();
    let chain = all.windows(2).all(|pair| pair[0] % pair[1] == 0);
    let first = *used;
    let name = |at: usize| letter(first + at);
    let terms = |cuts: &[i64], side: usize, dim: usize| {
        if !chain {
            return format!("{}{side}{dim}^", letter(first));
        }
        let inside = |at: &usize| all[*at] <= cuts[dim] && all[*at] > cuts[dim + 1];
        product(&(0..all.len() - 1).filter(inside).map(name).collect::<Vec<_>>())
    };
    left.iter().enumerate().for_each(|(dim, &at)| sides.0[at] = terms(&from, 0, dim));
    right.iter().enumerate().for_each(|(dim, &at)| sides.1[at] = terms(&to, 1, dim));
    *used += if chain { all.len() - 1 } else { 1 };
}

/// The strides of the dims in a block, from its size down to one.
fn cuts(shape: &[i64], dims: &[usize]) -> Vec<i64> {
    let mut cuts = vec![1];
    for &dim in dims.iter().rev() {
        cuts.push(cuts[cuts.len() - 1] * shape[dim]);
    }
    cuts.reverse();
    cuts
}

fn permute(op: &Op, input: &[i64]) -> Option<(Terms, Terms)> {
    let names = terms(input);
    let order = order(op, input.len())?;
    let written = order.iter().map(|&dim| names.get(dim).cloned()).collect::<Option<_>>()?;
    Some((names, written))
}

/// Which dim of the operand each dim of the output is.
fn order(op: &Op, rank: usize) -> Option<Vec<usize>> {
    let all = (0..rank).collect::<Vec<_>>();
    match op.target.split('.').nth(1)? {
        "permute" => ints(op, 1, "dims")?.into_iter().map(|dim| wrap(dim, rank)).collect(),
        "t" | "numpy_T" => Some(all.into_iter().rev().collect()),
        "mT" => swapped(all, rank.checked_sub(2)?, rank - 1),
        "movedim" => moved_dims(op, rank),
        _ => {
            let from = int(op, 1, "dim0", int(op, 1, "axis0", 0));
            let to = int(op, 2, "dim1", int(op, 2, "axis1", 0));
            swapped(all, wrap(from, rank)?, wrap(to, rank)?)
        }
    }
}

fn swapped(mut dims: Vec<usize>, a: usize, b: usize) -> Option<Vec<usize>> {
    if a.max(b) < dims.len() {
        dims.swap(a, b);
    }
    Some(dims)
}

fn moved_dims(op: &Op, rank: usize) -> Option<Vec<usize>> {
    let read = |position, name| -> Option<Vec<usize>> {
        ints(op, position, name)?.into_iter().map(|dim| wrap(dim, rank)).collect()
    };
    let (from, to) = (read(1, "source")?, read(2, "destination")?);
    let mut order = vec![None; rank];
    from.iter().zip(&to).for_each(|(&from, &to)| order[to] = Some(from));
    let mut rest = (0..rank).filter(|dim| !from.contains(dim));
    order.into_iter().map(|dim| dim.or_else(|| rest.next())).collect()
}

fn expanded(input: &[i64], result: &[i64]) -> (Terms, Terms) {
    let names = terms(result);
    (super::common::broadcast(input, result, &names), names)
}

/// `s -> (r s)`: both the copies and the dim itself may be split.
fn repeated(input: &[i64], result: &[i64]) -> (Terms, Terms) {
    let skip = result.len() - input.len().min(result.len());
    let names: Terms = input.iter().enumerate().map(|(dim, &size)| term(size, &letter(dim + skip))).collect();
    let one = "1".to_string();
    let copy = |(dim, &size): (usize, &i64)| {
        let inner = dim.checked_sub(skip).map_or(1, |dim| input[dim]);
        let name = dim.checked_sub(skip).map_or(&one, |dim| &names[dim]);
        product(&[term(size / inner, &format!("{}_copy", letter(dim))), name.clone()])
    };
    let written = result.iter().enumerate().map(copy).collect();
    (names, written)
}

fn interleaved(op: &Op, input: &[i64], result: &[i64]) -> Option<(Terms, Terms)> {
    let dim = match ints(op, 2, "dim") {
        Some(dim) => wrap(*dim.first()?, input.len())?,
        None if input.len() == 1 => 0,
        None => return Some((whole(input, "i"), whole(result, "o"))),
    };
    let names = terms(input);
    let mut written = names.clone();
    let copies = term(int(op, 1, "repeats", 1), &format!("{}_copy", letter(dim)));
    written[dim] = product(&[names[dim].clone(), copies]);
    Some((names, written))
}

fn window(op: &Op, input: &[i64], result: &[i64]) -> Option<(Terms, Terms)> {
    let dim = wrap(int(op, 1, "dimension", 0), input.len())?;
    let (last, rest) = result.split_last()?;
    let (mut read, mut written) = along(input, rest, |at| at != dim);
    read[dim] = mark(&term(input[dim], "whole"), "^");
    written.push(mark(&term(*last, "window"), "^"));
    Some((read, written))
}

fn diagonal(op: &Op, input: &[i64], result: &[i64]) -> Option<(Terms, Terms)> {
    let rank = input.len();
    let pair = [wrap(int(op, 2, "dim1", 0), rank)?, wrap(int(op, 3, "dim2", 1), rank)?];
    let mut read = terms(input);
    let mut written: Terms =
        (0..rank).filter(|dim| !pair.contains(dim)).map(|dim| read[dim].clone()).collect();
    pair.into_iter().for_each(|dim| read[dim] = mark(&read[dim], "^"));
    written.push(mark(&term(*result.last()?, "diagonal"), "^"));
    Some((read, written))
}

/// The last dim becomes a diagonal of two dims.
fn embedded(op: &Op, input: &[i64], result: &[i64]) -> Option<(Terms, Terms)> {
    let rank = result.len();
    let pair = [wrap(int(op, 2, "dim1", -2), rank)?, wrap(int(op, 3, "dim2", -1), rank)?];
    let mut read = terms(input);
    let last = read.len().checked_sub(1)?;
    read[last] = mark(&read[last], "^");
    let mut rows = read[..last].iter();
    let named = |(dim, &size): (usize, &i64)| match pair.contains(&dim) {
        true => Some(mark(&term(size, &format!("y{dim}")), "^")),
        false => rows.next().cloned(),
    };
    let written = result.iter().enumerate().map(named).collect::<Option<_>>()?;
    Some((read, written))
}

/// Complex numbers are a last dim of two.
fn complex(input: &[i64], result: &[i64]) -> (Terms, Terms) {
    let pairs = |mut names: Terms| {
        names.push("two^".into());
        names
    };
    match input.len() < result.len() {
        true => (terms(input), pairs(terms(input))),
        false => (pairs(terms(result)), terms(result)),
    }
}

fn mesh(view: View<'_>) -> Option<String> {
    let sizes: Vec<i64> = view.input_shapes().iter().map(|s| s.iter().product()).collect();
    let names = terms(&sizes);
    let term_of = |(shape, name): (&&[i64], &String)| {
        if shape.is_empty() { "scalar".into() } else { name.clone() }
    };
    let inputs: Vec<String> = view.input_shapes().iter().zip(&names).map(term_of).collect();
    let mut written = names.clone();
    let crossed = matches!(view.op.kwarg("indexing"), Some(graph::Arg::Str(way)) if way == "xy");
    if crossed && written.len() > 1 {
        written.swap(0, 1);
    }
    text(view, &inputs, &vec![operand(&written); view.op.outputs.len()], &[])
}

fn local(view: View<'_>, rule: &Rule, part: &Part) -> LocalOp {
    let to = || local::ints(&part.outputs[0]);
    match act(view.op) {
        Act::Regroup => call("aten.reshape.default", vec![LocalArg::Input(0), to()]),
        Act::Expand => call("aten.expand.default", vec![LocalArg::Input(0), to()]),
        Act::Repeat => call("aten.repeat.default", vec![LocalArg::Input(0), copies(view, part)]),
        Act::Interleave => interleave(view, rule, part),
        _ => plain(view, rule, part),
    }
}

/// How often this part repeats each of its dims.
fn copies(view: View<'_>, part: &Part) -> LocalArg {
    let result = &part.outputs[0];
    let skip = result.len() - part.inputs[0].len();
    let all = shape(view, 0, "self").unwrap_or_default();
    let logical = output(view).unwrap_or_default();
    let times = |dim: usize| match dim.checked_sub(skip) {
        None => result[dim],
        Some(at) if part.inputs[0][at] > 0 => result[dim] / part.inputs[0][at],
        Some(at) => logical[dim] / all[at].max(1),
    };
    local::ints(&(0..result.len()).map(times).collect::<Vec<_>>())
}

fn interleave(view: View<'_>, rule: &Rule, part: &Part) -> LocalOp {
    let rank = part.inputs[0].len();
    let dim = ints(view.op, 2, "dim").and_then(|dim| wrap(*dim.first()?, rank)).or((rank == 1).then_some(0));
    let Some(dim) = dim else { return plain(view, rule, part) };
    let name = format!("{}_copy", letter(dim));
    let times = rule.find(&name).map_or(int(view.op, 1, "repeats", 1), |id| part.size[id.index()]);
    let args = vec![LocalArg::Input(0), LocalArg::Int(times), LocalArg::Int(dim as i64)];
    call("aten.repeat_interleave.self_int", args)
}

fn cost(call: &Call<'_>) -> Sketch {
    let sketch = Sketch::new(call);
    match call.name() {
        "repeat" | "repeat_interleave" | "diag_embed" => sketch.flops(0),
        "meshgrid" => sketch.view_each().keeps("*:"),
        // What several places read is summed up again.
        "expand" | "unfold" | "diagonal" => sketch.view(0),
        _ => sketch.view(0).view_back(),
    }
}

#[cfg(test)]
mod tests {
    use super::regroup;

    fn check(input: &[i64], output: &[i64], expect: &str) {
        let (read, written) = regroup(input, output);
        assert_eq!(format!("{} -> {}", read.join(" "), written.join(" ")), expect);
    }

    #[test]
    fn blocks_are_the_smallest_and_cut_by_both_sides() {
        check(&[4, 6], &[24], "a b -> (a b)");
        check(&[8, 16, 96], &[8, 16, 3, 4, 8], "a b (c d e) -> a b c d e");
        check(&[2, 4, 2], &[4, 4], "a (b c) d -> (a b) (c d)");
        check(&[2, 1, 3], &[1, 2, 3, 1], "a 1 b -> 1 a b 1");
        check(&[1], &[1, 1], "1 -> 1 1");
    }

    #[test]
    fn a_block_that_does_not_divide_stays_whole() {
        check(&[5, 4, 6], &[5, 6, 4], "a b00^ b01^ -> a b10^ b11^");
    }
}
