//! A role's timetable as a function that yields its tasks.

use program::{Does, Loop, Pass, Steps, Task, Timetable, When};

use crate::names::code_name;
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

/// Of steps that follow each other without a pause.
const ON: &str =
    "In each step; a micro-batch before 0 is one of the last of the step before, of which `end` is.";
const ON_ALONE: &str = "In each step; a micro-batch before 0 is one of the last of the step before.";
/// What keeps the parameters of a step for the next one.
const STASH: &str = "stash";

/// What the function of a timetable is called.
pub(crate) fn called(goes_on: bool) -> &'static str {
    if goes_on { "steady" } else { "step" }
}

/// The function, and the names of codes in it.
pub(super) struct StepFunction<'t> {
    timetable: &'t Timetable,
    several: bool,
    settles: bool,
}

/// None for what only runs forward.
pub(super) fn step(timetable: &Timetable, several: bool, settles: bool) -> Option<StepFunction<'_>> {
    let simple = *timetable == Timetable::in_turn(timetable.begins, false) || timetable.loops.is_empty();
    let written = !simple || several && !timetable.loops.is_empty() || timetable.ends;
    written.then_some(StepFunction { timetable, several, settles })
}

pub(super) fn print(out: &mut String, step: &StepFunction<'_>) {
    let StepFunction { timetable, several, settles } = *step;
    let on = timetable.goes_on();
    let usual = *timetable == Timetable::in_turn(timetable.begins, true);
    let early = timetable.loops.iter().any(|it| it.iterations.is_some());
    let ahead = !early && !on && timetable.loops.iter().any(|it| it.tasks.iter().any(|task| task.at != 0));
    let on = [(on && timetable.ends, ON), (on && !timetable.ends, ON_ALONE)];
    let doc = [(usual && settles, DOC), (usual && !settles, EACH), (ahead, AHEAD), (early, EARLY)];
    let doc = doc.into_iter().chain(on);
    let doc = doc.filter(|(fits, _)| *fits).map(|(_, doc)| doc.to_owned()).collect();
    let names = names(timetable, several);
    let loops = timetable.loops.iter().map(|it| looped(it, &names, timetable.steps));
    let first = timetable.begins.then(|| once(Pass::Begin));
    let last = timetable.ends.then(|| once(Pass::End));
    let stash = timetable.stashes().then(stash);
    let body = first.into_iter().chain(loops).chain(last).chain(stash).collect();
    let name = called(timetable.goes_on());
    out.push_str("\n\n");
    python::function(out, &Function { line: 0, name, params: vec!["batches", "scale"], doc, body });
}

fn once(pass: Pass) -> Stmt<'static> {
    Stmt::new(StmtKind::Yield(vec![Expr::Name(pass.name())]))
}

pub(crate) fn stash() -> Stmt<'static> {
    Stmt::new(StmtKind::Yield(vec![Expr::Str(STASH.into())]))
}

/// What the code of each task is called.
fn names(timetable: &Timetable, several: bool) -> Vec<(Task, String)> {
    let tasks = timetable.loops.iter().flat_map(|it| &it.tasks);
    tasks.map(|task| (task.clone(), code_name(several, task.block, task.pass()))).collect()
}

/// `for b in range(...)`, and its tasks.
fn looped<'n>(it: &Loop, names: &'n [(Task, String)], steps: Steps) -> Stmt<'n> {
    let name = |task: &Task| names.iter().find(|(known, _)| known == task).map_or("", |(_, name)| name);
    let body = it.tasks.iter().map(|task| Stmt::new(StmtKind::Yield(words(task, name(task), steps))));
    Stmt::new(StmtKind::For { target: "b", values: range(it, steps), body: body.collect() })
}

/// `range(batches)`, `range(-3, batches + 2)`, `range(-8, batches, 4)`, `range(7)`.
pub(crate) fn range(it: &Loop, steps: Steps) -> Expr<'static> {
    if steps != Steps::Apart {
        return Expr::Name("range").call(vec![Expr::Name("batches")]);
    }
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
pub(crate) fn words<'n>(task: &Task, name: &'n str, steps: Steps) -> Vec<Expr<'n>> {
    let code = vec![Expr::Name(name), batch(task.at)];
    let condition = |settles, at| condition(settles, at, steps);
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

fn condition(settles: When, at: i32, steps: Steps) -> Expr<'static> {
    let is = |right| Expr::Binary("==", Box::new((batch(at), right)));
    match settles {
        When::Never => Expr::Bool(false),
        When::Each => Expr::Bool(true),
        When::First => is(Expr::Int(0)),
        // Of the step before.
        When::Last if steps != Steps::Apart && at < 0 => is(Expr::Int(-1)),
        When::Last => is(more(Expr::Name("batches"), -1)),
    }
}
