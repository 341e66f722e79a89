//! Functions and modules that run as the Python they are, with a rule that somebody has given, or that was found.
//!
//! The rule of a module is that of the tensors it is given. Its parameters and buffers are whole in every part, so
//! their gradients are summed over all dims that are split.

use graph::{Arg, Op};

use super::common::{has_gradient, plain, set, size};
use super::{Family, Nature, View};
use crate::algebra::{DimId, Kind, Operand, Rule, Through, was_found};
use crate::cost::Sketch;
use crate::local::{LocalArg, LocalOp, Part};

const FUNCTION: &str = "shardwright.function.default";
const MODULE: &str = "shardwright.module.default";

pub(super) const FAMILY: Family = Family {
    name: "registered",
    targets: &[FUNCTION, MODULE],
    rule,
    local,
    rewriting: None,
    cost: Sketch::new,
    costs: "as its rule tells",
    nature: Nature { dear: true, ..Nature::PLAIN },
};

/// The name of the function or the path of the module that an operator calls.
pub fn name_of(op: &Op) -> Option<&str> {
    match op.args.first() {
        Some(Arg::Str(name)) if FAMILY.targets.contains(&op.target.as_str()) => Some(name),
        _ => None,
    }
}

/// Who vouches for the rule of such an operator.
pub fn origin(op: &Op) -> &'static str {
    let discovered = matches!(op.arg(Places::new(op).rule, "rule"), Some(Arg::Str(text)) if was_found(text));
    match (discovered, is_module(op)) {
        (true, _) => "found by trying",
        (false, true) => "stated",
        (false, false) => "registered",
    }
}

pub(crate) fn is_module(op: &Op) -> bool {
    op.target == MODULE
}

/// Where the arguments are that only these operators have.
pub(crate) struct Places {
    pub(crate) call: usize,
    pub(crate) rule: usize,
    pub(crate) dims: usize,
    pub(crate) sizes: usize,
}

impl Places {
    pub(crate) fn new(op: &Op) -> Self {
        match is_module(op) {
            true => Self { call: 4, rule: 8, dims: 9, sizes: 10 },
            false => Self { call: 2, rule: 3, dims: 4, sizes: 5 },
        }
    }
}

/// How many of an operator's inputs are parameters and buffers of its module.
pub(crate) fn num_held(op: &Op) -> usize {
    match op.args.get(2) {
        Some(Arg::List(held)) if is_module(op) => held.len(),
        _ => 0,
    }
}

fn rule(view: View<'_>) -> Option<String> {
    let Some(Arg::Str(text)) = view.op.arg(Places::new(view.op).rule, "rule") else { return None };
    let empty = |shape: &[i64]| shape.contains(&0);
    let inputs = view.input_shapes();
    let (held, given) = inputs.split_at(num_held(view.op));
    if text.is_empty() || given.iter().copied().chain(view.output_shapes().into_iter().flatten()).any(empty) {
        return None;
    }
    let text = with_held(&with_sizes(text, &sizes(view.op)), held);
    Some(if has_gradient(view) { without_choices(&text) } else { text })
}

/// With whole operands before those that the text names.
fn with_held(text: &str, held: &[&[i64]]) -> String {
    if held.is_empty() {
        return text.into();
    }
    let (body, clauses) = text.split_once(';').unwrap_or((text, ""));
    let (inputs, outputs) = body.split_once("->").unwrap_or((body, ""));
    let mut name = String::from("held");
    while text.contains(&name) {
        name.push('_');
    }
    let mut next = 0..;
    let mut dim = |size: &i64| match size {
        1 => "1".into(),
        _ => format!("{name}{}^", next.next().unwrap_or_default()),
    };
    let mut operand = |shape: &&[i64]| match shape.is_empty() {
        true => "scalar".into(),
        false => shape.iter().map(&mut dim).collect::<Vec<_>>().join(" "),
    };
    let mut operands: Vec<String> = held.iter().map(&mut operand).collect();
    operands.extend(Some(inputs.trim().to_owned()).filter(|inputs| !inputs.is_empty()));
    let clauses: String = clauses.split(';').map(|clause| shifted(clause.trim(), held.len())).collect();
    format!("{} -> {}{clauses}", operands.join(", "), outputs.trim())
}

/// A clause, with the positions that operands have behind so many others.
fn shifted(clause: &str, by: usize) -> String {
    let position = |word: &str| word.parse().map_or(word.to_owned(), |at: usize| (at + by).to_string());
    match clause.split_once(' ') {
        Some((word, places)) if Through::is_word(word) => {
            let places: Vec<String> = places.split_whitespace().map(position).collect();
            format!(" ; {word} {}", places.join(" "))
        }
        _ if clause.is_empty() => String::new(),
        _ => format!(" ; {clause}"),
    }
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
    let places = Places::new(op);
    list((places.dims, "dims")).iter().zip(list((places.sizes, "sizes"))).filter_map(pair).collect()
}

fn local(view: View<'_>, rule: &Rule, part: &Part) -> LocalOp {
    let mut local = plain(view, rule, part);
    let given = sizes(view.op);
    if !given.is_empty() {
        let sizes = given.iter().map(|(dim, _)| LocalArg::Int(size(rule, part, dim))).collect();
        set(&mut local, Places::new(view.op).sizes, "sizes", LocalArg::List(sizes));
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
