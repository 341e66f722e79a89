//! Loops of instructions: each turn is read as if it were written out.

use diag::Result;

use super::reader::Reader;
use crate::names::is_reserved;
use crate::python::{Expr, Stmt, StmtKind};

/// The values of the counter, one after the other, of `for n in range(3)` or `reversed(range(1, 3))`;
/// `is_known` says that its name means something already.
pub(super) fn iterations(
    reader: &Reader<'_>,
    is_known: bool,
    target: &str,
    values: &Expr<'_>,
    body: &[Stmt<'_>],
    line: u32,
) -> Result<Box<dyn Iterator<Item = i64>>> {
    if is_reserved(target) || reader.is_function(target) || is_known {
        return Err(reader.unknown(line, format!("the name `{target}` is taken and counts turns")));
    }
    if body.iter().any(|stmt| assigns(stmt, target)) {
        return Err(reader.unknown(line, format!("`{target}` counts turns and is assigned in one")));
    }
    let strange = || reader.misuse(line, "a loop must be over `range` or `reversed(range)` of numbers");
    let Expr::Call(call) = values else { return Err(strange()) };
    match (&call.function, &call.args[..], call.kwargs.is_empty()) {
        (Expr::Name("reversed"), [values], true) => {
            let (low, high) = range(values).ok_or_else(strange)?;
            Ok(Box::new((low..high).rev()))
        }
        _ => {
            let (low, high) = range(values).ok_or_else(strange)?;
            Ok(Box::new(low..high))
        }
    }
}

fn range(values: &Expr<'_>) -> Option<(i64, i64)> {
    let Expr::Call(call) = values else { return None };
    if call.function != Expr::Name("range") || !call.kwargs.is_empty() {
        return None;
    }
    match call.args[..] {
        [Expr::Int(high)] => Some((0, high)),
        [Expr::Int(low), Expr::Int(high)] => Some((low, high)),
        _ => None,
    }
}

fn assigns(stmt: &Stmt<'_>, name: &str) -> bool {
    match &stmt.kind {
        StmtKind::Assign { targets, .. } => targets.contains(&name),
        StmtKind::If(_, body) | StmtKind::NoGrad(body) => body.iter().any(|stmt| assigns(stmt, name)),
        StmtKind::For { target, body, .. } => *target == name || body.iter().any(|stmt| assigns(stmt, name)),
        StmtKind::Expr(_) | StmtKind::Return(_) | StmtKind::Yield(_) | StmtKind::Comment => false,
    }
}

/// A statement of a loop, as it is in one turn.
pub(super) fn one_by_one<'a>(stmt: &Stmt<'a>, counter: &str, value: i64) -> Stmt<'a> {
    let expr = |expr: &Expr<'a>| counted(expr, counter, value);
    let block = |body: &[Stmt<'a>]| body.iter().map(|stmt| one_by_one(stmt, counter, value)).collect();
    let kind = match &stmt.kind {
        StmtKind::Assign { targets, unpack, value } => {
            StmtKind::Assign { targets: targets.clone(), unpack: *unpack, value: expr(value) }
        }
        StmtKind::Expr(value) => StmtKind::Expr(expr(value)),
        StmtKind::Return(values) => StmtKind::Return(values.iter().map(expr).collect()),
        StmtKind::Yield(values) => StmtKind::Yield(values.iter().map(expr).collect()),
        StmtKind::NoGrad(body) => StmtKind::NoGrad(block(body)),
        StmtKind::If(condition, body) => StmtKind::If(expr(condition), block(body)),
        StmtKind::For { target, values, body } => {
            StmtKind::For { target, values: expr(values), body: block(body) }
        }
        StmtKind::Comment => StmtKind::Comment,
    };
    Stmt { line: stmt.line, comment: None, about: None, kind }
}

/// An expression with the number in the place of the counter, and sums and products of numbers computed.
fn counted<'a>(expr: &Expr<'a>, counter: &str, value: i64) -> Expr<'a> {
    let inner = |expr: &Expr<'a>| counted(expr, counter, value);
    let all = |items: &[Expr<'a>]| items.iter().map(inner).collect::<Vec<_>>();
    match expr {
        Expr::Name(name) if *name == counter => Expr::Int(value),
        Expr::Binary(operator, sides) => computed(operator, inner(&sides.0), inner(&sides.1)),
        Expr::List(items) => Expr::List(all(items)),
        Expr::Rows(items) => Expr::Rows(all(items)),
        Expr::Attr(..) | Expr::Index(..) => expr.along(inner, all),
        Expr::Slice(parts) => Expr::Slice(Box::new(parts.each_ref().map(|part| part.as_ref().map(inner)))),
        Expr::Call(call) => {
            let kwargs = call.kwargs.iter().map(|(name, value)| (*name, inner(value))).collect();
            inner(&call.function).call_with(all(&call.args), kwargs)
        }
        Expr::Unary(sign, operand) => Expr::Unary(*sign, Box::new(inner(operand))),
        Expr::Name(_)
        | Expr::None
        | Expr::Bool(_)
        | Expr::Int(_)
        | Expr::Float(_)
        | Expr::Str(_)
        | Expr::Place(_)
        | Expr::Rest(_) => expr.clone(),
    }
}

fn computed<'a>(operator: &'static str, a: Expr<'a>, b: Expr<'a>) -> Expr<'a> {
    if let (Expr::Int(x), Expr::Int(y)) = (&a, &b) {
        match operator {
            "<" => return Expr::Bool(x < y),
            ">" => return Expr::Bool(x > y),
            _ => {}
        }
        let result = match operator {
            "+" => x.checked_add(*y),
            "-" => x.checked_sub(*y),
            "*" => x.checked_mul(*y),
            _ => None,
        };
        if let Some(value) = result {
            return Expr::Int(value);
        }
    }
    Expr::Binary(operator, Box::new((a, b)))
}
