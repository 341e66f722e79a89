//! Further products of tensors: sums over dims by another name, and products of which nothing is summed.

use graph::{Arg, Op};

use super::common::{
    Terms, broadcast, int, ints, letter, mark, operand, output, plain, product, shape, term, terms, text,
    wrap,
};
use super::{Family, Nature, View};
use crate::algebra::Rule;
use crate::cost::{Call, Sketch};
use crate::local::{LocalOp, Part};

pub(super) const FAMILY: Family = Family {
    name: "products",
    targets: &[
        "aten.inner.default",
        "aten.tensordot.default",
        "aten.linalg_vecdot.default",
        "aten.linalg_multi_dot.default",
        "aten.chain_matmul.default",
        "aten.bilinear.default",
        "aten.addr.default",
        "aten.kron.default",
        "aten.cross.default",
        "aten.linalg_cross.default",
    ],
    rule,
    local,
    rewriting: None,
    cost,
    costs: "two operations for each product that is summed, and as many for the gradient of each \
            factor; keeps the factors",
    nature: Nature { dear: true, ..Nature::PLAIN },
};

fn name(op: &Op) -> &str {
    op.target.split('.').nth(1).unwrap_or_default()
}

fn rule(view: View<'_>) -> Option<String> {
    match name(view.op) {
        "inner" => inner(view),
        "tensordot" => tensordot(view),
        "linalg_vecdot" => vecdot(view),
        "linalg_multi_dot" | "chain_matmul" => chain(view),
        "bilinear" => bilinear(view),
        "addr" => addr(view),
        "kron" => kron(view),
        _ => cross(view),
    }
}

/// The rule of two factors, linear in each.
fn factors(view: View<'_>, left: &[String], right: &[String], made: &[String]) -> Option<String> {
    text(view, &[operand(left), operand(right)], &[operand(made)], &[vec![0], vec![1]])
}

fn inner(view: View<'_>) -> Option<String> {
    let (mut left, other) = (terms(shape(view, 0, "self")?), shape(view, 1, "other")?);
    let rows = left.len().checked_sub(1)?;
    left[rows] = mark(&term(*other.last()?, "k"), "+");
    let name = |(dim, &size): (usize, &i64)| term(size, &letter(rows + dim));
    let mut right: Terms = other[..other.len() - 1].iter().enumerate().map(name).collect();
    let made = [&left[..rows], &right[..]].concat();
    right.push(left[rows].clone());
    factors(view, &left, &right, &made)
}

fn tensordot(view: View<'_>) -> Option<String> {
    let (one, other) = (shape(view, 0, "self")?, shape(view, 1, "other")?);
    let dims = |position, name, rank| -> Option<Vec<usize>> {
        ints(view.op, position, name)?.into_iter().map(|dim| wrap(dim, rank)).collect()
    };
    let (over, with) = (dims(2, "dims_self", one.len())?, dims(3, "dims_other", other.len())?);
    let named = |shape: &[i64], summed: &[usize], name_of: &dyn Fn(usize) -> String| -> Terms {
        let name = |(dim, &size): (usize, &i64)| match summed.iter().position(|at| *at == dim) {
            Some(at) => mark(&term(size, &format!("k{at}")), "+"),
            None => term(size, &name_of(dim)),
        };
        shape.iter().enumerate().map(name).collect()
    };
    let (left, right) = (named(one, &over, &letter), named(other, &with, &|dim| format!("y{dim}")));
    let free = |names: &Terms, summed: &[usize]| -> Terms {
        let kept = (0..names.len()).filter(|dim| !summed.contains(dim));
        kept.map(|dim| names[dim].clone()).collect()
    };
    let made = [free(&left, &over), free(&right, &with)].concat();
    factors(view, &left, &right, &made)
}

/// The shape that both are broadcast to.
fn common_shape(one: &[i64], other: &[i64]) -> Vec<i64> {
    let rank = one.len().max(other.len());
    let size = |shape: &[i64], dim: usize| (dim + shape.len()).checked_sub(rank).map_or(1, |at| shape[at]);
    (0..rank).map(|dim| if size(one, dim) == 1 { size(other, dim) } else { size(one, dim) }).collect()
}

fn vecdot(view: View<'_>) -> Option<String> {
    let (one, other) = (shape(view, 0, "x")?, shape(view, 1, "y")?);
    let common = common_shape(one, other);
    let (mut names, dim) = (terms(&common), wrap(int(view.op, 2, "dim", -1), common.len())?);
    names[dim] = mark(&names[dim], "+");
    let (left, right) = (broadcast(one, &common, &names), broadcast(other, &common, &names));
    names.remove(dim);
    factors(view, &left, &right, &names)
}

/// `k0 k1, k1 k2, k2 k3 -> k0 k3`: the first and the last may be vectors.
fn chain(view: View<'_>) -> Option<String> {
    let shapes = view.input_shapes();
    let last = shapes.len().checked_sub(1)?;
    let bare = |at: usize| shapes[at].len() == 1;
    let (mut inputs, mut made) = (vec![], vec![]);
    for (at, shape) in shapes.iter().enumerate() {
        let first = if at == 0 && bare(0) { 1 } else { at };
        let mut names: Terms = vec![];
        for (offset, &size) in shape.iter().enumerate() {
            let number = first + offset;
            let outer = number == 0 || number == last + 1;
            names.push(mark(&term(size, &format!("k{number}")), if outer { "" } else { "+" }));
            made.extend(outer.then(|| names[offset].clone()));
        }
        inputs.push(operand(&names));
    }
    let linear: Vec<Vec<usize>> = (0..inputs.len()).map(|at| vec![at]).collect();
    text(view, &inputs, &[operand(&made)], &linear)
}

fn bilinear(view: View<'_>) -> Option<String> {
    let (one, other) = (shape(view, 0, "input1")?, shape(view, 1, "input2")?);
    let [o, i, j] = *shape(view, 2, "weight")? else { return None };
    let (i, j, o) = (mark(&term(i, "i"), "+"), mark(&term(j, "j"), "+"), term(o, "o"));
    let rows = super::common::batch(one.len().checked_sub(1)?, output(view)?);
    let ending = |last: &String| operand(&[rows.clone(), vec![last.clone()]].concat());
    if one.len() != other.len() {
        return None;
    }
    let mut inputs = vec![ending(&i), ending(&j), operand(&[o.clone(), i.clone(), j.clone()])];
    let biased = shape(view, 3, "bias").is_some();
    inputs.extend(biased.then(|| format!("!{o}")));
    let linear = if biased { vec![] } else { vec![vec![0], vec![1], vec![2]] };
    text(view, &inputs, &[ending(&o)], &linear)
}

fn addr(view: View<'_>) -> Option<String> {
    let result = output(view)?;
    let [m, n] = *result else { return None };
    let names = [term(m, "m"), term(n, "n")];
    let added = broadcast(shape(view, 0, "self")?, result, &names);
    let inputs = [operand(&added), names[0].clone(), names[1].clone()];
    text(view, &inputs, &[operand(&names)], &[vec![0, 1], vec![0, 2]])
}

/// Each element of the one times all of the other.
fn kron(view: View<'_>) -> Option<String> {
    let (one, other) = (shape(view, 0, "self")?, shape(view, 1, "other")?);
    let rank = one.len().max(other.len());
    let named = |shape: &[i64], first: usize| -> Terms {
        let skip = rank - shape.len();
        shape.iter().enumerate().map(|(dim, &size)| term(size, &letter(first + skip + dim))).collect()
    };
    let (left, right) = (named(one, 0), named(other, rank));
    let at = |names: &Terms, dim: usize| {
        (dim + names.len()).checked_sub(rank).map_or_else(|| "1".to_string(), |at| names[at].clone())
    };
    if one.contains(&0) || other.contains(&0) {
        return None;
    }
    let made: Terms = (0..rank).map(|dim| product(&[at(&left, dim), at(&right, dim)])).collect();
    factors(view, &left, &right, &made)
}

fn cross(view: View<'_>) -> Option<String> {
    let (one, other) = (shape(view, 0, "self")?, shape(view, 1, "other")?);
    let result = output(view)?;
    let dim = match (view.op.arg(2, "dim"), name(view.op)) {
        (Some(Arg::Int(dim)), _) => wrap(*dim, result.len())?,
        (_, "linalg_cross") => result.len().checked_sub(1)?,
        _ => result.iter().position(|size| *size == 3)?,
    };
    let mut names = terms(result);
    names[dim] = mark(&names[dim], "^");
    factors(view, &broadcast(one, result, &names), &broadcast(other, result, &names), &names)
}

fn local(view: View<'_>, rule: &Rule, part: &Part) -> LocalOp {
    plain(view, rule, part)
}

fn cost(call: &Call<'_>) -> Sketch {
    let sketch = Sketch::new(call);
    match call.name() {
        "bilinear" => sketch.keeps("0: 1 2; 1: 0 2; 2: 0 1"),
        _ => sketch,
    }
}
