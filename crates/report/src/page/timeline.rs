//! Who does what when.

use std::collections::BTreeMap;

use graph::{Graph, OpId};
use program::{Body, CallId, Instr, Kind, Program};
use serde_json::{Value, json};

use super::Subject;
use super::path::path;
use super::patterns::{Sort, code};
use super::tracks::Tracks;

pub(super) fn timeline(subject: &Subject<'_>, rewritten: &Graph, tracks: &Tracks) -> Value {
    let program = &subject.compiled.program;
    let moved = moved(subject, tracks);
    json!({
        "seconds": subject.step.estimate.simulation.seconds,
        "ticks_per_second": subject.clock().ticks_per_second,
        "sorts": Sort::NAMES,
        "kinds": Kind::ALL.iter().map(|kind| kind.name()).collect::<Vec<_>>(),
        "all_slices": !tracks.patterns.is_short,
        "codes": (0..program.roles.len()).map(|role| codes(program, rewritten, role, &moved)).collect::<Vec<_>>(),
        "slices": tracks.patterns.slices.all,
        "parts": tracks.patterns.parts.all,
        "path": path(subject, tracks),
        "tasks": tracks.iter().map(|track| track.tasks.concat()).collect::<Vec<_>>(),
    })
}

/// What a communication moves, by role, code and instruction.
type Moved = BTreeMap<(usize, i64, usize), Sent>;

#[derive(Clone, Copy)]
struct Sent {
    /// The operator whose value it is.
    op: Option<OpId>,
    bytes: u64,
    /// Of the link, in thousandths.
    share: i64,
}

fn moved(subject: &Subject<'_>, tracks: &Tracks) -> Moved {
    let program = &subject.compiled.program;
    let simulation = &subject.step.estimate.simulation;
    let mut moved = Moved::new();
    for track in tracks.iter() {
        for part in &simulation.parts[track.at] {
            let message = &simulation.messages[part.message];
            let share = (message.share * 1e3).round() as i64;
            let sent = Sent { op: part.op, bytes: message.bytes, share };
            moved.insert((track.role, code(program, track.role, part.block, part.pass), part.instr), sent);
        }
    }
    moved
}

/// Of a role: block, pass, of each instruction its kind, its first operator or -1, and how many it has. By their numbers,
/// of instructions whose operators do not follow each other, all of them; of those that communicate, the bytes and the
/// share of the link.
fn codes(program: &Program, rewritten: &Graph, role: usize, moved: &Moved) -> Vec<Value> {
    let body = &program.roles[role].body;
    let calls: BTreeMap<CallId, Vec<OpId>> =
        body.calls().map(|call| (call.id, call.ops.iter().map(|op| op.op).collect())).collect();
    let json = |(at, code): (usize, &program::Code)| {
        let instr = |(number, instr): (usize, &Instr)| {
            let mut ops = operators(rewritten, body, &calls, instr);
            if ops.is_empty() {
                ops.extend(moved.get(&(role, at as i64, number)).and_then(|sent| sent.op));
            }
            (instr.kind() as i64, ops)
        };
        let instrs: Vec<(i64, Vec<OpId>)> = code.instrs.iter().enumerate().map(instr).collect();
        let apart: serde_json::Map<String, Value> = (instrs.iter().enumerate())
            .filter(|(_, (_, ops))| ops.windows(2).any(|pair| pair[1].0 != pair[0].0 + 1))
            .map(|(number, (_, ops))| (number.to_string(), ops.iter().map(|op| op.0).collect()))
            .collect();
        let first = |ops: &[OpId]| ops.first().map_or(-1, |op| i64::from(op.0));
        let instrs: Vec<i64> =
            instrs.iter().flat_map(|(kind, ops)| [*kind, first(ops), ops.len() as i64]).collect();
        let of_code = moved.range((role, at as i64, 0)..(role, at as i64 + 1, 0));
        let sent: serde_json::Map<String, Value> =
            of_code.map(|((_, _, number), it)| (number.to_string(), json!([it.bytes, it.share]))).collect();
        json!({ "block": code.block, "pass": code.pass.name(), "instrs": instrs, "apart": apart, "sent": sent })
    };
    body.codes.iter().enumerate().map(json).collect()
}

/// The operators that an instruction computes, or of which it copies the result.
fn operators(
    rewritten: &Graph,
    body: &Body,
    calls: &BTreeMap<CallId, Vec<OpId>>,
    instr: &Instr,
) -> Vec<OpId> {
    match instr {
        Instr::Call(call) => calls.get(&call.id).cloned().unwrap_or_default(),
        Instr::Grad(grad) => calls.get(&grad.call).cloned().unwrap_or_default(),
        Instr::Slice(_) | Instr::Add { .. } => {
            let producer = |written| Some(rewritten.producer(body.buf(written).tensor)?.0);
            instr.writes().next().and_then(producer).into_iter().collect()
        }
        _ => vec![],
    }
}
