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

/// Of a role: block, pass, of each instruction its kind, its first operator or -1, and how many it has; and of those that
/// communicate by their numbers the bytes and the share of the link.
fn codes(program: &Program, rewritten: &Graph, role: usize, moved: &Moved) -> Vec<Value> {
    let body = &program.roles[role].body;
    let calls: BTreeMap<CallId, (OpId, usize)> =
        body.calls().filter_map(|call| Some((call.id, (call.ops.first()?.op, call.ops.len())))).collect();
    let json = |(at, code): (usize, &program::Code)| {
        let instr = |(number, instr): (usize, &Instr)| {
            let known = || Some((moved.get(&(role, at as i64, number))?.op?, 1));
            let named = operators(rewritten, body, &calls, instr).or_else(known);
            let (first, count) = named.map_or((-1, 0), |(op, count)| (i64::from(op.0), count as i64));
            [instr.kind() as i64, first, count]
        };
        let instrs: Vec<i64> = code.instrs.iter().enumerate().flat_map(instr).collect();
        let of_code = moved.range((role, at as i64, 0)..(role, at as i64 + 1, 0));
        let sent: serde_json::Map<String, Value> =
            of_code.map(|((_, _, number), it)| (number.to_string(), json!([it.bytes, it.share]))).collect();
        json!({ "block": code.block, "pass": code.pass.name(), "instrs": instrs, "sent": sent })
    };
    body.codes.iter().enumerate().map(json).collect()
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
