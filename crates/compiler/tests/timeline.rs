//! The timeline of a step: what viewers of Chrome's traces rest on, and that its figures are those of the simulation.

use std::collections::BTreeMap;

use check::Masters;
use compiler::{Compiled, Setting, SimulatedStep};
use graph::Graph;
use plan::sets;
use program::Kind;
use rules::Analysis;
use serde_json::Value;

const GPT: &str = include_str!("../../../tests/python/golden/gpt.graph");

/// A plan, its devices, a cluster, and micro-batches.
const PLANS: &[(&str, u32, &str, u32)] = &[
    ("replicate", 1, "h100:1", 1),
    ("data:2 x megatron:2", 4, "dgx-h100:2x2", 3),
    ("zero3", 4, "h200:4", 2),
    ("zero3 x offload", 4, "h200:4", 2),
    ("data x recompute", 2, "h200:2", 2),
    ("stages:4 x 1f1b", 4, "h100:4", 8),
    ("stages:2 x data:2 x gpipe", 4, "dgx-h100:2x2", 4),
    ("stages:2 x zb-h1 x data:2", 4, "ethernet-25g:2x2", 4),
    ("stages:2 x interleaved:2", 2, "h100:2", 4),
];

struct Traced {
    compiled: Compiled,
    step: SimulatedStep,
    events: Vec<Value>,
}

fn traced(&(plan, devices, cluster, batches): &(&str, u32, &str, u32)) -> Traced {
    let graph: Graph = GPT.parse().expect("it parses");
    let analysis = Analysis::new(&graph);
    let plan = sets::named(plan, &graph, &analysis, devices).expect("a plan");
    let boundary = lower::loss(&graph, program::Inputs::Global);
    let compiled = compiler::compile(&graph, &analysis, &plan, &boundary).expect("it compiles");
    let (cluster, masters) = (cluster::named(cluster).expect("a cluster"), Masters::new());
    let setting =
        Setting { cluster: &cluster, batches, optimizer: "adamw", masters: &masters, compiled: false };
    let step = compiler::step(&graph, &analysis, &plan, &compiled, &setting, true).expect("a step");
    let trace: Value = serde_json::from_str(step.trace.as_ref().expect("a timeline")).expect("JSON");
    let events = trace["traceEvents"].as_array().expect("events").clone();
    Traced { compiled, step, events }
}

impl Traced {
    fn events_with<'t>(&'t self, phase: &'t str) -> impl Iterator<Item = &'t Value> {
        self.events.iter().filter(move |event| event["ph"] == phase)
    }

    /// Of each track its slices, as their starts and ends in nanoseconds.
    fn tracks(&self) -> BTreeMap<(u64, u64), Vec<(i64, i64)>> {
        let mut tracks: BTreeMap<(u64, u64), Vec<(i64, i64)>> = BTreeMap::new();
        for slice in self.events_with("X") {
            let start = nano(&slice["ts"]);
            tracks.entry(track(slice)).or_default().push((start, start + nano(&slice["dur"])));
        }
        tracks.values_mut().for_each(|slices| slices.sort_unstable());
        tracks
    }
}

fn track(event: &Value) -> (u64, u64) {
    (event["pid"].as_u64().expect("a process"), event["tid"].as_u64().expect("a track"))
}

fn nano(micro: &Value) -> i64 {
    let nano = micro.as_f64().expect("a number") * 1e3;
    assert!((nano - nano.round()).abs() < 1e-3, "{micro} is no whole number of nanoseconds");
    nano.round() as i64
}

#[test]
fn no_two_slices_of_a_track_overlap() {
    for plan in PLANS {
        let traced = traced(plan);
        let end = (traced.step.estimate.simulation.seconds * 1e9).round() as i64;
        for (track, slices) in traced.tracks() {
            for two in slices.windows(2) {
                assert!(two[0].1 <= two[1].0, "{plan:?}: {two:?} of {track:?}");
            }
            assert!(slices.iter().all(|(from, to)| 0 <= *from && from <= to && *to <= end), "{plan:?}");
        }
    }
}

#[test]
fn every_message_is_an_arrow_between_two_slices() {
    for plan in PLANS {
        let traced = traced(plan);
        let tracks = traced.tracks();
        let is_in_a_slice = |event: &Value| {
            let at = nano(&event["ts"]);
            tracks[&track(event)].iter().any(|(from, to)| *from <= at && at < (*to).max(from + 1))
        };
        let ends = |phase: &'static str| -> BTreeMap<u64, &Value> {
            let all: Vec<&Value> = traced.events_with(phase).collect();
            let by_id: BTreeMap<u64, &Value> =
                all.iter().map(|event| (event["id"].as_u64().expect("a number"), *event)).collect();
            assert_eq!(by_id.len(), all.len(), "{plan:?}: each arrow has one end");
            by_id
        };
        let (from, to) = (ends("s"), ends("f"));
        assert!(from.keys().eq(to.keys()), "{plan:?}");
        for (sent, received) in from.values().zip(to.values()) {
            assert!(is_in_a_slice(sent) && is_in_a_slice(received), "{plan:?}: {sent} {received}");
            assert!(sent["pid"] != received["pid"] && nano(&sent["ts"]) <= nano(&received["ts"]));
        }
        let parts = traced.step.estimate.simulation.parts.iter().flatten();
        assert_eq!(from.len(), parts.filter(|part| part.kind == Kind::Send).count(), "{plan:?}");
        assert_eq!(plan.0.contains("stages"), !from.is_empty(), "{plan:?}");
    }
}

#[test]
fn counters_are_those_of_the_simulation() {
    for plan in PLANS {
        let traced = traced(plan);
        let mut counters: BTreeMap<(u64, &str), Vec<(i64, i64)>> = BTreeMap::new();
        for event in traced.events_with("C") {
            let bytes = event["args"]["bytes"].as_i64().expect("bytes");
            let key = (event["pid"].as_u64().expect("a rank"), event["name"].as_str().expect("a name"));
            counters.entry(key).or_default().push((nano(&event["ts"]), bytes));
        }
        assert!(counters.values().flatten().all(|(_, bytes)| *bytes >= 0), "{plan:?}");
        for ((rank, name), over) in &counters {
            assert!(over.windows(2).all(|two| two[0].0 < two[1].0), "{plan:?}: {name}");
            if *name == "memory" {
                let most = over.iter().map(|(_, bytes)| *bytes).max();
                let held = traced.step.held.iter().find(|held| u64::from(held.rank.0) == *rank);
                let shown = held.and_then(|held| held.over.iter().map(|stretch| stretch.bytes).max());
                assert_eq!(most, shown.map(|bytes| bytes as i64), "{plan:?}: rank {rank}");
                // The memory of a rank also counts what takes no time, and is that of a shorter step.
                let total = traced.step.estimate.memory[*rank as usize].total() as f64;
                assert!((most.unwrap_or(0) as f64 / total - 1.0).abs() < 0.01, "{plan:?}: rank {rank}");
            } else {
                assert_eq!(over.last().map(|(_, bytes)| *bytes), Some(0), "{plan:?}: {name}");
                assert!(over.iter().any(|(_, bytes)| *bytes > 0), "{plan:?}: {name}");
            }
        }
        let ranks = traced.step.estimate.simulation.ranks.len();
        let memories = counters.keys().filter(|(_, name)| *name == "memory").count();
        assert_eq!(memories, ranks, "{plan:?}: every rank has its memory");
        let messages = traced.step.estimate.simulation.messages.len();
        assert_eq!(messages > 0, counters.len() > memories, "{plan:?}: what is sent is in flight");
    }
}

#[test]
fn slices_are_called_by_module_and_emitted_function() {
    for plan in PLANS {
        let traced = traced(plan);
        let emitted: String = traced.compiled.files.iter().map(|file| &file.text[..]).collect();
        let mut calls = 0;
        for slice in traced.events_with("X").filter(|slice| slice["tid"] == 0) {
            let name = slice["name"].as_str().expect("a name");
            let Some((module, rest)) = name.split_once(": ") else {
                assert!(Kind::of_method(name).is_some() || ["waits", "optimizer"].contains(&name), "{name}");
                continue;
            };
            let function = rest.split(", ").next().expect("a word");
            let is_call = emitted.contains(&format!("def {function}("));
            assert!(!module.is_empty() && (is_call || Kind::of_method(function).is_some()), "{name}");
            calls += usize::from(is_call);
        }
        assert!(calls > 0, "{plan:?}");
    }
}
