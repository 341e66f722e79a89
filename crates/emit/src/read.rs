//! Text to a program.
//!
//! What a program computes is read from the text alone. Two things are only hints, found by looking
//! for the operators of the graph that the code matches: [`program::LocalOp::op`] and the tensor of
//! a buf inside a call. Where looking would find another operator, the tables tell it. A hint that is
//! not found is `u32::MAX`.
//!
//! [`reader`] is what is known while a role is read. On it stand [`code`], which reads the functions
//! that calls run, [`methods`], which reads instructions, and [`body`], which reads a whole role.

mod body;
mod code;
mod iterations;
mod json;
mod methods;
mod per_rank;
mod reader;
mod tables;
mod timetable;

use diag::{Error, Result};
use graph::Graph;
use program::{Program, Role};
use rules::slicing::derive;
use serde_json::Value;

use crate::lines::{Lines, LinesOfRole};
use crate::{File, write};

const TABLES: &str = "program.json";

pub(crate) fn program(model: &Graph, files: &[File]) -> Result<(Program, Lines)> {
    let written = tables::value(&file(files, TABLES)?.text)?;
    let rewritings = tables::rewritings(model, &written)?;
    let slices = tables::slices(&written)?;
    let graph = &*derive(model, slices.as_ref(), &rewritings)?.graph;
    let tables = tables::read(graph, slices, rewritings, &written)?;
    let (mut program, mut lines) = (tables.program, Lines::default());
    for role in tables.roles {
        let text = &file(files, &role.file)?.text;
        let (body, of_role) = body::read(graph, &program, &role, text)?;
        if of_role.calls != role.calls {
            return Err(other_calls(&of_role, &role.calls));
        }
        lines.roles.push(of_role);
        program.roles.push(Role { ranks: role.ranks, table: role.table, body });
    }
    let known = |file: &&File| file.name != TABLES && !tables.files.contains(&file.name);
    match files.iter().find(known) {
        Some(extra) => Err(wrong_files(format!("no role is written in `{}`", extra.name.escape_debug()))),
        None => Ok((agree(graph, program, &written)?, lines)),
    }
}

/// The tables hold more than the program: names, dtypes and positions that the runtime relies on, and
/// random operators. They follow from the graph, so they must be what would be written.
fn agree(graph: &Graph, program: Program, given: &Value) -> Result<Program> {
    if write::tables::agree(graph, &program, given) {
        return Ok(program);
    }
    Err(Error::new("SW0602", "the tables of `program.json` are not those of the model and the code")
        .at(TABLES)
        .why("names, dtypes, positions and random operators follow from the graph and the code")
        .fix("undo the edit, or compile again"))
}

fn file<'a>(files: &'a [File], name: &str) -> Result<&'a File> {
    let mut matching = files.iter().filter(|file| file.name == name);
    match (matching.next(), matching.next()) {
        (Some(file), None) => Ok(file),
        (None, _) => Err(wrong_files(format!("the file `{}` is missing", name.escape_debug()))),
        _ => Err(wrong_files(format!("the file `{}` is there twice", name.escape_debug()))),
    }
}

/// The runtime knows calls by what the tables call them.
fn other_calls(written: &LinesOfRole, listed: &[String]) -> Error {
    let differs = (0..).find(|at| written.calls.get(*at) != listed.get(*at)).unwrap_or(0);
    let name = |calls: &[String]| {
        calls.get(differs).map_or("none".into(), |name| format!("`{}`", name.escape_debug()))
    };
    let what = format!(
        "call {differs} of `{}` is {}, and {} in `program.json`",
        written.file().escape_debug(),
        name(&written.calls),
        name(listed)
    );
    Error::new("SW0602", what)
        .at(TABLES)
        .why("the key `calls` has the functions that a role calls, in their order, as the code does")
        .fix("call them in `program.json` what they are called in the code, or compile again")
}

fn wrong_files(what: String) -> Error {
    Error::new("SW0601", what)
        .why("program.json names the file of every role, and each belongs to it")
        .fix("keep the files of one program together, or compile again")
}
