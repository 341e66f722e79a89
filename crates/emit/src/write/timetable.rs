//! A role's timetable as a function that yields its tasks.

use program::{Does, Loop, Pass, Task, Timetable, When};

use super::role::code_name;
use crate::python::{Expr, Function, Stmt, StmtKind, print as python};

const DOC: &str = "For each micro-batch: its loss counts `scale`, and gradients are reduced with the last.";
/// Of gradients that are reduced at once.
const EACH: &str = "For each micro-batch: its loss counts `scale`, and the last one is told.";
/// Of several micro-batches at a time.
const AHEAD: &str =
    "What runs one after the other; what is for no micro-batch of 0 .. batches - 1 is left out.";

/// Of loops that run the beginning of others.
const EARLY: &str =
    "What runs one after the other; what is for no micro-batch of 0 .. batches - 1, or has run, is left out.";

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
    let early = timetable.loops.iter().any(|it| it.turns.is_some());
    let ahead = !early && timetable.loops.iter().any(|it| it.tasks.iter().any(|task| task.at != 0));
    let doc = [(usual && settles, DOC), (usual && !settles, EACH), (ahead, AHEAD), (early, EARLY)];
    let doc = doc.into_iter().filter(|(fits, _)| *fits).map(|(_, doc)| doc.to_owned()).collect();
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

/// `range(batches)`, `range(-3, batches + 2)`, `range(-8, batches, 4)`, `range(7)`.
pub(crate) fn range(it: &Loop) -> Expr<'static> {
    let all = || more(Expr::Name("batches"), it.beyond());
    let (first, end) = (it.first(), it.end().map_or_else(all, Expr::Int));
    let args = match (first, it.every) {
        (0, 1) => vec![end],
        (_, 1) => vec![Expr::Int(first), end],
        (_, every) => vec![Expr::Int(first), end, Expr::Int(every.into())],
    };
    Expr::Name("range").call(args)
}

fn more(than: Expr<'static>, count: i64) -> Expr<'static> {
    match count {
        0 => than,
        1.. => Expr::Binary("+", Box::new((than, Expr::Int(count)))),
        _ => Expr::Binary("-", Box::new((than, Expr::Int(-count)))),
    }
}

/// `forward, b` or `backward, b, scale, b == batches - 1`.
pub(crate) fn words<'n>(task: &Task, name: &'n str) -> Vec<Expr<'n>> {
    let code = vec![Expr::Name(name), batch(task.at)];
    match task.does {
        Does::Forward => code,
        Does::Backward { scaled, settles } => {
            code.into_iter().chain([scale(scaled), condition(settles, task.at)]).collect()
        }
        Does::Inputs { scaled } => code.into_iter().chain([scale(scaled)]).collect(),
        Does::Weights { settles } => code.into_iter().chain([condition(settles, task.at)]).collect(),
    }
}

fn batch(at: i32) -> Expr<'static> {
    more(Expr::Name("b"), at.into())
}

fn scale(times: u32) -> Expr<'static> {
    let factors = (0..times).map(|_| Expr::Name("scale"));
    let product = factors.reduce(|all, next| Expr::Binary("*", Box::new((all, next))));
    product.unwrap_or(Expr::Float(1.0))
}

fn condition(settles: When, at: i32) -> Expr<'static> {
    let is = |right| Expr::Binary("==", Box::new((batch(at), right)));
    match settles {
        When::Never => Expr::Bool(false),
        When::Each => Expr::Bool(true),
        When::First => is(Expr::Int(0)),
        When::Last => is(more(Expr::Name("batches"), -1)),
    }
}
