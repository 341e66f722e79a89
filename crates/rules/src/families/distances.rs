//! Losses of pairs of elements: a mean is rewritten as the loss of each element and their mean.

use graph::{Arg, Op};

use super::common::{MEAN, NONE, broadcast, finish, int, mark, operand, plain, terms, text, wide, widened};
use super::{Family, Nature, View};
use crate::algebra::Rule;
use crate::cost::{Call, Sketch};
use crate::local::{LocalOp, Part};
use crate::rewriting::Builder;

pub(super) const FAMILY: Family = Family {
    name: "distances",
    targets: &[
        "aten.mse_loss.default",
        "aten.l1_loss.default",
        "aten.smooth_l1_loss.default",
        "aten.huber_loss.default",
        "aten.kl_div.default",
        "aten.binary_cross_entropy.default",
        "aten.binary_cross_entropy_with_logits.default",
        "aten.soft_margin_loss.default",
        "aten.poisson_nll_loss.default",
        "aten.hinge_embedding_loss.default",
        "aten.margin_ranking_loss.default",
    ],
    rule,
    local,
    rewriting: Some(rewriting),
    cost,
    costs: "3 operations for each element; keeps both tensors, or their difference",
    nature: Nature { dear: true, ..Nature::PLAIN },
};

/// The arguments before the reduction, with what they are where a call leaves them out.
fn arguments(op: &Op) -> Vec<(&'static str, Arg)> {
    let names: &[&str] = match &op.target[..] {
        "aten.binary_cross_entropy.default" => &["self", "target", "weight"],
        "aten.binary_cross_entropy_with_logits.default" => &["self", "target", "weight", "pos_weight"],
        "aten.poisson_nll_loss.default" => &["input", "target", "log_input", "full", "eps"],
        "aten.hinge_embedding_loss.default" => &["self", "target", "margin"],
        "aten.margin_ranking_loss.default" => &["input1", "input2", "target", "margin"],
        _ => &["self", "target"],
    };
    let default = |name: &&str| match (*name, &op.target[..]) {
        ("margin", "aten.hinge_embedding_loss.default") => Arg::Float(1.0),
        ("margin", _) => Arg::Float(0.0),
        _ => Arg::None,
    };
    names.iter().map(|name| (*name, default(name))).collect()
}

fn reduction(op: &Op) -> i64 {
    int(op, arguments(op).len(), "reduction", MEAN)
}

/// The shape that all operands are broadcast to.
fn common_shape(shapes: &[&[i64]]) -> Vec<i64> {
    let rank = shapes.iter().map(|shape| shape.len()).max().unwrap_or(0);
    let mut common = vec![1; rank];
    for shape in shapes {
        for (size, operand_size) in common[rank - shape.len()..].iter_mut().zip(*shape) {
            if *size == 1 {
                *size = *operand_size;
            }
        }
    }
    common
}

fn rule(view: View<'_>) -> Option<String> {
    let shapes = view.input_shapes();
    if shapes.first() != shapes.get(1) {
        return None; // PyTorch's own gradient is not right for these.
    }
    let common = common_shape(&shapes);
    let sign = match reduction(view.op) {
        NONE => "",
        MEAN => "@",
        _ => "+",
    };
    let names: Vec<String> = terms(&common).iter().map(|name| mark(name, sign)).collect();
    let inputs: Vec<String> =
        shapes.iter().map(|shape| operand(&broadcast(shape, &common, &names))).collect();
    let made = if sign.is_empty() { operand(&names) } else { "scalar".into() };
    text(view, &inputs, &[made], &[])
}

fn rewriting(op: &Op, to: &mut Builder<'_>) {
    if reduction(op) != MEAN {
        return;
    }
    let inputs = op.inputs();
    let shapes: Vec<Vec<i64>> = inputs.iter().map(|id| to.shape(*id).to_vec()).collect();
    let shapes: Vec<&[i64]> = shapes.iter().map(Vec::as_slice).collect();
    let common = common_shape(&shapes);
    let names = terms(&common);
    let labels: Vec<String> =
        shapes.iter().map(|shape| operand(&broadcast(shape, &common, &names))).collect();
    let all = operand(&names);
    let dtype = to.dtype(inputs[0]);
    let labels = format!("{} -> {all}", labels.join(", "));
    let (args, kwargs) = unreduced(op);
    let loss = to.op(&op.target, (args, kwargs), &labels, dtype, &common);
    let wide_loss = widened(to, loss, wide(dtype), &all);
    let args = vec![Arg::Tensor(wide_loss)];
    finish(to, 0, "aten.mean.default", args, &format!("{all} -> scalar"), wide(dtype), &[]);
}

/// The arguments of the same loss without a reduction, positional ones and others.
fn unreduced(op: &Op) -> (Vec<Arg>, Vec<(String, Arg)>) {
    let before = arguments(op);
    let given = before.iter().enumerate();
    let mut args: Vec<Arg> =
        given.map(|(at, (name, default))| op.arg(at, name).unwrap_or(default).clone()).collect();
    args.push(Arg::Int(NONE));
    args.extend(op.args.iter().skip(before.len() + 1).cloned());
    let placed = |name: &str| name == "reduction" || before.iter().any(|(known, _)| *known == name);
    let kwargs = op.kwargs.iter().filter(|(name, _)| !placed(name)).cloned().collect();
    (args, kwargs)
}

fn local(view: View<'_>, rule: &Rule, part: &Part) -> LocalOp {
    plain(view, rule, part)
}

fn cost(call: &Call<'_>) -> Sketch {
    const OPERATIONS: u64 = 3;
    let sketch = Sketch::new(call).flops(OPERATIONS * call.largest());
    let elements = call.largest() * call.width();
    match call.name() {
        "l1_loss" => sketch.keeps("*:").keeps_more(elements),
        "kl_div" if call.flag(3, "log_target") => {
            let difference = if call.learns(1) { elements } else { 0 };
            sketch.keeps("*:").keeps_more(elements + difference)
        }
        "kl_div" => sketch.keeps("0: 1; 1: 0 1"),
        _ => sketch,
    }
}
