//! Tensors made from numbers: each part makes its own shape.

use graph::{Arg, Dtype, Op};

use super::common::{NOTHING, call, get, mark, operand, output, plain, set, start, terms, text};
use super::{Family, Nature, View};
use crate::algebra::Rule;
use crate::cost::{Call, Sketch};
use crate::local::{LocalArg, LocalOp, Part, ints};

pub(super) const FAMILY: Family = Family {
    name: "creation",
    targets: &[
        "aten.zeros.default",
        "aten.ones.default",
        "aten.full.default",
        "aten.empty.memory_format",
        "aten.new_zeros.default",
        "aten.new_ones.default",
        "aten.new_full.default",
        "aten.new_empty.default",
        "aten.scalar_tensor.default",
        "aten.eye.default",
        "aten.eye.m",
        "aten.arange.default",
        "aten.arange.start",
        "aten.arange.start_step",
        "aten.linspace.default",
        "aten.logspace.default",
        "aten.hann_window.default",
        "aten.hann_window.periodic",
        "aten.hamming_window.default",
        "aten.hamming_window.periodic",
        "aten.hamming_window.periodic_alpha",
        "aten.hamming_window.periodic_alpha_beta",
        "aten.blackman_window.default",
        "aten.blackman_window.periodic",
        "aten.bartlett_window.default",
        "aten.bartlett_window.periodic",
        "aten.kaiser_window.default",
        "aten.kaiser_window.periodic",
        "aten.kaiser_window.beta",
        "aten.tril_indices.default",
        "aten.triu_indices.default",
        "aten.fft_fftfreq.default",
        "aten.fft_rfftfreq.default",
    ],
    rule,
    local,
    rewriting: None,
    cost,
    costs: "writes its elements",
    nature: Nature::PLAIN,
};

fn name(op: &Op) -> &str {
    op.target.split('.').nth(1).unwrap_or_default()
}

fn rule(view: View<'_>) -> Option<String> {
    let mut names = terms(output(view)?);
    let sign = match name(view.op) {
        "arange" if range(view.op).is_some() => "~",
        "zeros" | "ones" | "full" | "empty" | "new_zeros" | "new_ones" | "new_full" | "new_empty"
        | "scalar_tensor" => "",
        _ => "^",
    };
    names.iter_mut().for_each(|name| *name = mark(name, sign));
    // Of its operand, only the type matters.
    let inputs = vec![NOTHING.to_string(); view.op.inputs().len()];
    text(view, &inputs, &[operand(&names)], &[])
}

/// Where a range of integers starts, and its step.
fn range(op: &Op) -> Option<(i64, i64)> {
    let mut numbers = vec![];
    for arg in &op.args {
        let Arg::Int(value) = arg else { return None };
        numbers.push(*value);
    }
    match numbers[..] {
        [_] => Some((0, 1)),
        [start, _] => Some((start, 1)),
        [start, _, step] => Some((start, step)),
        _ => None,
    }
}

fn local(view: View<'_>, rule: &Rule, part: &Part) -> LocalOp {
    let mut local = plain(view, rule, part);
    let shape = ints(&part.outputs[0]);
    match name(view.op) {
        "zeros" | "ones" | "full" | "empty" => set(&mut local, 0, "size", shape),
        "new_zeros" => return made(view, "aten.zeros.default", vec![shape]),
        "new_ones" => return made(view, "aten.ones.default", vec![shape]),
        "new_empty" => return made(view, "aten.empty.memory_format", vec![shape]),
        "new_full" => {
            let value = get(&local, 2, "fill_value");
            return made(view, "aten.full.default", vec![shape, value]);
        }
        "arange" => return counted(view, rule, part).unwrap_or(local),
        _ => {}
    }
    local
}

/// A creation with its type written out.
fn made(view: View<'_>, target: &str, args: Vec<LocalArg>) -> LocalOp {
    let output = view.op.outputs.iter().flatten().next();
    let dtype = output.map_or(Dtype::F32, |id| view.graph.tensor(*id).dtype);
    let kwargs = vec![("dtype".into(), LocalArg::Dtype(dtype))];
    LocalOp { kwargs, ..call(target, args) }
}

fn counted(view: View<'_>, rule: &Rule, part: &Part) -> Option<LocalOp> {
    let (first, step) = range(view.op)?;
    let from = first + step * start(rule, part, "a");
    let to = from + step * part.outputs[0].first()?;
    let args = [from, to, step].map(LocalArg::Int).to_vec();
    Some(made(view, "aten.arange.start_step", args))
}

fn cost(call: &Call<'_>) -> Sketch {
    Sketch::new(call).flops(0)
}
