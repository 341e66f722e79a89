//! Who does what when.

use std::collections::BTreeMap;

use graph::{Graph, OpId};
use program::{Body, CallId, Instr, Kind, Program};
use serde_json::{Value, json};

use super::Subject;
use super::path::path;
use super::patterns::{Sort, code};
use super::rows::Rows;

pub(super) fn timeline(subject: &Subject<'_>, rewritten: &Graph, rows: &Rows) -> Value {
    let program = &subject.compiled.program;
    let moved = moved(subject, rows);
    json!({
        "seconds": subject.step.estimate.simulation.seconds,
        "sorts": Sort::NAMES,
        "kinds": Kind::ALL.iter().map(|kind| kind.name()).collect::<Vec<_>>(),
        "all_slices": !rows.patterns.is_short,
        "codes": (0..program.roles.len()).map(|role| codes(program, rewritten, role, &moved)).collect::<Vec<_>>(),
        "slices": rows.patterns.slices.all,
        "parts": rows.patterns.parts.all,
        "path": path(subject, rows),
        "turns": rows.iter().map(|row| row.turns.concat()).collect::<Vec<_>>(),
    })
}

/// The operator whose value a communication moves, by role, code and instruction.
type Moved = BTreeMap<(usize, i64, usize), OpId>;

fn moved(subject: &Subject<'_>, rows: &Rows) -> Moved {
    let program = &subject.compiled.program;
    let parts = |at: usize| &subject.step.estimate.simulation.parts[at];
    let all = rows.iter().flat_map(|row| parts(row.at).iter().map(|part| (row.role, part)));
    all.filter_map(|(role, part)| {
        Some(((role, code(program, role, part.block, part.pass), part.instr), part.op?))
    })
    .collect()
}

/// Of a role: block, pass, and of each instruction its kind, its first operator or -1, and how many it has.
fn codes(program: &Program, rewritten: &Graph, role: usize, moved: &Moved) -> Vec<Value> {
    let body = &program.roles[role].body;
    let calls: BTreeMap<CallId, (OpId, usize)> =
        body.calls().filter_map(|call| Some((call.id, (call.ops.first()?.op, call.ops.len())))).collect();
    let told = |(at, code): (usize, &program::Code)| {
        let instr = |(number, instr): (usize, &Instr)| {
            let known = || moved.get(&(role, at as i64, number)).map(|op| (*op, 1));
            let found = operators(rewritten, body, &calls, instr).or_else(known);
            let (first, count) = found.map_or((-1, 0), |(op, count)| (i64::from(op.0), count as i64));
            [instr.kind() as i64, first, count]
        };
        let instrs: Vec<i64> = code.instrs.iter().enumerate().flat_map(instr).collect();
        json!({ "block": code.block, "pass": code.pass.name(), "instrs": instrs })
    };
    body.codes.iter().enumerate().map(told).collect()
}

/// The first operator of what an instruction computes or copies, and how many it computes.
fn operators(
    rewritten: &Graph,
    body: &Body,
    calls: &BTreeMap<CallId, (OpId, usize)>,
    instr: &Instr,
) -> Option<(OpId, usize)> {
    match instr {
        Instr::Call(call) => calls.get(&call.id).copied(),
        Instr::Grad(grad) => calls.get(&grad.call).copied(),
        Instr::Slice(_) | Instr::Add { .. } => {
            let written = instr.writes().next()?;
            Some((rewritten.producer(body.buf(written).tensor)?.0, 1))
        }
        _ => None,
    }
}
