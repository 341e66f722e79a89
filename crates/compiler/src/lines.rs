//! Where in the files of a program an error is: the file, the line, and what stands there.

use check::Fault;
use diag::Error;
use emit::{File, Lines};
use program::{CodeKey, Program};

/// The error of a fault, with the line of the instruction or operator, or else the file of its rank.
pub(crate) fn located(fault: &Fault, program: &Program, lines: &Lines, files: &[File]) -> Error {
    let mut error = Error::from(fault);
    if let Some(place) = written(fault, lines, files).or_else(|| file_of(fault, program, lines)) {
        error.place = Some(error.place.map_or(place.clone(), |rest| format!("{place}, {rest}")));
    }
    error
}

/// The error of a file that cannot be read, with what stands in its line.
pub(crate) fn quoted(mut error: Error, files: &[File]) -> Error {
    let place = error.place.as_deref().and_then(|place| place.rsplit_once(':'));
    let quote = place.and_then(|(file, line)| quote(files, file, line.parse().ok()?));
    if let (Some(quote), Some(place)) = (quote, &mut error.place) {
        place.push_str(&format!(": `{quote}`"));
    }
    error
}

fn written(fault: &Fault, lines: &Lines, files: &[File]) -> Option<String> {
    let place = fault.place?;
    let file = lines.file(place.role)?;
    let instr = lines.line(place.role, CodeKey { block: place.block, pass: place.pass }, place.index)?;
    let op = place.op.and_then(|op| instr.ops.get(op));
    let line = op.copied().unwrap_or(instr.line);
    let quote = quote(files, file, line)?;
    let called = op.map_or_else(String::new, |_| format!(", called in line {}", instr.line));
    Some(format!("{file}:{line}: `{quote}`{called}"))
}

fn file_of(fault: &Fault, program: &Program, lines: &Lines) -> Option<String> {
    let rank = fault.rank?;
    let role = program.roles.iter().position(|role| role.ranks.contains(&rank))?;
    lines.file(role).map(ToOwned::to_owned)
}

/// A line without its comment, which nothing reads.
fn quote<'a>(files: &'a [File], file: &str, line: u32) -> Option<&'a str> {
    let file = files.iter().find(|known| known.name == file)?;
    let text = file.text.lines().nth(line.checked_sub(1)? as usize)?.trim();
    let code = text.split("  # ").next().unwrap_or(text);
    (!code.is_empty()).then_some(code)
}
