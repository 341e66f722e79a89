//! A step as a timeline, in the format of Chrome's traces, which Perfetto opens: a process for each rank, with what it
//! computes, what it communicates, and what it holds.

use graph::{Graph, OpId};
use program::Program;
use serde_json::{Value, json};

use crate::{HeldMemory, Scene, Simulation, Span, What};

const COMPUTES: u32 = 0;
const COMMUNICATES: u32 = 1;

/// `graph` is the one that the program's numbers are of.
pub fn trace(scene: &Scene<'_>, graph: &Graph, simulation: &Simulation, held: &[HeldMemory]) -> String {
    let mut events = vec![];
    for (at, lane) in simulation.ranks.iter().enumerate() {
        let spans: Vec<&Span> = simulation.spans.iter().filter(|span| span.rank == lane.rank).collect();
        if spans.is_empty() {
            continue;
        }
        let rank = lane.rank.0;
        events.push(named("process_name", rank, COMPUTES, &format!("rank {rank}")));
        events.push(named("thread_name", rank, COMPUTES, "computes"));
        events.push(named("thread_name", rank, COMMUNICATES, "communicates"));
        let operator = |span: &Span| of_span(scene, graph, at, span);
        events.extend(spans.into_iter().map(|span| computed(span, &operator(span))));
        events.extend(simulation.parts[at].iter().map(|part| {
            let message = &simulation.messages[part.message];
            let group: Vec<u32> = message.group.iter().map(|rank| rank.0).collect();
            json!({
                "name": part.kind.name(),
                "cat": part.pass.name(),
                "ph": "X",
                "pid": rank,
                "tid": COMMUNICATES,
                "ts": micro(message.start),
                "dur": micro(message.end - message.start),
                "args": {
                    "operator": part.op.map(|op| graph.describe(op)),
                    "bytes": message.bytes,
                    "group": group,
                    "block": part.block,
                    "micro_batch": part.batch,
                    "exposed_us": micro(part.exposed),
                },
            })
        }));
    }
    events.extend(held.iter().flat_map(counted));
    json!({ "traceEvents": events, "displayTimeUnit": "ms" }).to_string()
}

/// What a rank holds, as a counter.
fn counted(held: &HeldMemory) -> Vec<Value> {
    let event = |stretch: &crate::Stretch| {
        json!({
            "name": "memory",
            "ph": "C",
            "pid": held.rank.0,
            "ts": micro(stretch.start),
            "args": { "bytes": stretch.bytes },
        })
    };
    held.over.iter().map(event).collect()
}

fn named(what: &str, rank: u32, lane: u32, name: &str) -> Value {
    json!({ "name": what, "ph": "M", "pid": rank, "tid": lane, "args": { "name": name } })
}

fn computed(span: &Span, operator: &str) -> Value {
    let name = match span.what {
        What::Wait => "waits".to_owned(),
        What::Update => "optimizer".to_owned(),
        What::Instr(kind, instr) => format!("{} {instr}", kind.name()),
    };
    json!({
        "name": name,
        "cat": span.pass.name(),
        "ph": "X",
        "pid": span.rank.0,
        "tid": COMPUTES,
        "ts": micro(span.start),
        "dur": micro(span.end - span.start),
        "args": {
            "operator": operator,
            "pass": span.pass.name(),
            "block": span.block,
            "micro_batch": span.batch,
        },
    })
}

/// The operator with which what a rank does begins.
fn of_span(scene: &Scene<'_>, graph: &Graph, at: usize, span: &Span) -> String {
    let What::Instr(_, instr) = span.what else { return String::new() };
    let rank_trace = &scene.rank_traces[at];
    let op = first(scene.program, rank_trace.role, span)
        .and_then(|first| rank_trace.instr_costs[first + instr].op);
    op.map_or_else(String::new, |op: OpId| graph.describe(op))
}

/// The number of the first instruction of a span's code.
fn first(program: &Program, role: usize, span: &Span) -> Option<usize> {
    let codes = &program.roles[role].body.codes;
    let at = codes.iter().position(|code| (code.block, code.pass) == (span.block, span.pass))?;
    Some(codes[..at].iter().map(|code| code.instrs.len()).sum())
}

fn micro(seconds: f64) -> f64 {
    (seconds * 1e9).round() / 1e3
}
