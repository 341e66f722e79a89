//! Dropout: masks are keyed by the region that a part has, so every dim maps. Tensors of random numbers
//! are drawn whole, wherever they are needed, by a key too.

use graph::{Arg, Op};

use super::common::{NOTHING, call, float, mark, operand, output, plain, terms, text};
use super::{Family, Nature, View};
use crate::algebra::Rule;
use crate::cost::{Call, Sketch};
use crate::local::{LocalArg, LocalOp, Part, ints};

pub(super) const FAMILY: Family = Family {
    name: "random",
    targets: &[
        "aten.dropout.default",
        "aten.native_dropout.default",
        "aten.rand.default",
        "aten.rand_like.default",
        "aten.randn.default",
        "aten.randn_like.default",
        "aten.bernoulli.p",
        "aten.exponential.default",
        "aten.randint.default",
        "aten.randint_like.default",
    ],
    rule,
    local,
    rewriting: None,
    cost,
    costs: "two operations for each element; dropout keeps its mask, a byte for each element",
    nature: Nature::PLAIN,
};

/// How the numbers of a tensor are distributed.
fn distribution(op: &Op) -> Option<&'static str> {
    match &op.target[..] {
        "aten.rand.default" | "aten.rand_like.default" => Some("uniform"),
        "aten.randn.default" | "aten.randn_like.default" => Some("normal"),
        "aten.bernoulli.p" => Some("bernoulli"),
        "aten.exponential.default" => Some("exponential"),
        "aten.randint.default" | "aten.randint_like.default" => Some("integers"),
        _ => None,
    }
}

fn rule(view: View<'_>) -> Option<String> {
    if distribution(view.op).is_some() {
        let names: Vec<String> = terms(output(view)?).iter().map(|name| mark(name, "^")).collect();
        let inputs = vec![NOTHING.to_string(); view.op.inputs().len()];
        return text(view, &inputs, &[operand(&names)], &[]);
    }
    let names = operand(&terms(output(view)?));
    let linear = if draws(view.op) { vec![] } else { vec![vec![0]] };
    let made = vec![names.clone(); view.op.outputs.len()];
    text(view, &[names], &made, &linear)
}

/// Whether it draws numbers, or is the identity.
fn draws(op: &Op) -> bool {
    let off = matches!(op.arg(2, "train"), Some(Arg::Bool(false)));
    !off && float(op, 1, "p", 0.5) > 0.0
}

fn local(view: View<'_>, rule: &Rule, part: &Part) -> LocalOp {
    if let Some(name) = distribution(view.op) {
        return numbers(view, part, name);
    }
    if !draws(view.op) {
        return plain(view, rule, part);
    }
    let native = view.op.target == "aten.native_dropout.default";
    let args = vec![
        LocalArg::Input(0),
        LocalArg::Float(float(view.op, 1, "p", 0.5)),
        LocalArg::Int(i64::from(view.id.0)),
        LocalArg::Int(part.slot),
    ];
    call(if native { "sw.native_dropout" } else { "sw.dropout" }, args)
}

fn numbers(view: View<'_>, part: &Part, distribution: &str) -> LocalOp {
    let made = view.op.outputs.iter().flatten().next();
    // The probability, the rate, or what all integers are less than.
    let p = match &view.op.target[..] {
        "aten.bernoulli.p" => float(view.op, 1, "p", 0.5),
        "aten.exponential.default" => float(view.op, 1, "lambd", 1.0),
        "aten.randint.default" => float(view.op, 0, "high", 1.0),
        "aten.randint_like.default" => float(view.op, 1, "high", 1.0),
        _ => 0.0,
    };
    let args = vec![
        LocalArg::Str(distribution.into()),
        ints(&part.outputs[0]),
        LocalArg::Float(p),
        made.map_or(LocalArg::None, |id| LocalArg::Dtype(view.graph.tensor(*id).dtype)),
        LocalArg::Int(i64::from(view.id.0)),
        LocalArg::Int(part.slot),
    ];
    call("sw.draw", args)
}

/// Dropout keeps its mask, a byte for each element.
fn cost(call: &Call<'_>) -> Sketch {
    let sketch = Sketch::new(call);
    match call.name() {
        "dropout" if call.op.target.starts_with("aten") => sketch.view(0).view_back(),
        "native_dropout" if call.op.target.starts_with("aten") => sketch.flops(0),
        name if name.contains("dropout") => {
            let scaled = call.made() * call.width();
            let sketch = sketch.flops(2 * call.made()).keeps("*:").meanwhile(scaled, scaled);
            sketch.keeps_result(call, 1, call.made())
        }
        _ => sketch.flops(0),
    }
}
