//! A program to text.

mod call_names;
mod calls;
mod comments;
mod functions;
mod group;
mod iterations;
mod loops;
mod modules;
mod naming;
mod outline;
mod per_rank;
mod ranks;
mod role;
mod sharding;
pub(crate) mod tables;
mod timetable;

use graph::Graph;
use program::{Arg, Program, Role};
use rules::{Analysis, Rewritten};

use crate::File;
use crate::python::Expr;
use modules::Modules;
use ranks::is_run;

pub(crate) use calls::{Gathered, even_sizes, gathered, is_below};
pub(crate) use timetable::{called as step_called, range, stash, words as task_words};

pub(crate) fn files(model: &Graph, rewritten: &Rewritten<'_>, program: &Program) -> Vec<File> {
    let graph = &rewritten.graph;
    let modules = Modules::new(model, rewritten);
    let analysis = Analysis::new(graph);
    let (mut files, mut calls) = (vec![], vec![]);
    for role in &program.roles {
        let (text, names) = role::text(graph, &analysis, program, role, &modules);
        files.push(File { name: file_name(role), text });
        calls.push(names);
    }
    files.push(File { name: "program.json".to_owned(), text: tables::text(graph, program, &calls) });
    files
}

/// `ranks_0_3.py`. The first rank makes it unique.
pub(crate) fn file_name(role: &Role) -> String {
    let ranks = &role.ranks;
    match (ranks.first(), ranks.last()) {
        (Some(first), Some(_)) if ranks.len() == 1 => format!("rank_{}.py", first.0),
        (Some(first), Some(last)) if is_run(ranks) => format!("ranks_{}_{}.py", first.0, last.0),
        (Some(first), Some(second)) if ranks.len() == 2 => format!("ranks_{}_and_{}.py", first.0, second.0),
        (Some(first), _) => format!("ranks_{}_and_{}_more.py", first.0, ranks.len() - 1),
        (None, _) => "no_ranks.py".to_owned(),
    }
}

/// An argument as Python, given how bufs and holes are written.
pub(crate) fn argument<'a>(
    arg: &'a Arg,
    holes: &'a [String],
    buf: &dyn Fn(program::BufId) -> Expr<'a>,
) -> Expr<'a> {
    match arg {
        Arg::None => Expr::None,
        Arg::Bool(value) => Expr::Bool(*value),
        Arg::Int(value) => Expr::Int(*value),
        Arg::Hole(index) => hole(holes, *index),
        Arg::Float(value) => Expr::Float(*value),
        Arg::Str(text) => Expr::Str(text.as_str().into()),
        Arg::Dtype(dtype) => Expr::Name("torch").attr(&dtype.torch()["torch.".len()..]),
        Arg::Buf(id) => buf(*id),
        Arg::List(items) => Expr::List(items.iter().map(|item| argument(item, holes, buf)).collect()),
    }
}

pub(crate) fn hole(holes: &[String], index: u32) -> Expr<'_> {
    Expr::Name("rank").attr(holes.get(index as usize).map_or("unknown", String::as_str))
}
