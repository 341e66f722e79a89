//! Recurrent layers: rows of a batch do not meet, so the batch maps. Time, channels and weights stay whole.

use graph::{Arg, Op};

use super::common::{Terms, flag, float, operand, plain, term, text, whole};
use super::{Family, Nature, View};
use crate::algebra::Rule;
use crate::cost::{Call, Sketch, numel};
use crate::local::{LocalArg, LocalOp, Part};

pub(super) const FAMILY: Family = Family {
    name: "recurrent",
    targets: &[
        "aten.lstm.input",
        "aten.gru.input",
        "aten.rnn_tanh.input",
        "aten.rnn_relu.input",
        "aten.lstm_cell.default",
        "aten.gru_cell.default",
        "aten.rnn_tanh_cell.default",
        "aten.rnn_relu_cell.default",
    ],
    rule,
    local,
    rewriting: None,
    cost,
    costs: "two operations for each weight and step of a row; keeps input and weights, and about \
            what each step computes",
    nature: Nature { dear: true, ..Nature::PLAIN },
};

fn name(op: &Op) -> &str {
    op.target.split('.').nth(1).unwrap_or_default()
}

fn is_cell(name: &str) -> bool {
    name.ends_with("_cell")
}

fn rule(view: View<'_>) -> Option<String> {
    if !is_cell(name(view.op)) && flag(view.op, 6, "train", false) && float(view.op, 5, "dropout", 0.0) > 0.0
    {
        return None;
    }
    let states = given(view.op, 1);
    let mut inputs = vec![];
    for (at, id) in view.op.inputs().into_iter().enumerate() {
        let shape = &view.graph.tensor(id).shape[..];
        inputs.push(operand(&match at {
            0 => rows(shape, input_rows(view.op, shape.len())?, "x"),
            at if at <= states => rows(shape, state_rows(view.op, shape.len())?, &format!("h{at}_")),
            at => whole(shape, &format!("w{at}_")),
        }));
    }
    let mut outputs = vec![];
    for (at, shape) in view.output_shapes().into_iter().enumerate() {
        let Some(shape) = shape else {
            outputs.push(super::common::NOTHING.into());
            continue;
        };
        let first = at == 0 && !is_cell(name(view.op));
        let dim = if first { input_rows(view.op, shape.len()) } else { state_rows(view.op, shape.len()) };
        outputs.push(operand(&rows(shape, dim?, &format!("y{at}_"))));
    }
    text(view, &inputs, &outputs, &[])
}

/// How many tensors an argument is.
fn given(op: &Op, position: usize) -> usize {
    match op.args.get(position) {
        Some(Arg::List(items)) => items.len(),
        _ => 1,
    }
}

/// Which dim of the input is the batch.
fn input_rows(op: &Op, rank: usize) -> Option<usize> {
    match (is_cell(name(op)), rank) {
        (true, 2) => Some(0),
        (false, 3) => Some(usize::from(!batch_first(op))),
        _ => None,
    }
}

fn batch_first(op: &Op) -> bool {
    flag(op, 8, "batch_first", false)
}

fn state_rows(op: &Op, rank: usize) -> Option<usize> {
    match (is_cell(name(op)), rank) {
        (true, 2) => Some(0),
        (false, 3) => Some(1),
        _ => None,
    }
}

fn rows(shape: &[i64], dim: usize, stem: &str) -> Terms {
    let mut names = whole(shape, stem);
    names[dim] = term(shape[dim], "b");
    names
}

fn local(view: View<'_>, rule: &Rule, part: &Part) -> LocalOp {
    plain(view, rule, part)
}

fn cost(call: &Call<'_>) -> Sketch {
    let cell = is_cell(call.name());
    let states = match call.op.args.get(1) {
        Some(LocalArg::List(items)) => items.len(),
        _ => 1,
    };
    let [input, ..] = &call.operands[..] else { return Sketch::new(call) };
    let weights = || call.operands.iter().skip(1 + states);
    let matrices: u64 = weights().filter(|it| it.shape.len() == 2).map(|it| numel(&it.shape)).sum();
    let channels = input.shape.last().map_or(1, |size| size.unsigned_abs()).max(1);
    // Rows of the batch, at each step of time.
    let rows = numel(&input.shape) / channels;
    let flops = 2 * rows * matrices;
    let hidden: u64 = weights().filter(|it| it.shape.len() == 1).map(|it| numel(&it.shape)).sum::<u64>() / 2;
    // Half of the gradients' operations are those of weights, a quarter each those of input and of states.
    let gradient = |(at, it): (usize, &crate::cost::Operand)| match at {
        0 => flops / 2,
        at if at <= states => flops / 2 / states as u64,
        _ if it.shape.len() == 2 => 2 * rows * numel(&it.shape),
        _ => 0,
    };
    let gradients = call.operands.iter().enumerate().map(gradient).collect();
    let everything = (0..call.operands.len()).filter(|at| *at == 0 || *at > states);
    let sketch = everything.fold(Sketch::new(call).keeps("*:"), |s, at| s.keeps_operand(Some(at)));
    let steps = if cell { 1 } else { 2 };
    sketch.flops(flops).gradients(gradients).keeps_more(steps * rows * hidden * call.width())
}
