//! Text to a program.
//!
//! What a program computes is read from the text alone. Two things are only hints, found by looking
//! for the operators of the graph that the code matches: [`program::LocalOp::op`] and the tensor of
//! a buf inside a call. A hint that is not found is `u32::MAX`.
//!
//! [`reader`] is what is known while a role is read. On it stand [`code`], which reads the functions
//! that calls run, [`methods`], which reads instructions, and [`body`], which reads a whole role.

mod body;
mod code;
mod hints;
mod json;
mod methods;
mod reader;
mod tables;

use diag::{Error, Result};
use graph::Graph;
use program::{Program, Role};

use crate::File;

const TABLES: &str = "program.json";

pub(crate) fn program(graph: &Graph, files: &[File]) -> Result<Program> {
    let text = &file(files, TABLES)?.text;
    let tables = tables::read(graph, text)?;
    let mut program = tables.program;
    for role in tables.roles {
        let text = &file(files, &role.file)?.text;
        let body = body::read(graph, &program, &role, text)?;
        program.roles.push(Role { ranks: role.ranks, tables: role.tables, body });
    }
    let known = |file: &&File| file.name != TABLES && !tables.files.contains(&file.name);
    match files.iter().find(known) {
        Some(extra) => Err(wrong_files(format!("no role is written in `{}`", extra.name.escape_debug()))),
        None => Ok(program),
    }
}

fn file<'a>(files: &'a [File], name: &str) -> Result<&'a File> {
    let mut found = files.iter().filter(|file| file.name == name);
    match (found.next(), found.next()) {
        (Some(file), None) => Ok(file),
        (None, _) => Err(wrong_files(format!("the file `{}` is missing", name.escape_debug()))),
        _ => Err(wrong_files(format!("the file `{}` is there twice", name.escape_debug()))),
    }
}

fn wrong_files(what: String) -> Error {
    Error::new("SW0601", what)
        .why("program.json names the file of every role, and each belongs to it")
        .fix("keep the files of one program together, or compile again")
}
