//! Filling a template with arguments, and taking the arguments out again.

use std::borrow::Cow;

use super::{Applied, TemplateRow};
use crate::python::{Call, Expr, Place};

/// What the places of a template stand for.
struct Taken<'a> {
    places: Vec<(&'static str, Expr<'a>)>,
    rest: Vec<Expr<'a>>,
    named: Vec<(&'a str, Expr<'a>)>,
}

impl<'a> Taken<'a> {
    fn new() -> Self {
        Self { places: Vec::with_capacity(6), rest: vec![], named: vec![] }
    }

    fn get(&self, key: &str) -> Option<&Expr<'a>> {
        self.places.iter().find(|(name, _)| *name == key).map(|(_, expr)| expr)
    }

    fn put(&mut self, place: Place<'static>, expr: Expr<'a>) -> bool {
        let fits = is_kind(place.kind, &expr) && self.get(place.key).is_none();
        self.places.push((place.key, expr));
        fits
    }
}

fn is_kind(kind: char, expr: &Expr<'_>) -> bool {
    match kind {
        't' => is_tensor(expr),
        'n' => is_number(expr),
        'i' => matches!(expr, Expr::Int(_)) || expr.root() == Some("rank"),
        'u' => matches!(expr, Expr::Int(value) if *value >= 0),
        'l' => matches!(expr, Expr::List(_)),
        's' => matches!(expr, Expr::Str(_)),
        'b' => matches!(expr, Expr::Bool(_)),
        'd' => matches!(expr, Expr::Attr(object, _) if **object == Expr::Name("torch")),
        'o' => is_tensor(expr) || is_number(expr),
        _ => true,
    }
}

fn is_tensor(expr: &Expr<'_>) -> bool {
    match expr.root() {
        Some("p") => true,
        Some(_) => matches!(expr, Expr::Name(_)),
        None => false,
    }
}

fn is_number(expr: &Expr<'_>) -> bool {
    matches!(expr, Expr::Int(_) | Expr::Float(_)) || expr.root() == Some("rank")
}

/// The Python of an operator by one row, if the row fits its arguments.
pub(super) fn fill<'a>(row: &'static TemplateRow, applied: &Applied<'a>) -> Option<Expr<'a>> {
    let mut taken = Taken::new();
    let named: Option<Vec<_>> = (applied.kwargs.iter())
        .map(|(name, value)| match name {
            Cow::Borrowed(name) => Some((*name, value.clone())),
            Cow::Owned(_) => None,
        })
        .collect();
    let fits = arguments(&row.args, &row.kwargs, &applied.args, &named?, &mut taken);
    fits.then(|| build(&row.python, &taken)).flatten()
}

/// The operator of an expression by one row, if the row fits it.
pub(super) fn take<'a>(row: &'static TemplateRow, expr: &Expr<'a>) -> Option<Applied<'a>> {
    let mut taken = Taken::new();
    if !unify(&row.python, expr, &mut taken) {
        return None;
    }
    let (args, kwargs) = build_arguments(&row.args, &row.kwargs, &taken)?;
    let kwargs = kwargs.into_iter().map(|(name, value)| (Cow::Borrowed(name), value)).collect();
    Some(Applied { target: Cow::Borrowed(row.target.as_str()), args, kwargs })
}

/// A call whose arguments are the operator's own.
pub(super) fn plain<'a>(target: String, call: &Call<'a>) -> Applied<'a> {
    let kwargs = call.kwargs.iter().map(|(name, value)| (Cow::Borrowed(*name), value.clone())).collect();
    Applied { target: Cow::Owned(target), args: call.args.clone(), kwargs }
}

fn unify<'a>(pattern: &Expr<'static>, expr: &Expr<'a>, taken: &mut Taken<'a>) -> bool {
    match (pattern, expr) {
        (Expr::Place(place), _) => taken.put(*place, expr.clone()),
        (Expr::Attr(a, x), Expr::Attr(b, y)) => x == y && unify(a, b, taken),
        (Expr::Unary(x, a), Expr::Unary(y, b)) => x == y && unify(a, b, taken),
        (Expr::Binary(x, a), Expr::Binary(y, b)) => {
            x == y && unify(&a.0, &b.0, taken) && unify(&a.1, &b.1, taken)
        }
        (Expr::Call(a), Expr::Call(b)) => {
            unify(&a.function, &b.function, taken) && arguments(&a.args, &a.kwargs, &b.args, &b.kwargs, taken)
        }
        (Expr::List(a), Expr::List(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| unify(a, b, taken))
        }
        _ => pattern == expr,
    }
}

fn arguments<'a>(
    patterns: &[Expr<'static>],
    named_patterns: &[(&'static str, Expr<'static>)],
    args: &[Expr<'a>],
    named: &[(&'a str, Expr<'a>)],
    taken: &mut Taken<'a>,
) -> bool {
    let mut args = args.iter();
    for pattern in patterns {
        let fits = match pattern {
            Expr::Rest(most) => {
                taken.rest = args.by_ref().cloned().collect();
                taken.rest.len() <= *most
            }
            Expr::Place(place) if place.splat => {
                let items: Vec<_> = args.by_ref().cloned().collect();
                shardings(&items) && taken.put(*place, Expr::List(items))
            }
            _ => args.next().is_some_and(|arg| unify(pattern, arg, taken)),
        };
        if !fits {
            return false;
        }
    }
    if args.next().is_some() {
        return false;
    }
    let mut named = named.iter();
    for (name, pattern) in named_patterns {
        if *name == "**" {
            taken.named = named.by_ref().cloned().collect();
        } else if !named.next().is_some_and(|(other, arg)| other == name && unify(pattern, arg, taken)) {
            return false;
        }
    }
    named.next().is_none()
}

/// Whether a list may stand as several arguments: PyTorch takes numbers so, and not none of them.
fn shardings(items: &[Expr<'_>]) -> bool {
    !items.is_empty() && items.iter().all(|item| is_kind('i', item))
}

fn build<'a>(pattern: &Expr<'static>, taken: &Taken<'a>) -> Option<Expr<'a>> {
    Some(match pattern {
        Expr::Place(place) => taken.get(place.key)?.clone(),
        Expr::Attr(object, name) => receiver(object, taken)?.attr(name),
        Expr::Unary(sign, inner) => Expr::Unary(*sign, Box::new(receiver(inner, taken)?)),
        Expr::Binary(operator, sides) => {
            let (left, right) = (operand(&sides.0, taken)?, operand(&sides.1, taken)?);
            Expr::Binary(operator, Box::new((left, right)))
        }
        Expr::Call(call) => {
            let (args, kwargs) = build_arguments(&call.args, &call.kwargs, taken)?;
            build(&call.function, taken)?.call_with(args, kwargs)
        }
        Expr::List(items) => Expr::List(items.iter().map(|item| build(item, taken)).collect::<Option<_>>()?),
        _ => pattern.clone(),
    })
}

/// Methods and signs belong to tensors.
fn receiver<'a>(pattern: &Expr<'static>, taken: &Taken<'a>) -> Option<Expr<'a>> {
    let built = build(pattern, taken)?;
    (!matches!(pattern, Expr::Place(_)) || is_tensor(&built)).then_some(built)
}

fn operand<'a>(pattern: &Expr<'static>, taken: &Taken<'a>) -> Option<Expr<'a>> {
    let built = build(pattern, taken)?;
    (is_tensor(&built) || is_number(&built)).then_some(built)
}

type TemplateArguments<'a> = (Vec<Expr<'a>>, Vec<(&'a str, Expr<'a>)>);

fn build_arguments<'a>(
    patterns: &[Expr<'static>],
    named: &[(&'static str, Expr<'static>)],
    taken: &Taken<'a>,
) -> Option<TemplateArguments<'a>> {
    let (mut args, mut kwargs) = (Vec::with_capacity(patterns.len()), vec![]);
    for pattern in patterns {
        match pattern {
            Expr::Rest(_) => args.extend(taken.rest.iter().cloned()),
            Expr::Place(place) if place.splat => match taken.get(place.key)? {
                Expr::List(items) if shardings(items) => args.extend(items.iter().cloned()),
                _ => return None,
            },
            _ => args.push(build(pattern, taken)?),
        }
    }
    for (name, pattern) in named {
        match *name {
            "**" => kwargs.extend(taken.named.iter().cloned()),
            name => kwargs.push((name, build(pattern, taken)?)),
        }
    }
    Some((args, kwargs))
}

const SLICE: &str = "aten.slice.Tensor";
/// Deeper subscripts would not be readable.
const MOST_DIMS: i64 = 6;

/// `x[:, 2:4]`. The start is always written, the end unless it is the largest number there is.
pub(super) fn write_slice<'a>(applied: &Applied<'a>) -> Option<Expr<'a>> {
    if applied.target != SLICE || !applied.kwargs.is_empty() {
        return None;
    }
    let (tensor, dim, start, end, step) = match applied.args.as_slice() {
        [tensor, Expr::Int(dim), start, end] => (tensor, *dim, start, end, None),
        [tensor, Expr::Int(dim), start, end, step] => (tensor, *dim, start, end, Some(step)),
        _ => return None,
    };
    let number = |expr: &Expr<'_>| is_kind('i', expr);
    if !is_tensor(tensor) || !(0..MOST_DIMS).contains(&dim) || !number(start) || !number(end) {
        return None;
    }
    if step.is_some_and(|step| !matches!(step, Expr::Int(1..))) {
        return None;
    }
    let end = (*end != Expr::Int(i64::MAX)).then(|| end.clone());
    let whole = Expr::Slice(Box::new([None, None, None]));
    let mut subscripts: Vec<_> = (0..dim).map(|_| whole.clone()).collect();
    subscripts.push(Expr::Slice(Box::new([Some(start.clone()), end, step.cloned()])));
    Some(tensor.clone().index(subscripts))
}

pub(super) fn read_slice<'a>(expr: &Expr<'a>) -> Option<Applied<'a>> {
    let Expr::Index(tensor, subscripts) = expr else { return None };
    let (last, wholes) = subscripts.split_last()?;
    let whole = |s: &Expr<'_>| matches!(s, Expr::Slice(parts) if parts.iter().all(Option::is_none));
    let Expr::Slice(parts) = last else { return None };
    let [Some(start), end, step] = parts.as_ref() else { return None };
    if !is_tensor(tensor) || !wholes.iter().all(whole) {
        return None;
    }
    let end = end.clone().unwrap_or(Expr::Int(i64::MAX));
    let dim = i64::try_from(wholes.len()).ok()?;
    let mut args = vec![(**tensor).clone(), Expr::Int(dim), start.clone(), end];
    args.extend(step.clone());
    Some(Applied { target: Cow::Borrowed(SLICE), args, kwargs: vec![] })
}
