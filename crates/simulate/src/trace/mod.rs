//! A step as a timeline, in the format of Chrome's traces, which Perfetto opens: a process for each rank, with what it
//! computes, what it communicates, and, as counters, its memory and the bytes in flight on its links.
//!
//! Slices of a track never overlap. Starts and ends are rounded to the nanosecond each by itself, so what begins when
//! another ends does so in the trace, too. Communications that go on at the same time have tracks of their own.

mod counters;
mod names;
mod tracks;

use std::collections::BTreeMap;

use graph::Graph;
use program::Kind;
use serde_json::{Value, json};

use crate::{HeldMemory, Message, Scene, Simulation, Span, TakesPart, What};
use names::SliceNames;
use tracks::{Track, Tracks};

pub use names::Functions;

/// `graph` is the one that the program's numbers are of.
pub fn trace(
    scene: &Scene<'_>,
    graph: &Graph,
    functions: &Functions,
    simulation: &Simulation,
    held: &[HeldMemory],
) -> String {
    let names = SliceNames::new(scene, graph, functions);
    let (mut events, mut flows) = (vec![], Flows::default());
    for (at, lane) in simulation.ranks.iter().enumerate() {
        let spans: Vec<&Span> = simulation.spans.iter().filter(|span| span.rank == lane.rank).collect();
        if spans.is_empty() {
            continue;
        }
        let tracks = Tracks::laid_out(scene, simulation, at);
        events.extend(tracks.titles(lane.rank.0));
        events.extend(spans.into_iter().map(|span| computed(span, at, &names)));
        for (part, track) in &tracks.parts {
            let message = &simulation.messages[part.message];
            let place = SlicePlace { rank: lane.rank.0, track: *track };
            flows.passes(part, message, place);
            events.push(communicated(part, message, place, &names));
        }
        events.extend(counters::in_flight(scene, simulation, at));
    }
    events.extend(flows.events());
    events.extend(held.iter().flat_map(counters::memory));
    let about = json!({
        "model": scene.program.model,
        "plan": scene.program.plan,
        "cluster": scene.cluster.name,
        "micro_batches": scene.batches,
        "step_us": micro(nano(simulation.seconds)),
    });
    json!({ "traceEvents": events, "displayTimeUnit": "ms", "otherData": about }).to_string()
}

/// Where a slice is.
#[derive(Clone, Copy)]
struct SlicePlace {
    rank: u32,
    track: Track,
}

fn computed(span: &Span, at: usize, names: &SliceNames<'_>) -> Value {
    let (ts, dur) = stretch(span.start, span.end);
    json!({
        "name": names.of_span(at, span),
        "cat": span.pass.name(),
        "ph": "X",
        "pid": span.rank.0,
        "tid": Track::COMPUTES.number(),
        "ts": ts,
        "dur": dur,
        "args": {
            "instruction": match span.what {
                What::Instr(kind, _) => Some(kind.name()),
                What::Wait | What::Update => None,
            },
            "operator": names.operator_of(at, span),
            "pass": span.pass.name(),
            "block": span.block,
            "micro_batch": span.batch,
        },
    })
}

fn communicated(part: &TakesPart, message: &Message, place: SlicePlace, names: &SliceNames<'_>) -> Value {
    let (ts, dur) = stretch(message.start, message.end);
    let group: Vec<u32> = message.group.iter().map(|rank| rank.0).collect();
    json!({
        "name": part.kind.name(),
        "cat": part.pass.name(),
        "ph": "X",
        "pid": place.rank,
        "tid": place.track.number(),
        "ts": ts,
        "dur": dur,
        "args": {
            "operator": part.op.map(|op| names.graph.describe(op)),
            "bytes": message.bytes,
            "dtype": message.dtype.map(graph::Dtype::short),
            "group": group,
            "block": part.block,
            "micro_batch": part.batch,
            "exposed_us": micro(nano(part.exposed)),
        },
    })
}

/// Arrows from where a message is sent to where it is received, by message: only where both are drawn.
#[derive(Default)]
struct Flows {
    ends: BTreeMap<usize, (Option<Value>, Option<Value>)>,
}

impl Flows {
    fn passes(&mut self, part: &TakesPart, message: &Message, place: SlicePlace) {
        let (start, end) = (nano(message.start), nano(message.end));
        let event = |phase: &str, at: i64| {
            json!({
                "name": "message",
                "cat": "message",
                "ph": phase,
                "id": part.message,
                "pid": place.rank,
                "tid": place.track.number(),
                "ts": micro(at),
            })
        };
        match part.kind {
            Kind::Send => self.ends.entry(part.message).or_default().0 = Some(event("s", start)),
            Kind::Receive => {
                // In the last moment of the slice: at its end there is none that the arrow could point to.
                let mut last = event("f", start.max(end - 1));
                last["bp"] = json!("e");
                self.ends.entry(part.message).or_default().1 = Some(last);
            }
            _ => {}
        }
    }

    fn events(self) -> impl Iterator<Item = Value> {
        self.ends.into_values().filter_map(|(from, to)| Some([from?, to?])).flatten()
    }
}

/// Nanoseconds on the clock of the step.
fn nano(seconds: f64) -> i64 {
    (seconds * 1e9).round() as i64
}

/// The unit of the format.
fn micro(nanoseconds: i64) -> f64 {
    nanoseconds as f64 / 1e3
}

/// Where a slice begins and how long it is.
fn stretch(start: f64, end: f64) -> (f64, f64) {
    let (start, end) = (nano(start), nano(end));
    (micro(start), micro(end - start))
}
