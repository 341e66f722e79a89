//! Functions that run as the Python they are, with a rule that whoever wrote them has registered.

use graph::{Arg, Op};

use super::common::{has_gradient, plain, set, size};
use super::{Family, View};
use crate::algebra::{DimId, Kind, Operand, Rule};
use crate::cost::Sketch;
use crate::local::{LocalArg, LocalOp, Part};

pub(super) const FAMILY: Family = Family {
    name: "registered",
    targets: &["shardwright.function.default"],
    rule,
    local,
    rewriting: None,
    cost: Sketch::of,
    costs: "as its rule tells",
};

/// The name of the function that an operator calls.
pub fn name_of(op: &Op) -> Option<&str> {
    match op.args.first() {
        Some(Arg::Str(name)) if FAMILY.targets.contains(&op.target.as_str()) => Some(name),
        _ => None,
    }
}

const RULE: (usize, &str) = (3, "rule");
const DIMS: (usize, &str) = (4, "dims");
const SIZES: (usize, &str) = (5, "sizes");

fn rule(view: View<'_>) -> Option<String> {
    let Some(Arg::Str(text)) = view.op.arg(RULE.0, RULE.1) else { return None };
    let empty = |shape: &[i64]| shape.contains(&0);
    let shapes = view.input_shapes().into_iter().chain(view.output_shapes().into_iter().flatten());
    if text.is_empty() || shapes.into_iter().any(empty) {
        return None;
    }
    let text = with_sizes(text, &sizes(view.op));
    Some(if has_gradient(view) { without_choices(&text) } else { text })
}

/// A maximum over parts has no gradient that parts could compute: such a dim stays whole.
fn without_choices(text: &str) -> String {
    let whole = |side: &str| side.replace(['>', '<', '|', '&'], "^");
    text.split("->").map(whole).collect::<Vec<_>>().join("->")
}

/// A rule's text, and the sizes that a call is given as arguments.
pub fn with_sizes(text: &str, sizes: &[(String, i64)]) -> String {
    let given: String = sizes.iter().map(|(dim, size)| format!(" {dim}={size}")).collect();
    if given.is_empty() { text.into() } else { format!("{text} ; size{given}") }
}

/// The dims whose sizes are arguments, with these.
fn sizes(op: &Op) -> Vec<(String, i64)> {
    let list = |at: (usize, &str)| match op.arg(at.0, at.1) {
        Some(Arg::List(items)) => &items[..],
        _ => &[],
    };
    let pair = |(dim, size): (&'_ Arg, &'_ Arg)| match (dim, size) {
        (Arg::Str(dim), Arg::Int(size)) => Some((dim.clone(), *size)),
        _ => None,
    };
    list(DIMS).iter().zip(list(SIZES)).filter_map(pair).collect()
}

fn local(view: View<'_>, rule: &Rule, part: &Part) -> LocalOp {
    let mut local = plain(view, rule, part);
    let given = sizes(view.op);
    if !given.is_empty() {
        let sizes = given.iter().map(|(dim, _)| LocalArg::Int(size(rule, part, dim))).collect();
        set(&mut local, SIZES.0, SIZES.1, LocalArg::List(sizes));
    }
    local
}

/// A call of the same function on smaller tensors: a rule that lets a dim be split says that the function also
/// works where the dim has fewer elements.
pub struct Smaller {
    /// In the place of the sizes that are arguments.
    pub sizes: Vec<i64>,
    pub inputs: Vec<Vec<i64>>,
    pub outputs: Vec<Vec<i64>>,
}

/// Of each dim that may be split at most so many elements are left.
pub fn smaller(view: View<'_>, rule: &Rule, most: i64) -> Option<Smaller> {
    name_of(view.op)?;
    let left = |id: DimId| match (rule.dim(id).kind, rule.dim(id).size) {
        (Kind::Map | Kind::Reduce(_), size) => size.min(most),
        (_, size) => size,
    };
    let shape = |(operand, whole): (&Operand, &[i64])| match operand.absent {
        true => whole.to_vec(),
        false => operand.dims.iter().map(|product| product.iter().map(|dim| left(*dim)).product()).collect(),
    };
    let outputs = view.output_shapes().into_iter().flatten();
    Some(Smaller {
        sizes: sizes(view.op).iter().filter_map(|(dim, _)| rule.find(dim)).map(left).collect(),
        inputs: rule.inputs.iter().zip(view.input_shapes()).map(shape).collect(),
        outputs: rule.outputs.iter().filter(|operand| !operand.absent).zip(outputs).map(shape).collect(),
    })
}
