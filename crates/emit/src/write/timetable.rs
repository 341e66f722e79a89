//! A role's timetable as a function that yields its tasks.

use program::{Bound, Does, Loop, Pass, Task, Timetable, When};

use super::role::code_name;
use crate::python::{Expr, Function, Stmt, StmtKind, print as python};

const DOC: &str = "For each micro-batch: its loss counts `scale`, and gradients are reduced with the last.";
/// Of gradients that are reduced at once.
const EACH: &str = "For each micro-batch: its loss counts `scale`, and the last one is told.";

/// The function, and the names of codes in it.
pub(super) struct Step<'t> {
    timetable: &'t Timetable,
    several: bool,
    settles: bool,
}

/// None for what only runs forward.
pub(super) fn step(timetable: &Timetable, several: bool, settles: bool) -> Option<Step<'_>> {
    let simple = *timetable == Timetable::in_turn(timetable.begins, false) || timetable.loops.is_empty();
    let written = !simple || several && !timetable.loops.is_empty() || timetable.ends;
    written.then_some(Step { timetable, several, settles })
}

pub(super) fn print(out: &mut String, step: &Step<'_>) {
    let Step { timetable, several, settles } = *step;
    let usual = *timetable == Timetable::in_turn(timetable.begins, true);
    let doc = usual.then(|| if settles { DOC } else { EACH }.to_owned()).into_iter().collect();
    let names = names(timetable, several);
    let loops = timetable.loops.iter().map(|it| looped(it, &names));
    let first = timetable.begins.then(|| once(Pass::Begin));
    let last = timetable.ends.then(|| once(Pass::End));
    let body = first.into_iter().chain(loops).chain(last).collect();
    out.push_str("\n\n");
    python::function(out, &Function { line: 0, name: "step", params: vec!["batches", "scale"], doc, body });
}

fn once(pass: Pass) -> Stmt<'static> {
    Stmt::new(StmtKind::Yield(vec![Expr::Name(pass.name())]))
}

/// What the code of each task is called.
fn names(timetable: &Timetable, several: bool) -> Vec<(Task, String)> {
    let tasks = timetable.loops.iter().flat_map(|it| &it.tasks);
    tasks.map(|task| (task.clone(), code_name(several, task.block, task.pass()))).collect()
}

/// `for b in range(...)`, and its tasks.
fn looped<'n>(it: &Loop, names: &'n [(Task, String)]) -> Stmt<'n> {
    let name = |task: &Task| names.iter().find(|(own, _)| own == task).map_or("", |(_, name)| name);
    let body = it.tasks.iter().map(|task| Stmt::new(StmtKind::Yield(words(task, name(task)))));
    Stmt::new(StmtKind::For { target: "b", values: range(it), body: body.collect() })
}

/// `range(batches)`, `range(min(2, batches))`, `range(max(batches - 2, 0), batches)`.
pub(crate) fn range(it: &Loop) -> Expr<'static> {
    let args = match it.from {
        Bound::First(0) => vec![bound(it.to, false)],
        from => vec![bound(from, true), bound(it.to, true)],
    };
    Expr::Name("range").call(args)
}

/// Where a range from 0 ends below 0, it is empty all the same.
fn bound(bound: Bound, clamped: bool) -> Expr<'static> {
    let less = |count: u32| minus(Expr::Name("batches"), count);
    match bound {
        Bound::First(0) => Expr::Int(0),
        Bound::First(count) => Expr::Name("min").call(vec![Expr::Int(count.into()), Expr::Name("batches")]),
        Bound::Last(0) => Expr::Name("batches"),
        Bound::Last(count) if clamped => Expr::Name("max").call(vec![less(count), Expr::Int(0)]),
        Bound::Last(count) => less(count),
    }
}

fn minus(from: Expr<'static>, count: u32) -> Expr<'static> {
    Expr::Binary("-", Box::new((from, Expr::Int(count.into()))))
}

/// `forward, b` or `backward, b, scale, b == batches - 1`.
pub(crate) fn words<'n>(task: &Task, name: &'n str) -> Vec<Expr<'n>> {
    let code = vec![Expr::Name(name), ahead(task.ahead)];
    match task.does {
        Does::Forward => code,
        Does::Backward { scaled, settles } => {
            code.into_iter().chain([scale(scaled), condition(settles, task.ahead)]).collect()
        }
        Does::Inputs { scaled } => code.into_iter().chain([scale(scaled)]).collect(),
        Does::Weights { settles } => code.into_iter().chain([condition(settles, task.ahead)]).collect(),
    }
}

fn ahead(count: u32) -> Expr<'static> {
    match count {
        0 => Expr::Name("b"),
        _ => Expr::Binary("+", Box::new((Expr::Name("b"), Expr::Int(count.into())))),
    }
}

fn scale(times: u32) -> Expr<'static> {
    let factors = (0..times).map(|_| Expr::Name("scale"));
    let product = factors.reduce(|all, next| Expr::Binary("*", Box::new((all, next))));
    product.unwrap_or(Expr::Float(1.0))
}

fn condition(settles: When, count: u32) -> Expr<'static> {
    let is = |right| Expr::Binary("==", Box::new((ahead(count), right)));
    match settles {
        When::Never => Expr::Bool(false),
        When::Each => Expr::Bool(true),
        When::First => is(Expr::Int(0)),
        When::Last => is(minus(Expr::Name("batches"), 1)),
    }
}
