//! Products summed over dims: matrix products in all their forms, and einsum.

use graph::Arg;

use super::common::{
    Terms, batch, broadcast, bytes, float, float_inputs, mark, operand, output, plain, shape, tensor, term,
    text,
};
use super::{Cost, Family, View};
use crate::algebra::Rule;
use crate::local::{LocalOp, Part};

pub(super) const FAMILY: Family = Family {
    name: "contraction",
    targets: &[
        "aten.linear.default",
        "aten.matmul.default",
        "aten.mm.default",
        "aten.bmm.default",
        "aten.addmm.default",
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
    rewriting: None,
    cost,
};

fn rule(view: View<'_>) -> Option<String> {
    match &view.op.target[..] {
        "aten.linear.default" => linear(view),
        "aten.addmm.default" => added(view, "mat1", "mat2"),
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
    let summed = mark(&term(*input.last()?, "k"), "+");
    let mut read = written.clone();
    read.push(summed.clone());
    let mut inputs = vec![operand(&read)];
    // The weight may be one row without the dim of rows.
    let rows = weight.len().checked_sub(1)?;
    let made: Terms = weight[..rows].iter().map(|&size| term(size, "n")).collect();
    inputs.push(operand(&[made.clone(), vec![summed]].concat()));
    if tensor(view.op, 2, "bias").is_some() {
        inputs.push(format!("!{}", operand(&made)));
        written.extend(made);
        return text(view, &inputs, &[operand(&written)], &[]);
    }
    written.extend(made);
    text(view, &inputs, &[operand(&written)], &[vec![0], vec![1]])
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

fn cost(view: View<'_>) -> Cost {
    Cost { flops: 2.0 * volume(view), backward: 2.0, bytes: bytes(view), saved: float_inputs(view) }
}

/// The number of products that are summed: the product of all dims.
fn volume(view: View<'_>) -> f64 {
    let written = output(view).map_or(0.0, super::common::numel);
    let Some(rule) = super::rule_of(view) else { return written };
    rule.dims.iter().map(|dim| dim.size as f64).product()
}
