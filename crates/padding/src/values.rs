//! What an operator that treats each element by itself makes of what stands there.
//!
//! A result is finite only where the derivatives with respect to all operands are, too.

use graph::{Arg, Graph, Op};

use crate::content::{Bound, Content, Kin};
use Content::{Low, Mixed, Wild, Within};

/// The name of an operator without its overload.
pub(crate) fn name(op: &Op) -> &str {
    op.target.strip_prefix("aten.").and_then(|rest| rest.split('.').next()).unwrap_or_default()
}

/// Of such an operator, `given` standing in its tensors, in order; nothing where it is none that is known.
pub(crate) fn content_of(graph: &Graph, op: &Op, given: &[Content]) -> Option<Content> {
    let all = Operands::new(op, given);
    let made = one(graph, op, &all).or_else(|| two(op, &all)).or_else(|| several(op, &all))?;
    // Of one tensor it is what it is of the same numbers outside of tails.
    let kin = if given.len() == 1 { given[0].kin() } else { made.kin() };
    Some(made.of_kin(kin.min(Kin::Chosen)))
}

/// The arguments, those that are numbers as what they are.
struct Operands(Vec<Option<Content>>);

impl Operands {
    fn new(op: &Op, given: &[Content]) -> Self {
        let mut tensors = given.iter().copied();
        let number = |arg: &Arg| match arg {
            Arg::Tensor(_) => tensors.next(),
            Arg::Int(value) => Some(Content::number(*value as f64)),
            Arg::Bool(value) => Some(Content::number(f64::from(*value))),
            Arg::Float(value) if value.is_nan() => Some(Wild),
            Arg::Float(value) if *value == f64::NEG_INFINITY => Some(Low { infinite: true }),
            Arg::Float(value) if value.is_infinite() => Some(Wild),
            Arg::Float(value) => Some(Content::number(*value)),
            _ => None,
        };
        Self(op.args.iter().map(number).collect())
    }

    fn at(&self, position: usize) -> Option<Content> {
        self.0.get(position).copied().flatten()
    }
}

const COPIES: [&str; 10] = [
    "clone",
    "contiguous",
    "detach",
    "detach_copy",
    "alias",
    "lift_fresh_copy",
    "_to_copy",
    "to",
    "type_as",
    "copy",
];

/// Finite with finite derivatives wherever what they are given is.
const SMOOTH: [&str; 30] = [
    "relu",
    "relu6",
    "gelu",
    "silu",
    "mish",
    "elu",
    "celu",
    "selu",
    "leaky_relu",
    "hardtanh",
    "hardswish",
    "hardsigmoid",
    "softplus",
    "log_sigmoid",
    "softshrink",
    "hardshrink",
    "threshold",
    "erf",
    "erfc",
    "sin",
    "cos",
    "atan",
    "asinh",
    "sinh",
    "cosh",
    "expm1",
    "floor",
    "ceil",
    "round",
    "trunc",
];

fn one(graph: &Graph, op: &Op, all: &Operands) -> Option<Content> {
    let x = all.at(0)?;
    let finite = |lo: f64, hi: f64| if x.is_finite() { Content::within(lo, hi) } else { Wild };
    Some(match name(op) {
        "_to_copy" | "to" if narrower(graph, op) && matches!(x, Low { .. }) => Low { infinite: true },
        // The second operand is what is copied.
        "copy" => all.at(1)?,
        name if COPIES.contains(&name) => x,
        "zero" | "zeros_like" => Content::number(0.0),
        "ones_like" => Content::number(1.0),
        "full_like" | "fill" => all.at(1)?,
        "neg" => negated(x),
        "abs" | "square" => finite(0.0, f64::INFINITY),
        "exp" if matches!(x, Low { .. }) => Content::number(0.0),
        "exp" | "exp2" => finite(0.0, f64::INFINITY),
        "sigmoid" => finite(0.0, 1.0),
        "tanh" | "sign" if !x.is_zero() => finite(-1.0, 1.0),
        "relu" | "relu6" if x.is_finite() => bounds(x, |at| at.max(0.0)),
        "silu" | "gelu" | "erf" | "sin" | "tanh" | "sign" | "atan" | "asinh" | "sinh" if x.is_zero() => x,
        "logical_not" => of_truth(truth(x).map(|is| !is)),
        "bitwise_not" if of_bools(graph, op) => of_truth(truth(x).map(|is| !is)),
        "rsqrt" => positive(x, |at| at.sqrt().recip(), true),
        "sqrt" => positive(x, f64::sqrt, false),
        "log" => positive(x, f64::ln, false),
        "log1p" => positive(plus(x, Content::number(1.0)), f64::ln, false),
        "reciprocal" => quotient(Content::number(1.0), x),
        "clamp" | "clamp_min" | "clamp_max" => clamped(op, x)?,
        "isnan" | "isinf" if x.is_finite() => Content::number(0.0),
        "isfinite" if x.is_finite() => Content::number(1.0),
        name if SMOOTH.contains(&name) => finite(f64::NEG_INFINITY, f64::INFINITY),
        _ => return None,
    })
}

fn two(op: &Op, all: &Operands) -> Option<Content> {
    let (x, y) = (all.at(0)?, all.at(1)?);
    // A factor of what is added.
    let scaled = |y: Content| match op.kwarg("alpha") {
        None => Some(y),
        Some(Arg::Int(by)) => Some(times(y, Content::number(*by as f64))),
        Some(Arg::Float(by)) => Some(times(y, Content::number(*by))),
        Some(_) => None,
    };
    Some(match name(op) {
        "add" => plus(x, scaled(y)?),
        "sub" => minus(x, scaled(y)?),
        "rsub" => minus(y, scaled(x)?),
        "mul" => times(x, y),
        "div" if !matches!(op.kwarg("rounding_mode"), None | Some(Arg::None)) => whole_quotient(x, y),
        "floor_divide" => whole_quotient(x, y),
        "div" => quotient(x, y),
        "pow" => power(x, y.constant()?),
        "eq" => of_truth(equal(x, y)),
        "ne" => of_truth(equal(x, y).map(|is| !is)),
        "lt" => of_truth(less(x, y)),
        "ge" => of_truth(less(x, y).map(|is| !is)),
        "gt" => of_truth(less(y, x)),
        "le" => of_truth(less(y, x).map(|is| !is)),
        "logical_and" => and(x, y),
        "logical_or" => or(x, y),
        "__and__" | "bitwise_and" => bits(x, y),
        "__or__" | "bitwise_or" if is_bool(x) && is_bool(y) => or(x, y),
        "__xor__" | "bitwise_xor" | "logical_xor" if is_bool(x) && is_bool(y) => {
            of_truth(truth(x).zip(truth(y)).map(|(a, b)| a != b))
        }
        "complex" | "polar" if x.is_finite() && y.is_finite() => Content::FINITE,
        "maximum" => pair(x, y, f64::max),
        "minimum" => pair(x, y, f64::min),
        "max" if op.target.ends_with("other") => pair(x, y, f64::max),
        "min" if op.target.ends_with("other") => pair(x, y, f64::min),
        _ => return None,
    })
}

fn several(op: &Op, all: &Operands) -> Option<Content> {
    Some(match name(op) {
        "where" => chosen(all.at(0)?, all.at(1)?, all.at(2)?),
        "masked_fill" => chosen(all.at(1)?, all.at(2)?, all.at(0)?),
        "addcmul" if op.kwarg("value").is_none() => plus(all.at(0)?, times(all.at(1)?, all.at(2)?)),
        _ => return None,
    })
}

fn chosen(on: Content, if_so: Content, if_not: Content) -> Content {
    match truth(on) {
        Some(true) => if_so,
        Some(false) => if_not,
        // Which are low, or which constant it is, is as it is decided.
        None if decides(if_so, if_not) || decides(if_not, if_so) => if_so.or(if_not).of_kin(on.kin()),
        None => if_so.or(if_not),
    }
}

fn decides(one: Content, other: Content) -> bool {
    let both = one.constant().is_some() && other.constant().is_some();
    both || (matches!(one, Low { .. }) && matches!(other, Within { .. }))
}

fn narrower(graph: &Graph, op: &Op) -> bool {
    let bytes = |id: &graph::TensorId| graph.tensor(*id).dtype.bytes();
    op.outputs.iter().flatten().map(bytes).min() < op.inputs().first().map(bytes)
}

fn of_bools(graph: &Graph, op: &Op) -> bool {
    op.inputs().iter().all(|id| graph.tensor(*id).dtype == graph::Dtype::Bool)
}

fn is_bool(x: Content) -> bool {
    x.range().is_some_and(|(lo, hi)| lo >= 0.0 && hi <= 1.0)
}

fn truth(x: Content) -> Option<bool> {
    let (lo, hi) = x.range()?;
    if lo > 0.0 || hi < 0.0 { Some(true) } else { (lo == 0.0 && hi == 0.0).then_some(false) }
}

/// What decides nothing leaves the other as it is.
fn and(x: Content, y: Content) -> Content {
    match (truth(x), truth(y)) {
        (Some(false), _) | (_, Some(false)) => of_truth(Some(false)),
        (Some(true), _) => y.of_type(graph::Dtype::Bool),
        (_, Some(true)) => x.of_type(graph::Dtype::Bool),
        _ => of_truth(None),
    }
}

fn or(x: Content, y: Content) -> Content {
    match (truth(x), truth(y)) {
        (Some(true), _) | (_, Some(true)) => of_truth(Some(true)),
        (Some(false), _) => y.of_type(graph::Dtype::Bool),
        (_, Some(false)) => x.of_type(graph::Dtype::Bool),
        _ => of_truth(None),
    }
}

fn of_truth(known: Option<bool>) -> Content {
    known.map_or(Content::within(0.0, 1.0), |is| Content::number(f64::from(is)))
}

/// Bits of bools; of other numbers those of zero are known.
fn bits(x: Content, y: Content) -> Content {
    match is_bool(x) && is_bool(y) {
        true => and(x, y),
        false if x.is_zero() || y.is_zero() => Content::number(0.0),
        false => Content::FINITE,
    }
}

fn equal(x: Content, y: Content) -> Option<bool> {
    match (x, y) {
        (Within { lo: a, hi: b, .. }, Within { lo: c, hi: d, .. }) => {
            if b.below(c) || d.below(a) {
                return Some(false);
            }
            // Numbers that are not whole are rounded to the type of the one or the other.
            let whole = x.constant().filter(|value| value.fract() == 0.0);
            (whole.is_some() && whole == y.constant()).then_some(true)
        }
        _ => None,
    }
}

fn less(x: Content, y: Content) -> Option<bool> {
    let (Within { lo: a, hi: b, .. }, Within { lo: c, hi: d, .. }) = (x, y) else { return None };
    if b.below(c) {
        return Some(true);
    }
    let same = a == d && a.plus.fract() == 0.0;
    (d.below(a) || same).then_some(false)
}

/// The sum of two bounds; what is added to a length by one keeps it.
fn sum(a: Bound, b: Bound, resolve: impl Fn(Bound) -> f64) -> Bound {
    match (a.length, b.length) {
        (_, None) => Bound { plus: a.plus + b.plus, ..a },
        (None, _) => Bound { plus: a.plus + b.plus, ..b },
        _ => Bound::number(resolve(a) + resolve(b)),
    }
}

fn plus(x: Content, y: Content) -> Content {
    match (x, y) {
        (Wild, _) | (_, Wild) => Wild,
        (Low { infinite }, other) | (other, Low { infinite }) => {
            Low { infinite: infinite || other.may_be_infinite() }
        }
        (Mixed { .. }, Mixed { .. }) => {
            Mixed { infinite: x.may_be_infinite() || y.may_be_infinite(), kin: Kin::Other }
        }
        (Mixed { infinite, kin }, other) | (other, Mixed { infinite, kin }) => {
            Mixed { infinite: infinite || other.may_be_infinite(), kin }
        }
        (Within { lo: a, hi: b, .. }, Within { lo: c, hi: d, .. }) => {
            // A sum of what is that low and of any numbers is low.
            let open = |content: Content| content.range().is_some_and(|(_, hi)| hi == f64::INFINITY);
            if (x.is_low() && open(y)) || (y.is_low() && open(x)) {
                return Low { infinite: false };
            }
            let (lo, hi) = (sum(a, c, Bound::least), sum(b, d, Bound::most));
            let (lo, hi) = (known(lo, f64::NEG_INFINITY), known(hi, f64::INFINITY));
            Within { lo, hi, kin: Kin::Other }
        }
    }
}

fn minus(x: Content, y: Content) -> Content {
    let (Within { lo: a, hi: b, .. }, Within { lo: c, hi: d, .. }) = (x, y) else {
        return plus(x, negated(y));
    };
    let less =
        |a: Bound, b: Bound, left: fn(Bound) -> f64, right: fn(Bound) -> f64| match (a.length, b.length) {
            (one, other) if one == other => Bound::number(a.plus - b.plus),
            (_, None) => Bound { plus: a.plus - b.plus, ..a },
            _ => Bound::number(left(a) - right(b)),
        };
    let bounds = (less(a, d, Bound::least, Bound::most), less(b, c, Bound::most, Bound::least));
    // Of what is low only a sum says so.
    if x.is_low() || negated(y).is_low() {
        return plus(x, negated(y));
    }
    Within { lo: known(bounds.0, f64::NEG_INFINITY), hi: known(bounds.1, f64::INFINITY), kin: Kin::Other }
}

/// A bound that is a number, or none.
fn known(bound: Bound, none: f64) -> Bound {
    if bound.plus.is_finite() { bound } else { Bound::number(none) }
}

fn negated(x: Content) -> Content {
    match x.range() {
        Some((lo, hi)) => Content::within(-hi, -lo),
        None => Wild,
    }
}

/// Each bound by a function that rises.
fn bounds(x: Content, by: impl Fn(f64) -> f64) -> Content {
    x.range().map_or(Wild, |(lo, hi)| Content::within(by(lo), by(hi)))
}

pub(crate) fn times(x: Content, y: Content) -> Content {
    let (Some((a, b)), Some((c, d))) = (x.range(), y.range()) else { return Wild };
    // All of them are finite: zero times a bound that none reaches is zero.
    let product = |p: f64, q: f64| if p == 0.0 || q == 0.0 { 0.0 } else { p * q };
    let corners = [product(a, c), product(a, d), product(b, c), product(b, d)];
    let lo = corners.iter().copied().fold(f64::INFINITY, f64::min);
    Content::within(lo, corners.iter().copied().fold(f64::NEG_INFINITY, f64::max))
}

fn quotient(x: Content, y: Content) -> Content {
    let (Some(_), Some((c, d))) = (x.range(), y.range()) else { return Wild };
    // What is not of a tail divides what is not, too.
    match y {
        _ if y.kin() == Kin::Outside => {
            if x.is_zero() {
                x
            } else {
                Content::FINITE
            }
        }
        _ if c > 0.0 || d < 0.0 => {
            times(x, Content::within(d.recip().min(c.recip()), c.recip().max(d.recip())))
        }
        _ => Wild,
    }
}

/// No gradient flows through it, and numbers that are no floats are divided by zero nowhere.
fn whole_quotient(x: Content, y: Content) -> Content {
    match quotient(x, y) {
        Wild => Wild,
        _ => Content::FINITE,
    }
}

/// Of what is at least some number above zero.
fn positive(x: Content, function: impl Fn(f64) -> f64, falls: bool) -> Content {
    match x.range() {
        Some((lo, hi)) if lo > 0.0 && falls => {
            Content::within(if hi.is_finite() { function(hi) } else { 0.0 }, function(lo))
        }
        Some((lo, hi)) if lo > 0.0 => Content::within(function(lo), function(hi)),
        _ => Wild,
    }
}

fn power(x: Content, exponent: f64) -> Content {
    let Some((lo, _)) = x.range() else { return Wild };
    let (whole, even) = (exponent.fract() == 0.0, exponent % 2.0 == 0.0);
    if exponent >= 1.0 && whole {
        return if x.is_zero() {
            x
        } else {
            Content::within(if even || lo >= 0.0 { 0.0 } else { f64::NEG_INFINITY }, f64::INFINITY)
        };
    }
    match lo > 0.0 || (exponent >= 1.0 && lo >= 0.0) {
        true => Content::within(0.0, f64::INFINITY),
        false => Wild,
    }
}

fn clamped(op: &Op, x: Content) -> Option<Content> {
    let number = |arg: Option<&Arg>| match arg {
        Some(Arg::Int(value)) => Some(*value as f64),
        Some(Arg::Float(value)) => Some(*value),
        _ => None,
    };
    let is_top = name(op) == "clamp_max";
    let (low, top) = match is_top {
        true => (None, op.arg(1, "max")),
        false => (op.arg(1, "min"), op.arg(2, "max")),
    };
    let known = |arg: Option<&Arg>| matches!(arg, None | Some(Arg::None)) || number(arg).is_some();
    let (low, top) = (Some((low, top)).filter(|(low, top)| known(*low) && known(*top)))?;
    let (low, top) = (number(low).unwrap_or(f64::NEG_INFINITY), number(top).unwrap_or(f64::INFINITY));
    Some(bounds(x, |at| at.max(low).min(top)))
}

fn pair(x: Content, y: Content, function: impl Fn(f64, f64) -> f64) -> Content {
    let (Some((a, b)), Some((c, d))) = (x.range(), y.range()) else { return Wild };
    Content::within(function(a, c), function(b, d))
}
