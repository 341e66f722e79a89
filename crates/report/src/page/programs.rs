//! The emitted program: its files, and where in them each instruction stands.

use diag::Result;
use serde_json::{Value, json};

use super::Subject;

/// So many bytes of emitted code are shown. Of more there are the first files.
const MOST: usize = 1 << 20;

pub(super) fn programs(subject: &Subject<'_>) -> Result<Value> {
    let files = &subject.compiled.files;
    let (program, lines) = emit::read_with_lines(subject.graph, files)?;
    let text = |name: &str| files.iter().find(|file| file.name == name).map_or("", |file| &file.text);
    let mut shown = 0;
    let roles: Vec<Value> = program
        .roles
        .iter()
        .enumerate()
        .map(|(number, role)| {
            let name = lines.file(number).unwrap_or_default();
            shown += text(name).len();
            let is_shown = shown <= MOST;
            let of_code = |code: &program::Code| {
                let of_instr = |at: usize| lines.line(number, code.key(), at);
                (0..code.instrs.len())
                    .map(|at| of_instr(at).map_or_else(|| json!(0), line))
                    .collect::<Vec<_>>()
            };
            json!({
                "file": name,
                "ranks": super::tracks::ranges(&role.ranks),
                "text": is_shown.then(|| text(name)),
                "lines": is_shown.then(|| role.body.codes.iter().map(of_code).collect::<Vec<_>>()),
            })
        })
        .collect();
    Ok(json!({ "roles": roles }))
}

/// The line of an instruction, with those of the operators that it calls behind it.
fn line(instr: &emit::Line) -> Value {
    if instr.ops.is_empty() {
        return json!(instr.line);
    }
    json!(std::iter::once(instr.line).chain(instr.ops.iter().copied()).collect::<Vec<u32>>())
}
