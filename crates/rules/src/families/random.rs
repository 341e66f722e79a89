//! Dropout: masks are keyed by the region that a part has, so every dim maps.

use graph::{Arg, Op};

use super::common::{call, float, light, operand, output, plain, terms, text};
use super::{Cost, Family, View};
use crate::algebra::Rule;
use crate::local::{LocalArg, LocalOp, Part};

pub(super) const FAMILY: Family = Family {
    name: "random",
    targets: &["aten.dropout.default", "aten.native_dropout.default"],
    rule,
    local,
    expand: None,
    cost,
};

fn rule(view: View<'_>) -> Option<String> {
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

fn cost(view: View<'_>) -> Cost {
    let cost = light(view, 2.0);
    // A byte per element for the mask.
    Cost { saved: output(view).map_or(0.0, super::common::numel), ..cost }
}
