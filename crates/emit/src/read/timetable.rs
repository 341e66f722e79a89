//! The function `step`, back to a timetable.

use diag::Result;
use program::{Bound, Loop, Pass, Task, Timetable, When};

use super::reader::Reader;
use crate::python::{Expr, Function, Stmt, StmtKind};
use crate::write::{range as words_of_range, task_words};

/// Factors of a scale beyond this are not read: there is one in all that is right.
const MOST_FACTORS: u32 = 4;

pub(super) fn timetable(reader: &Reader<'_>, step: &Function<'_>) -> Result<Timetable> {
    let strange = |line| reader.misuse(line, "`step` is something else than loops over the micro-batches");
    if step.params != ["batches", "scale"] {
        return Err(strange(step.line));
    }
    let mut found = Timetable::default();
    let mut stmts = &step.body[..];
    if let [first, rest @ ..] = stmts {
        if is_once(first, Pass::Begin) {
            (found.begins, stmts) = (true, rest);
        }
    }
    if let [rest @ .., last] = stmts {
        if is_once(last, Pass::End) {
            (found.ends, stmts) = (true, rest);
        }
    }
    for stmt in stmts {
        let StmtKind::For { target: "b", values, body } = &stmt.kind else { return Err(strange(stmt.line)) };
        let (from, to) = range(values).ok_or_else(|| strange(stmt.line))?;
        if words_of_range(&Loop { from, to, tasks: vec![] }) != *values {
            return Err(strange(stmt.line));
        }
        let mut tasks = vec![];
        for stmt in body {
            let task = match &stmt.kind {
                StmtKind::Yield(words) => task(reader, words),
                _ => None,
            };
            tasks.push(task.ok_or_else(|| reader.misuse(stmt.line, "this is no task of a timetable"))?);
        }
        found.loops.push(Loop { from, to, tasks });
    }
    Ok(found)
}

fn is_once(stmt: &Stmt<'_>, pass: Pass) -> bool {
    matches!(&stmt.kind, StmtKind::Yield(words) if *words == [Expr::Name(pass.name())])
}

fn range(values: &Expr<'_>) -> Option<(Bound, Bound)> {
    let Expr::Call(call) = values else { return None };
    match &call.args[..] {
        [to] => Some((Bound::First(0), bound(to)?)),
        [from, to] => Some((bound(from)?, bound(to)?)),
        _ => None,
    }
}

/// Told by its numbers: whoever reads it compares it with what would be written.
fn bound(expr: &Expr<'_>) -> Option<Bound> {
    match expr {
        Expr::Name("batches") => Some(Bound::Last(0)),
        Expr::Int(0) => Some(Bound::First(0)),
        Expr::Binary("-", sides) => number(&sides.1).map(Bound::Last),
        Expr::Call(call) => match &call.args[..] {
            [Expr::Int(_), _] => number(&call.args[0]).map(Bound::First),
            [less, _] => bound(less),
            _ => None,
        },
        _ => None,
    }
}

fn number(expr: &Expr<'_>) -> Option<u32> {
    if let Expr::Int(value) = expr { u32::try_from(*value).ok() } else { None }
}

fn task(reader: &Reader<'_>, words: &[Expr<'_>]) -> Option<Task> {
    let [Expr::Name(name), ..] = words else { return None };
    read_task(reader, words).filter(|task| task_words(task, name) == *words)
}

fn read_task(reader: &Reader<'_>, words: &[Expr<'_>]) -> Option<Task> {
    let [Expr::Name(name), batch, rest @ ..] = words else { return None };
    let (block, pass) = reader.code_of(name)?;
    let ahead = match batch {
        Expr::Binary("+", sides) => number(&sides.1)?,
        _ => 0,
    };
    match (pass, rest) {
        (Pass::Forward, []) => Some(Task::forward(block).ahead(ahead)),
        (Pass::Backward, [scale, condition]) => {
            let mut task = Task::backward(block, settles(condition)?).ahead(ahead);
            if let program::Does::Backward { scaled, .. } = &mut task.does {
                *scaled = factors(scale)?;
            }
            Some(task)
        }
        (Pass::Inputs, [scale]) => {
            let does = program::Does::Inputs { scaled: factors(scale)? };
            Some(Task { does, ..Task::inputs(block).ahead(ahead) })
        }
        (Pass::Weights, [condition]) => Some(Task::weights(block, settles(condition)?).ahead(ahead)),
        _ => None,
    }
}

fn settles(condition: &Expr<'_>) -> Option<When> {
    match condition {
        Expr::Bool(true) => Some(When::Each),
        Expr::Bool(false) => Some(When::Never),
        Expr::Binary("==", sides) if sides.1 == Expr::Int(0) => Some(When::First),
        Expr::Binary("==", _) => Some(When::Last),
        _ => None,
    }
}

fn factors(scale: &Expr<'_>) -> Option<u32> {
    match scale {
        Expr::Float(_) => Some(0),
        Expr::Name(_) => Some(1),
        Expr::Binary("*", sides) => factors(&sides.0)?.checked_add(1).filter(|count| *count <= MOST_FACTORS),
        _ => None,
    }
}
