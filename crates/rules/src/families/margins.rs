//! Losses of rows: the dim of a row's classes or features stays whole; a mean is rewritten as the loss of each row and
//! their mean.

use graph::{Arg, Op};

use super::common::{MEAN, NONE, finish, int, mark, operand, plain, terms, text, whole, wide, widened};
use super::{Family, Nature, View};
use crate::algebra::Rule;
use crate::cost::{Call, Sketch};
use crate::local::{LocalOp, Part};
use crate::rewriting::Builder;

pub(super) const FAMILY: Family = Family {
    name: "margins",
    targets: &[
        "aten.cosine_embedding_loss.default",
        "aten.triplet_margin_loss.default",
        "aten.multilabel_margin_loss.default",
    ],
    rule,
    local,
    rewriting: Some(rewriting),
    cost,
    costs: "6 operations for each element; keeps its operands and about what each step computes",
    nature: Nature::PLAIN,
};

/// The arguments before the reduction, with what they are where a call leaves them out.
fn arguments(op: &Op) -> Vec<(&'static str, Arg)> {
    let tensor = |name| (name, Arg::None);
    match op.target.split('.').nth(1).unwrap_or_default() {
        "cosine_embedding_loss" => {
            vec![tensor("input1"), tensor("input2"), tensor("target"), ("margin", Arg::Float(0.0))]
        }
        "triplet_margin_loss" => vec![
            tensor("anchor"),
            tensor("positive"),
            tensor("negative"),
            ("margin", Arg::Float(1.0)),
            ("p", Arg::Float(2.0)),
            ("eps", Arg::Float(1e-6)),
            ("swap", Arg::Bool(false)),
        ],
        _ => vec![tensor("self"), tensor("target")],
    }
}

fn reduction(op: &Op) -> i64 {
    int(op, arguments(op).len(), "reduction", MEAN)
}

/// The terms of each operand, and of the rows.
fn names(shapes: &[&[i64]], sign: &str) -> Option<(Vec<String>, Vec<String>)> {
    let first = *shapes.first()?;
    let (last, rows) = first.split_last()?;
    let names: Vec<String> = terms(rows).iter().map(|name| mark(name, sign)).collect();
    let inner = whole(&[*last], "x");
    let operand_of = |shape: &&[i64]| match shape {
        shape if **shape == *first => Some(operand(&[names.clone(), inner.clone()].concat())),
        shape if **shape == *rows => Some(operand(&names)),
        _ => None,
    };
    Some((shapes.iter().map(operand_of).collect::<Option<_>>()?, names))
}

fn rule(view: View<'_>) -> Option<String> {
    let sign = match reduction(view.op) {
        NONE => "",
        MEAN => "@",
        _ => "+",
    };
    let (inputs, rows) = names(&view.input_shapes(), sign)?;
    let made = if sign.is_empty() { operand(&rows) } else { "scalar".into() };
    text(view, &inputs, &[made], &[])
}

fn rewriting(op: &Op, to: &mut Builder<'_>) {
    if reduction(op) != MEAN {
        return;
    }
    let inputs = op.inputs();
    let shapes: Vec<Vec<i64>> = inputs.iter().map(|id| to.shape(*id).to_vec()).collect();
    let shapes: Vec<&[i64]> = shapes.iter().map(Vec::as_slice).collect();
    let Some((labels, rows)) = names(&shapes, "") else { return };
    let (dtype, all) = (to.dtype(inputs[0]), operand(&rows));
    let known = arguments(op);
    let given = known.into_iter().enumerate();
    let mut args: Vec<Arg> =
        given.map(|(at, (name, default))| op.arg(at, name).cloned().unwrap_or(default)).collect();
    args.push(Arg::Int(NONE));
    let labels = format!("{} -> {all}", labels.join(", "));
    let loss = to.op(&op.target, args, &labels, dtype, &shapes[0][..shapes[0].len() - 1]);
    let loss = widened(to, loss, wide(dtype), &all);
    let args = vec![Arg::Tensor(loss)];
    finish(to, 0, "aten.mean.default", args, &format!("{all} -> scalar"), wide(dtype), &[]);
}

fn local(view: View<'_>, rule: &Rule, part: &Part) -> LocalOp {
    plain(view, rule, part)
}

fn cost(call: &Call<'_>) -> Sketch {
    const OPERATIONS: u64 = 6;
    let kept = 2 * call.largest() * call.width();
    Sketch::new(call).flops(OPERATIONS * call.largest()).keeps_more(kept)
}
