//! What the families share: writing terms, reading arguments, changing them for a part.

use graph::{Arg, Dtype, Op, TensorId};

use super::View;
use crate::algebra::Rule;
use crate::local::{LocalArg, LocalOp, Part, unchanged};
use crate::rewriting::Builder;

/// One term per dim of a tensor.
pub(super) type Terms = Vec<String>;

/// An operand that does not matter.
pub(super) const NOTHING: &str = "-";

/// `a`, `b`, ... for the dims of a tensor.
pub(super) fn letter(index: usize) -> String {
    let letter = char::from(b'a' + u8::try_from(index % 26).expect("less than 26"));
    match index / 26 {
        0 => letter.to_string(),
        round => format!("{letter}{round}"),
    }
}

/// The term of a dim: `1` where it has one element, and whole where it has none.
pub(super) fn term(size: i64, name: &str) -> String {
    match size {
        0 => format!("{name}^"),
        1 => "1".into(),
        _ => name.into(),
    }
}

pub(super) fn terms(shape: &[i64]) -> Terms {
    shape.iter().enumerate().map(|(i, &size)| term(size, &letter(i))).collect()
}

/// Terms of the first dims of an output: those of a batch.
pub(super) fn batch(rank: usize, output: &[i64]) -> Terms {
    const NAMES: [&str; 6] = ["b", "s", "t", "u", "x", "y"];
    let name = |dim: usize| NAMES.get(dim).map_or_else(|| format!("b{dim}"), ToString::to_string);
    output.iter().take(rank).enumerate().map(|(dim, &size)| term(size, &name(dim))).collect()
}

/// The terms of an operand that must be whole, in names of its own.
pub(super) fn whole(shape: &[i64], stem: &str) -> Terms {
    let name = |(i, &size): (usize, &i64)| mark(&term(size, &format!("{stem}{i}")), "^");
    shape.iter().enumerate().map(name).collect()
}

/// A term with a mark. `1` and whole dims stay what they are.
pub(super) fn mark(term: &str, mark: &str) -> String {
    if term == "1" || term.ends_with('^') { term.into() } else { format!("{term}{mark}") }
}

/// A dim that is a product, outer to inner.
pub(super) fn product(terms: &[String]) -> String {
    let inner: Vec<&str> = terms.iter().map(String::as_str).filter(|t| *t != "1").collect();
    match inner[..] {
        [] => "1".into(),
        [one] => one.into(),
        _ => format!("({})", inner.join(" ")),
    }
}

/// The terms of a tensor that is broadcast to `output`.
pub(super) fn broadcast(shape: &[i64], output: &[i64], names: &[String]) -> Terms {
    let skip = output.len().saturating_sub(shape.len());
    let paired = shape.iter().zip(output.iter().zip(names).skip(skip));
    paired.map(|(&size, (_, name))| if size == 1 { "1".into() } else { name.clone() }).collect()
}

/// Terms of a tensor and of what is made of it with the same number of dims. Dims that `kept`
/// refuses, and those whose size changes, stay whole.
pub(super) fn along(input: &[i64], output: &[i64], kept: impl Fn(usize) -> bool) -> (Terms, Terms) {
    let (mut read, mut written) = (terms(input), terms(output));
    for (i, (&from, &to)) in input.iter().zip(output).enumerate() {
        if from != to {
            read[i] = mark(&read[i], "^");
            written[i] = mark(&term(to, &format!("{}_out", letter(i))), "^");
        } else if !kept(i) {
            read[i] = mark(&read[i], "^");
            written[i] = mark(&written[i], "^");
        }
    }
    (read, written)
}

pub(super) fn pair(a: TensorId, b: TensorId) -> Vec<Arg> {
    vec![Arg::Tensor(a), Arg::Tensor(b)]
}

pub(super) fn operand(terms: &[String]) -> String {
    if terms.is_empty() { "scalar".into() } else { terms.join(" ") }
}

/// The text of a rule; outputs that nothing reads are left out. `None` if nothing is read at all.
pub(super) fn text(
    view: View<'_>,
    inputs: &[String],
    outputs: &[String],
    linear: &[Vec<usize>],
) -> Option<String> {
    let present = view.op.outputs.iter().map(Option::is_some);
    let written: Vec<&str> = outputs
        .iter()
        .zip(present)
        .map(|(text, present)| if present { text.as_str() } else { NOTHING })
        .collect();
    if written.iter().all(|text| *text == NOTHING) {
        return None;
    }
    let mut text = format!("{} -> {}", inputs.join(", "), written.join(", "));
    for set in linear {
        let set: Vec<String> = set.iter().map(ToString::to_string).collect();
        text.push_str(&format!(" ; linear {}", set.join(" ")));
    }
    Some(text)
}

/// The same for one operand and one output, linear or not.
pub(super) fn unary(view: View<'_>, input: &[String], output: &[String], linear: bool) -> Option<String> {
    let outputs = vec![operand(output); view.op.outputs.len()];
    text(view, &[operand(input)], &outputs, &if linear { vec![vec![0]] } else { vec![] })
}

/// Whether a gradient flows to what it gives.
pub(super) fn has_gradient(view: View<'_>) -> bool {
    let float = |id: &TensorId| view.graph.tensor(*id).dtype.is_float();
    if view.op.no_grad || !view.op.outputs.iter().flatten().any(float) {
        return false;
    }
    let needed = view.graph.needs_grad();
    view.op.outputs.iter().flatten().any(|id| needed[id.index()])
}

// What losses call their reductions.

pub(super) const NONE: i64 = 0;
pub(super) const MEAN: i64 = 1;

// Arguments of an operator: by position, or by the keyword of that name.

pub(super) fn int(op: &Op, position: usize, name: &str, default: i64) -> i64 {
    match op.arg(position, name) {
        Some(Arg::Int(value)) => *value,
        _ => default,
    }
}

pub(super) fn float(op: &Op, position: usize, name: &str, default: f64) -> f64 {
    match op.arg(position, name) {
        Some(Arg::Float(value)) => *value,
        Some(Arg::Int(value)) => *value as f64,
        _ => default,
    }
}

pub(super) fn flag(op: &Op, position: usize, name: &str, default: bool) -> bool {
    match op.arg(position, name) {
        Some(Arg::Bool(value)) => *value,
        _ => default,
    }
}

/// A list of integers, or one; `None` if it is absent.
pub(super) fn ints(op: &Op, position: usize, name: &str) -> Option<Vec<i64>> {
    match op.arg(position, name)? {
        Arg::Int(value) => Some(vec![*value]),
        Arg::List(items) => {
            items.iter().map(|item| if let Arg::Int(value) = item { Some(*value) } else { None }).collect()
        }
        _ => None,
    }
}

pub(super) fn tensor(op: &Op, position: usize, name: &str) -> Option<TensorId> {
    match op.arg(position, name)? {
        Arg::Tensor(id) => Some(*id),
        _ => None,
    }
}

/// The shape of a tensor argument.
pub(super) fn shape<'g>(view: View<'g>, position: usize, name: &str) -> Option<&'g [i64]> {
    tensor(view.op, position, name).map(|id| &view.graph.tensor(id).shape[..])
}

/// The shape of the first output that something reads.
pub(super) fn output<'g>(view: View<'g>) -> Option<&'g [i64]> {
    view.output_shapes().into_iter().flatten().next()
}

/// A dim that may be counted from the end.
pub(super) fn wrap(dim: i64, rank: usize) -> Option<usize> {
    let rank = i64::try_from(rank.max(1)).ok()?;
    let dim = if dim < 0 { dim + rank } else { dim };
    (0..rank).contains(&dim).then(|| usize::try_from(dim).expect("not negative"))
}

/// The dims that an argument names; all of them if it is absent or empty.
pub(super) fn dims(op: &Op, position: usize, name: &str, rank: usize) -> Option<Vec<usize>> {
    match ints(op, position, name) {
        Some(list) if !list.is_empty() && rank > 0 => list.into_iter().map(|dim| wrap(dim, rank)).collect(),
        _ => Some((0..rank).collect()),
    }
}

// Sub-operators.

/// The operator as it is, without the operands that another part is given.
pub(super) fn plain(view: View<'_>, rule: &Rule, part: &Part) -> LocalOp {
    let mut local = unchanged(view.op);
    if !part.first {
        let positions = local.args.iter_mut();
        for arg in positions.chain(local.kwargs.iter_mut().map(|(_, arg)| arg)) {
            withhold(rule, arg);
        }
    }
    local
}

fn withhold(rule: &Rule, arg: &mut LocalArg) {
    match arg {
        LocalArg::Input(i) if rule.inputs[*i].once => *arg = LocalArg::None,
        LocalArg::List(items) => items.iter_mut().for_each(|item| withhold(rule, item)),
        _ => {}
    }
}

/// A sub-operator with positional arguments only.
pub(super) fn call(target: &str, args: Vec<LocalArg>) -> LocalOp {
    LocalOp { target: target.into(), args, kwargs: vec![] }
}

/// Changes an argument, wherever it is given.
pub(super) fn set(local: &mut LocalOp, position: usize, name: &str, value: LocalArg) {
    if let Some(arg) = local.args.get_mut(position) {
        *arg = value;
    } else if let Some((_, arg)) = local.kwargs.iter_mut().find(|(key, _)| key == name) {
        *arg = value;
    } else {
        local.kwargs.push((name.into(), value));
    }
}

/// The argument as it is, or `None` if it is absent.
pub(super) fn get(local: &LocalOp, position: usize, name: &str) -> LocalArg {
    let keyword = || local.kwargs.iter().find(|(key, _)| key == name).map(|(_, arg)| arg);
    local.args.get(position).or_else(keyword).cloned().unwrap_or(LocalArg::None)
}

/// Whether this part has less than all of a dim.
pub(super) fn is_split(rule: &Rule, part: &Part, name: &str) -> bool {
    rule.find(name).is_some_and(|dim| part.size[dim.index()] < rule.dim(dim).size)
}

/// Where this part begins along a dim that is marked `~`; one that may not be split begins at its begin.
pub(super) fn start(rule: &Rule, part: &Part, name: &str) -> i64 {
    let dim = rule.find(name).filter(|dim| rule.dim(*dim).contiguous);
    dim.map_or(0, |dim| part.start[dim.index()].expect("a part of a `~` dim is an interval"))
}

/// How many elements this part has along a dim; 1 for a dim that the rule does not name.
pub(super) fn size(rule: &Rule, part: &Part, name: &str) -> i64 {
    rule.find(name).map_or(1, |dim| part.size[dim.index()])
}

// Rewriting.

/// A list of integers as an argument of a piece.
pub(super) fn int_list(values: &[i64]) -> Arg {
    Arg::List(values.iter().map(|value| Arg::Int(*value)).collect())
}

/// The type in which sums of this type are computed.
pub(super) fn wide(dtype: Dtype) -> Dtype {
    if matches!(dtype, Dtype::F16 | Dtype::Bf16) { Dtype::F32 } else { dtype }
}

/// Appends the last step of a rewriting, whose value is in type `work` until here.
pub(super) fn finish(
    to: &mut Builder<'_>,
    index: usize,
    target: &str,
    args: Vec<Arg>,
    labels: &str,
    work: Dtype,
    shape: &[i64],
) {
    let Some(dtype) = to.result_dtype(index) else { return };
    if dtype == work {
        return to.result(index, target, args, labels);
    }
    let value = to.op(target, args, labels, work, shape);
    let made = labels.rsplit("-> ").next().unwrap_or_default();
    let args = vec![Arg::Tensor(value), Arg::Dtype(dtype)];
    to.result(index, "aten.to.dtype", args, &format!("{made} -> {made}"));
}

/// `x` in type `work`.
pub(super) fn widened(to: &mut Builder<'_>, x: TensorId, work: Dtype, terms: &str) -> TensorId {
    if to.dtype(x) == work {
        return x;
    }
    let shape = to.shape(x).to_vec();
    let args = vec![Arg::Tensor(x), Arg::Dtype(work)];
    to.op("aten.to.dtype", args, &format!("{terms} -> {terms}"), work, &shape)
}
