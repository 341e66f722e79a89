//! Products summed over dims: matrix products in all their forms, and einsum.

use std::collections::BTreeSet;

use graph::{Arg, Op};

use super::common::{
    Terms, batch, broadcast, float, mark, operand, output, plain, shape, tensor, term, text,
};
use super::{Family, Nature, View};
use crate::algebra::{DimId, Rule};
use crate::cost::{Call, Sketch, numel};
use crate::local::{LocalOp, Part};
use crate::rewriting::Builder;

pub(super) const FAMILY: Family = Family {
    name: "contraction",
    targets: &[
        "aten.linear.default",
        "aten.matmul.default",
        "aten.mm.default",
        "aten.bmm.default",
        "aten.addmm.default",
        "aten.addmv.default",
        "aten.baddbmm.default",
        "aten.einsum.default",
        "aten.dot.default",
        "aten.vdot.default",
        "aten.mv.default",
        "aten.outer.default",
        "aten.ger.default",
    ],
    rule,
    local,
    rewriting: Some(rewriting),
    cost,
    costs: "two operations for each product that is summed, and as many for the gradient of each \
            factor; keeps the factors",
    nature: Nature { dear: true, can_wait: true, contracts: true, ..Nature::PLAIN },
};

fn rule(view: View<'_>) -> Option<String> {
    match &view.op.target[..] {
        "aten.linear.default" => linear(view),
        "aten.addmm.default" => added(view, "mat1", "mat2"),
        "aten.addmv.default" => added(view, "mat", "vec"),
        "aten.baddbmm.default" => added(view, "batch1", "batch2"),
        "aten.einsum.default" => einsum(view),
        "aten.outer.default" | "aten.ger.default" => outer(view),
        _ => {
            let [left, right] = view.input_shapes()[..] else { return None };
            let (left, right, written) = product(left, right, output(view)?)?;
            let inputs = [operand(&left), operand(&right)];
            text(view, &inputs, &[operand(&written)], &[vec![0], vec![1]])
        }
    }
}

fn linear(view: View<'_>) -> Option<String> {
    let (input, weight) = (shape(view, 0, "input")?, shape(view, 1, "weight")?);
    let mut written = batch(input.len().checked_sub(1)?, output(view)?);
    let bias = tensor(view.op, 2, "bias").is_some();
    // Parts of the sum have no bias: it is added to the sum.
    let summed = mark(&term(*input.last()?, "k"), if bias { "@" } else { "+" });
    let mut read = written.clone();
    read.push(summed.clone());
    let mut inputs = vec![operand(&read)];
    // The weight may be one row without the dim of rows.
    let rows = weight.len().checked_sub(1)?;
    let made: Terms = weight[..rows].iter().map(|&size| term(size, "n")).collect();
    inputs.push(operand(&[made.clone(), vec![summed]].concat()));
    if bias {
        inputs.push(operand(&made));
        written.extend(made);
        return text(view, &inputs, &[operand(&written)], &[]);
    }
    written.extend(made);
    text(view, &inputs, &[operand(&written)], &[vec![0], vec![1]])
}

/// A `linear` over a split sum: the product, and the bias once that is complete.
fn rewriting(op: &Op, to: &mut Builder<'_>) {
    let [x, weight, bias] = op.inputs()[..] else { return };
    let Some(dtype) = to.result_dtype(0) else { return };
    let (given, rows) = (to.shape(x).to_vec(), to.shape(bias).to_vec());
    let made = [&given[..given.len() - 1], &rows].concat();
    let (batch, rows) = (batch(given.len() - 1, &made), rows.iter().map(|&size| term(size, "n")));
    let rows: Terms = rows.collect();
    let summed = vec![term(given[given.len() - 1], "k")];
    let result = operand(&[batch.clone(), rows.clone()].concat());
    let factors = [operand(&[batch, summed.clone()].concat()), operand(&[rows.clone(), summed].concat())];
    let args = vec![Arg::Tensor(x), Arg::Tensor(weight)];
    let labels = format!("{} -> {result}", factors.join(", "));
    let product = to.op("aten.linear.default", args, &labels, dtype, &made);
    let args = vec![Arg::Tensor(product), Arg::Tensor(bias)];
    to.result(0, "aten.add.Tensor", args, &format!("{result}, {} -> {result}", operand(&rows)));
}

/// `m k+, k n -> m n` with dims of a batch before, which are broadcast; either side may lack its
/// own dim.
fn product(left: &[i64], right: &[i64], result: &[i64]) -> Option<(Terms, Terms, Terms)> {
    let summed = mark(&term(*left.last()?, "k"), "+");
    let (has_m, has_n) = (left.len() > 1, right.len() > 1);
    let leading = result.len().checked_sub(usize::from(has_m) + usize::from(has_n))?;
    let names = batch(leading, result);
    let cut = |shape: &[i64]| shape.len().saturating_sub(2);
    let mut a = broadcast(&left[..cut(left)], &result[..leading], &names);
    let mut b = broadcast(&right[..cut(right)], &result[..leading], &names);
    let mut written = names;
    if has_m {
        let m = term(left[left.len() - 2], "m");
        a.push(m.clone());
        written.push(m);
    }
    a.push(summed.clone());
    b.push(summed);
    if has_n {
        let n = term(*right.last()?, "n");
        b.push(n.clone());
        written.push(n);
    }
    Some((a, b, written))
}

/// A product to which a bias is added once.
fn added(view: View<'_>, first: &str, second: &str) -> Option<String> {
    let (bias, result) = (shape(view, 0, "self")?, output(view)?);
    let (left, right) = (shape(view, 1, first)?, shape(view, 2, second)?);
    let (mut left, mut right, written) = product(left, right, result)?;
    if float(view.op, 4, "alpha", 1.0) != 1.0 {
        // Parts without the bias are plain products: they have no factor.
        let whole = |term: &mut String| *term = term.replace("k+", "k^");
        left.iter_mut().chain(&mut right).for_each(whole);
    }
    let bias = broadcast(bias, result, &written);
    let inputs = [format!("!{}", operand(&bias)), operand(&left), operand(&right)];
    text(view, &inputs, &[operand(&written)], &[])
}

fn outer(view: View<'_>) -> Option<String> {
    let [m, n] = *output(view)? else { return None };
    let (m, n) = (term(m, "m"), term(n, "n"));
    let result = operand(&[m.clone(), n.clone()]);
    text(view, &[m, n], &[result], &[vec![0], vec![1]])
}

fn einsum(view: View<'_>) -> Option<String> {
    let Some(Arg::Str(equation)) = view.op.arg(0, "equation") else { return None };
    let equation: String = equation.chars().filter(|c| !c.is_whitespace()).collect();
    let (left, right) = match equation.split_once("->") {
        Some((left, right)) => (left.to_string(), right.to_string()),
        None => (equation.clone(), implicit(&equation)),
    };
    let result = output(view)?;
    let shapes = view.input_shapes();
    let sides: Vec<&str> = left.split(',').collect();
    if sides.len() != shapes.len() {
        return None;
    }
    let written = labels(&right, result.len())?;
    let named = |(side, shape): (&&str, &&[i64])| -> Option<String> {
        let names = labels(side, shape.len())?;
        let term = |(name, &size): (&String, &i64)| {
            mark(&term(size, name), if written.contains(name) { "" } else { "+" })
        };
        Some(operand(&names.iter().zip(*shape).map(term).collect::<Vec<_>>()))
    };
    let inputs: Vec<String> = sides.iter().zip(&shapes).map(named).collect::<Option<_>>()?;
    let outputs: Terms = written.iter().zip(result).map(|(name, &size)| term(size, name)).collect();
    let linear: Vec<Vec<usize>> = (0..inputs.len()).map(|i| vec![i]).collect();
    text(view, &inputs, &[operand(&outputs)], &linear)
}

/// The output of an equation that names none: what occurs once, in alphabetical order.
fn implicit(equation: &str) -> String {
    let mut once: Vec<char> =
        equation.chars().filter(|c| c.is_ascii_alphabetic() && equation.matches(*c).count() == 1).collect();
    once.sort_unstable();
    let dots = if equation.contains("...") { "..." } else { "" };
    once.into_iter().fold(dots.to_string(), |text, c| text + &c.to_string())
}

/// One name per dim; `None` where a name is repeated. Dims of an ellipsis are counted from the
/// right, as they are broadcast.
fn labels(side: &str, rank: usize) -> Option<Vec<String>> {
    let (before, after) = side.split_once("...").unwrap_or((side, ""));
    let letters = |text: &str| text.chars().map(|c| c.to_string()).collect::<Vec<_>>();
    let dots = rank.checked_sub(before.chars().count() + after.chars().count())?;
    if dots > 0 && !side.contains("...") {
        return None;
    }
    let between = (0..dots).rev().map(|i| format!("dots{i}")).collect();
    let names: Vec<String> = [letters(before), between, letters(after)].concat();
    let repeated = (1..names.len()).any(|i| names[..i].contains(&names[i]));
    (!repeated).then_some(names)
}

fn local(view: View<'_>, rule: &Rule, part: &Part) -> LocalOp {
    let mut local = plain(view, rule, part);
    let bare = match &view.op.target[..] {
        "aten.addmm.default" => "aten.mm.default",
        "aten.addmv.default" => "aten.mv.default",
        "aten.baddbmm.default" => "aten.bmm.default",
        _ => return local,
    };
    if !part.first {
        local.target = bare.into();
        local.kwargs.clear();
        local.args = local.args.split_off(1);
    }
    local
}

fn cost(call: &Call<'_>) -> Sketch {
    let sketch = Sketch::new(call);
    let (left, right) = match call.name() {
        "outer" | "ger" => return sketch,
        "einsum" => return summed(call, sketch),
        "addmm" | "addmv" | "baddbmm" => (1, 2),
        _ => (0, 1),
    };
    let Some(products) = call.volume() else { return sketch };
    // A bias is little beside the products.
    let gradient = |at: usize| if at == left || at == right { 2 * products } else { 0 };
    let gradients = (0..call.operands.len()).map(gradient).collect();
    let sketch = sketch.flops(2 * products).gradients(gradients);
    match call.name() {
        "matmul" => broadcasted(call, sketch),
        _ => sketch.keeps(&format!("{left}: {right}; {right}: {left}")),
    }
}

/// A batch that only a part of an operand's dims has is copied before the product, and the copy is kept.
fn broadcasted(call: &Call<'_>, sketch: Sketch) -> Sketch {
    let leading = |shape: &[i64]| shape[..shape.len().saturating_sub(2)].to_vec();
    let Some(Some(made)) = call.results.first() else { return sketch };
    let batched = call.operands.iter().all(|operand| operand.shape.len() > 2);
    let (mut sketch, batch) = (sketch.keeps("*:"), leading(&made.shape));
    for (at, operand) in call.operands.iter().enumerate() {
        let (other, mut operand_batch) = (1 - at, leading(&operand.shape));
        while batched && operand_batch.len() < batch.len() {
            operand_batch.insert(0, 1);
        }
        let grown = operand_batch.iter().zip(&batch).filter(|(size, all)| size != all).count();
        let longer = batch.iter().filter(|size| **size != 1).count();
        sketch = match () {
            () if !call.learns(other) => sketch,
            () if batched && grown > 0 && grown < longer => {
                let matrix = numel(&operand.shape[operand.shape.len() - 2..]);
                sketch.keeps_more(numel(&batch) * matrix * operand.dtype.bytes() as u64)
            }
            () => sketch.keeps_operand(Some(at)),
        };
    }
    sketch
}

/// From left to right, two by two. A step that sums nothing is little beside those that do; what is made on
/// the way may be kept.
fn summed(call: &Call<'_>, sketch: Sketch) -> Sketch {
    let Some(rule) = call.rule.filter(|_| call.operands.len() > 1) else { return sketch };
    let dims = |operand: &crate::Operand| operand.dims.iter().flatten().copied().collect::<BTreeSet<_>>();
    let volume = |dims: &BTreeSet<DimId>| -> u64 {
        dims.iter().map(|dim| call.part.size[dim.index()].unsigned_abs()).product()
    };
    let (mut flops, mut gradients) = (0, vec![0; call.operands.len()]);
    let mut sketch = sketch.keeps("*:");
    let (mut left, made) = (dims(&rule.inputs[0]), dims(&rule.outputs[0]));
    for at in 1..call.operands.len() {
        let learning = (0..at).find(|before| call.learns(*before));
        if call.learns(at) {
            sketch = match at {
                1 => sketch.keeps_operand(Some(0)),
                _ => sketch.keeps_more(volume(&left) * call.width()),
            };
        }
        sketch = sketch.keeps_operand(learning.map(|_| at));
        let all: BTreeSet<DimId> = left.union(&dims(&rule.inputs[at])).copied().collect();
        let later = rule.inputs[at + 1..].iter().map(dims).fold(made.clone(), |a, b| &a | &b);
        left = all.intersection(&later).copied().collect();
        if left != all {
            flops += 2 * volume(&all);
            gradients[at] += 2 * volume(&all);
            gradients[learning.unwrap_or(0)] += 2 * volume(&all);
        }
    }
    if flops == 0 {
        return sketch;
    }
    sketch.flops(flops).gradients(gradients)
}
