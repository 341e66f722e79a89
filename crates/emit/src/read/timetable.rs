//! The function `step` or `steady`, back to a timetable.

use diag::Result;
use program::{Loop, Pass, Steps, Task, Timetable, When};

use super::reader::Reader;
use crate::python::{Expr, Function, Stmt, StmtKind};
use crate::write::{range as words_of_range, stash, step_called, task_words};

/// Factors of a scale beyond this are not read: there is one in all that is right.
const MOST_FACTORS: u32 = 4;

pub(super) fn timetable(reader: &Reader<'_>, step: &Function<'_>) -> Result<Timetable> {
    let strange = |line| reader.misuse(line, "`step` is something else than loops over the micro-batches");
    if step.params != ["batches", "scale"] {
        return Err(strange(step.line));
    }
    let mut timetable = Timetable::default();
    let mut stmts = &step.body[..];
    if let [first, rest @ ..] = stmts {
        if is_once(first, Pass::Begin) {
            (timetable.begins, stmts) = (true, rest);
        }
    }
    if step.name == step_called(true) {
        let stashes = stmts.last().is_some_and(|last| last.kind == stash().kind);
        (timetable.steps, stmts) = (Steps::On { stashes }, &stmts[..stmts.len() - usize::from(stashes)]);
    }
    if let [rest @ .., last] = stmts {
        if is_once(last, Pass::End) {
            (timetable.ends, stmts) = (true, rest);
        }
    }
    for stmt in stmts {
        let StmtKind::For { target: "b", values, body } = &stmt.kind else { return Err(strange(stmt.line)) };
        let mut tasks = vec![];
        for stmt in body {
            let task = match &stmt.kind {
                StmtKind::Yield(words) => task(reader, words, timetable.steps),
                _ => None,
            };
            tasks.push(task.ok_or_else(|| reader.misuse(stmt.line, "this is no task of a timetable"))?);
        }
        let every = every(values).unwrap_or(1);
        let it = Loop { every, iterations: iterations(values, every), tasks };
        if words_of_range(&it, timetable.steps) != *values {
            return Err(reader.misuse(stmt.line, "this range is another one than that of the tasks in it"));
        }
        timetable.loops.push(it);
    }
    Ok(timetable)
}

fn is_once(stmt: &Stmt<'_>, pass: Pass) -> bool {
    matches!(&stmt.kind, StmtKind::Yield(words) if *words == [Expr::Name(pass.name())])
}

/// Of a range with steps.
fn every(values: &Expr<'_>) -> Option<u32> {
    let Expr::Call(call) = values else { return None };
    let [_, _, Expr::Int(every)] = call.args[..] else { return None };
    u32::try_from(every).ok().filter(|every| *every > 0)
}

/// Of a range that ends at a number.
fn iterations(values: &Expr<'_>, every: u32) -> Option<u32> {
    let Expr::Call(call) = values else { return None };
    let ([Expr::Int(end)] | [_, Expr::Int(end), ..]) = call.args[..] else { return None };
    u32::try_from(end).ok().map(|end| end / every)
}

fn number(expr: &Expr<'_>) -> Option<i32> {
    if let Expr::Int(value) = expr { i32::try_from(*value).ok() } else { None }
}

fn task(reader: &Reader<'_>, words: &[Expr<'_>], steps: Steps) -> Option<Task> {
    let [Expr::Name(name), ..] = words else { return None };
    read_task(reader, words).filter(|task| task_words(task, name, steps) == *words)
}

fn read_task(reader: &Reader<'_>, words: &[Expr<'_>]) -> Option<Task> {
    let [Expr::Name(name), batch, rest @ ..] = words else { return None };
    let (block, pass) = reader.code_of(name)?;
    // Told by its numbers: whoever reads it compares it with what would be written.
    let at = match batch {
        Expr::Binary("+", sides) => number(&sides.1)?,
        Expr::Binary("-", sides) => number(&sides.1)?.checked_neg()?,
        _ => 0,
    };
    match (pass, rest) {
        (Pass::Forward, []) => Some(Task::forward(block).at(at)),
        (Pass::Backward, [scale, condition]) => {
            let mut task = Task::backward(block, settles(condition)?).at(at);
            if let program::Does::Backward { scaled, .. } = &mut task.does {
                *scaled = factors(scale)?;
            }
            Some(task)
        }
        (Pass::Inputs, [scale]) => {
            let does = program::Does::Inputs { scaled: factors(scale)? };
            Some(Task { does, ..Task::inputs(block).at(at) })
        }
        (Pass::Weights, [condition]) => Some(Task::weights(block, settles(condition)?).at(at)),
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
