//! A role's timetable as a function that yields its tasks.

use program::{Pass, Task, Timetable, When};

use crate::python::{Expr, Function, Stmt, StmtKind};

const DOC: &str = "For each micro-batch: its loss counts `scale`, and gradients are reduced with the last.";
/// Of gradients that are reduced at once.
const EACH: &str = "For each micro-batch: its loss counts `scale`, and the last one is told.";

/// None for what only runs forward.
pub(super) fn step(timetable: &Timetable, settles: bool) -> Option<Function<'static>> {
    let Timetable { begins, .. } = *timetable;
    if *timetable == Timetable::in_turn(begins, false) {
        return None;
    }
    let body = timetable.each.iter().map(|task| Stmt::new(StmtKind::Yield(words(task)))).collect();
    let values = Expr::Name("range").call(vec![Expr::Name("batches")]);
    let each = Stmt::new(StmtKind::For { target: "b", values, body });
    let usual = *timetable == Timetable::in_turn(begins, true);
    let doc = usual.then(|| if settles { DOC } else { EACH }.to_owned()).into_iter().collect();
    let first = begins.then(|| Stmt::new(StmtKind::Yield(vec![begin()])));
    Some(Function {
        line: 0,
        name: "step",
        params: vec!["batches", "scale"],
        doc,
        body: first.into_iter().chain([each]).collect(),
    })
}

pub(crate) fn begin() -> Expr<'static> {
    Expr::Name(Pass::Begin.name())
}

/// `forward, b` or `backward, b, scale, b == batches - 1`.
pub(crate) fn words(task: &Task) -> Vec<Expr<'static>> {
    let code = |pass: Pass| vec![Expr::Name(pass.name()), Expr::Name("b")];
    match *task {
        Task::Forward => code(Pass::Forward),
        Task::Backward { scaled, settles } => {
            let all = code(Pass::Backward).into_iter();
            all.chain([scale(scaled), condition(settles)]).collect()
        }
    }
}

fn scale(times: u32) -> Expr<'static> {
    let factors = (0..times).map(|_| Expr::Name("scale"));
    let product = factors.reduce(|all, next| Expr::Binary("*", Box::new((all, next))));
    product.unwrap_or(Expr::Float(1.0))
}

fn condition(settles: When) -> Expr<'static> {
    let is = |right| Expr::Binary("==", Box::new((Expr::Name("b"), right)));
    match settles {
        When::Never => Expr::Bool(false),
        When::Each => Expr::Bool(true),
        When::First => is(Expr::Int(0)),
        When::Last => is(Expr::Binary("-", Box::new((Expr::Name("batches"), Expr::Int(1))))),
    }
}
