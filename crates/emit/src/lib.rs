//! Programs as text: one Python file for each kind of rank, and `program.json` beside them.
//!
//! [`emit`] writes what `docs/reference/emitted-program.md` describes; [`read()`] gives the program back from the
//! text alone, so that what is proved is what runs. Nothing of a model's or a plan's strings can run
//! as code: names become identifiers, everything else stands in escaped literals and comments.
//!
//! It knows no plans, and nothing of how a program was made; of rules which graph rewritings give, and for comments
//! how values lie.

mod canonical;
mod hints;
mod leaves;
mod lines;
mod names;
mod python;
mod read;
mod rows;
mod templates;
mod write;

use diag::Result;
use graph::Graph;
use program::Program;

pub use canonical::canonical;
pub use lines::{Line, Lines};
pub use templates::{call, templates};

/// One file of an emitted program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Without folders.
    pub name: String,
    pub text: String,
}

/// The files of a program of the model: one for each role, then `program.json`.
pub fn emit(model: &Graph, program: &Program) -> Result<Vec<File>> {
    Ok(write::files(model, &program.rewritten(model)?, program))
}

/// The program of the model that these files are the text of.
///
/// It equals the program that was emitted, except for names of bufs and for what only guesses can
/// tell: the operators of sub-operators, and the tensors of bufs inside calls. Bufs are numbered in
/// the order in which the text defines them.
pub fn read(model: &Graph, files: &[File]) -> Result<Program> {
    Ok(read_with_lines(model, files)?.0)
}

/// The same, with the lines of the text in which its instructions stand.
pub fn read_with_lines(model: &Graph, files: &[File]) -> Result<(Program, Lines)> {
    read::program(model, files)
}
