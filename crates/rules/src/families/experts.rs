//! Each row times the matrix of its own expert. A part of the experts gives the rows that they have,
//! and zeros for the others.

use graph::Dtype;

use super::common::{call, flag, mark, operand, output, shape, start, term, text};
use super::{Family, Nature, View};
use crate::algebra::Rule;
use crate::cost::{Call, Sketch, numel};
use crate::local::{LocalArg, LocalOp, Part};

pub(super) const FAMILY: Family = Family {
    name: "experts",
    targets: &["shardwright.expert_linear.default"],
    rule,
    local,
    rewriting: None,
    cost,
    costs: "each row times one matrix, parts of the experts their share of the rows; keeps the weight, \
            and the rows in the experts' order",
    nature: Nature {
        dear: true,
        experts: Some("e"),
        keeps_finite: true,
        dims: &[("e", "experts")],
        ..Nature::PLAIN
    },
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

/// Each row meets one matrix; a part has its share of the rows.
fn cost(call: &Call<'_>) -> Sketch {
    let [x, weight, _] = &call.operands[..] else { return Sketch::new(call) };
    let (&[rows, wide], Some(&experts)) = (&x.shape[..], weight.shape.first()) else {
        return Sketch::new(call);
    };
    let all = call.int(4, "total", experts).max(1);
    let (rows, experts, all) = (rows.unsigned_abs(), experts.unsigned_abs(), all.unsigned_abs());
    let columns = numel(&weight.shape[1..]) / wide.unsigned_abs().max(1);
    let share = rows * experts / all;
    // All rows are put in the experts' order, and back.
    let order = rows * Dtype::I64.bytes() as u64;
    let sorted = rows * wide.unsigned_abs() * x.dtype.bytes() as u64;
    let more = order + if x.learns { order } else { 0 } + if weight.learns { sorted } else { 0 };
    let sketch = Sketch::new(call).keeps("0: 1").keeps_more(more);
    sketch.flops(2 * share * wide.unsigned_abs() * columns)
}
