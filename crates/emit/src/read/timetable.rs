//! The function `step`, back to a timetable.

use diag::Result;
use program::{Task, Timetable, When};

use super::reader::Reader;
use crate::python::{Expr, Function, Stmt, StmtKind};
use crate::write::{begin, task_words};

/// Factors of a scale beyond this are not read: there is one in all that is right.
const MOST_FACTORS: u32 = 4;

pub(super) fn timetable(reader: &Reader<'_>, step: &Function<'_>) -> Result<Timetable> {
    let strange = |line| reader.misuse(line, "`step` is something else than a loop over the micro-batches");
    let begins =
        matches!(&step.body[..], [Stmt { kind: StmtKind::Yield(first), .. }, _] if *first == [begin()]);
    let [Stmt { kind: StmtKind::For { target: "b", values, body }, .. }] = &step.body[usize::from(begins)..]
    else {
        return Err(strange(step.line));
    };
    let range = Expr::Name("range").call(vec![Expr::Name("batches")]);
    if step.params != ["batches", "scale"] || *values != range {
        return Err(strange(step.line));
    }
    let mut each = vec![];
    for stmt in body {
        let StmtKind::Yield(words) = &stmt.kind else { return Err(strange(stmt.line)) };
        let found = tasks().find(|task| task_words(task) == *words);
        each.push(found.ok_or_else(|| reader.misuse(stmt.line, "this is no task of a timetable"))?);
    }
    Ok(Timetable { begins, each })
}

/// All that can be written.
fn tasks() -> impl Iterator<Item = Task> {
    let whens = [When::Last, When::Each, When::First, When::Never];
    let backward = move |scaled| whens.into_iter().map(move |settles| Task::Backward { scaled, settles });
    std::iter::once(Task::Forward).chain((0..=MOST_FACTORS).flat_map(backward))
}
