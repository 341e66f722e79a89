//! Each row times the matrix of its own expert. A part of the experts gives the rows that they have,
//! and zeros for the others.

use super::common::{
    bytes, call, flag, float_inputs, mark, numel, operand, output, shape, start, term, text,
};
use super::{Cost, Family, View};
use crate::algebra::Rule;
use crate::local::{LocalArg, LocalOp, Part};

pub(super) const FAMILY: Family = Family {
    name: "experts",
    targets: &["shardwright.expert_linear.default"],
    rule,
    local,
    rewriting: None,
    cost,
};

fn transposed(view: View<'_>) -> bool {
    flag(view.op, 3, "transposed", false)
}

fn rule(view: View<'_>) -> Option<String> {
    let [rows, summed] = *shape(view, 0, "x")? else { return None };
    let [experts, ..] = *shape(view, 1, "weight")? else { return None };
    let made = *output(view)?.get(1)?;
    let (rows, made) = (term(rows, "s"), term(made, "n"));
    let summed = mark(&term(summed, "k"), "+");
    let expert = match term(experts, "e") {
        split if experts > 1 => format!("{split}+~"),
        whole => whole,
    };
    let matrix = if transposed(view) { [&summed, &made] } else { [&made, &summed] };
    let weight = operand(&[expert, matrix[0].clone(), matrix[1].clone()]);
    let x = operand(&[rows.clone(), summed]);
    text(view, &[x, weight, rows.clone()], &[operand(&[rows, made])], &[vec![0], vec![1]])
}

fn local(view: View<'_>, rule: &Rule, part: &Part) -> LocalOp {
    let first = LocalArg::Int(start(rule, part, "e"));
    let count = LocalArg::Int(shape(view, 1, "weight").map_or(0, |shape| shape[0]));
    let args = [0, 1, 2].map(LocalArg::Input).into_iter();
    let args = args.chain([first, count, LocalArg::Bool(transposed(view))]);
    call("sw.expert_linear", args.collect())
}

/// Each row meets one matrix.
fn cost(view: View<'_>) -> Cost {
    let rows = shape(view, 0, "x").map_or(0.0, numel);
    let made = output(view).and_then(|shape| shape.get(1)).map_or(0.0, |size| *size as f64);
    Cost { flops: 2.0 * rows * made, backward: 2.0, bytes: bytes(view), saved: float_inputs(view) }
}
