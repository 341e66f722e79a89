//! Where a step that was measured takes longer than predicted is said, and a cluster like it is written.

use cluster::{Contention, Origin};
use compiler::{Compiled, Masters, Setting};
use diag::Result;
use graph::Graph;
use program::{Instr, Pass};
use report::page::RecordedFile;
use report::{ProfiledStep, profiled};
use rules::Analysis;
use serde_json::{Value, json};

use crate::made::GPT;

const CLUSTER: &str = "h200:4";

struct Made {
    graph: Graph,
    compiled: Compiled,
}

fn made(plan: &str) -> Made {
    let graph: Graph = GPT.parse().expect("a graph");
    let analysis = Analysis::new(&graph);
    let plan = plan::sets::named(plan, &graph, &analysis, 4).expect("a plan");
    let boundary = lower::loss(&graph, program::Inputs::Global);
    let compiled = compiler::compile(&graph, &analysis, &plan, &boundary).expect("a program");
    Made { graph, compiled }
}

impl Made {
    fn with<T>(&self, tell: impl FnOnce(&Setting<'_>) -> T) -> T {
        let (cluster, masters) = (cluster::named(CLUSTER).expect("a cluster"), Masters::new());
        let optimizer = "adamw";
        tell(&Setting { cluster: &cluster, batches: 1, optimizer, masters: &masters, compiled: false })
    }

    /// A recording of one step: each communication takes `times(entry)` of what is predicted, and calls are as given.
    fn recording(&self, times: impl Fn(&Value) -> f64, computed: &Value) -> Value {
        let files = &self.compiled.files;
        let text = self.with(|setting| compiler::communications(&self.graph, files, setting));
        let mut manifest: Value = serde_json::from_str(&text.expect("a manifest")).expect("JSON");
        for rank in manifest["roles"].as_array_mut().expect("ranks") {
            rank["measured_step_seconds"] = json!([1e-3]);
            rank["computed"] = computed.clone();
            for entry in rank["communications"].as_array_mut().expect("rows") {
                let seconds = entry["expected_seconds"].as_f64().expect("seconds") * times(entry);
                let start = entry["start_seconds"].clone();
                entry["measured"] =
                    json!({ "start_seconds": [start], "seconds": [seconds], "waited_seconds": [seconds] });
            }
        }
        manifest
    }

    fn profiled(&self, recording: &Value) -> Result<(Value, ProfiledStep)> {
        let file = RecordedFile { name: "steps.json".into(), text: recording.to_string() };
        let origin = Origin { device: "H200".into(), torch: "2.15".into(), threads: 1 };
        let files = &self.compiled.files;
        let found = self.with(|setting| profiled(&self.graph, files, setting, &file, origin))?;
        Ok((serde_json::from_str(&found.json).expect("JSON"), found))
    }

    /// All calls and their backwards, each of which takes as long.
    fn calls(&self, seconds: f64) -> Value {
        let body = &self.compiled.program.roles[0].body;
        let of = |instr: &Instr| match instr {
            Instr::Call(call) => Some(("forward", call.id.0)),
            Instr::Grad(grad) => Some(("backward", grad.call.0)),
            _ => None,
        };
        let call = |(pass, call): (&str, u32)| json!({ "pass": pass, "call": call, "seconds": [seconds], "lines": [] });
        body.instrs().filter_map(of).map(call).collect()
    }
}

fn words(data: &Value) -> Vec<&str> {
    data["words"].as_array().expect("words").iter().filter_map(Value::as_str).collect()
}

#[test]
fn a_slow_link_is_named_and_written() {
    let made = made("megatron");
    let (data, found) = made.profiled(&made.recording(|_| 50.0, &json!([]))).expect("a profile");
    let said = words(&data);
    assert!(said[0].starts_with("A step took 1.00 ms, "), "{said:?}");
    assert!(said[1].starts_with("All-reduces") && said[1].contains(" take 50.0 times what"), "{said:?}");
    assert_eq!(
        said[2],
        "The link inside of a node is slower than h200:4 says: all messages on it take 50.0 times what was predicted."
    );
    let measured = cluster::read(&found.cluster, "here.toml").expect("a cluster");
    let before = cluster::named(CLUSTER).expect("a cluster");
    let seconds = |it: &cluster::Cluster| {
        it.collective(cluster::Collective::AllReduce, &[0, 1, 2, 3], Contention(1), 1e6)
    };
    let times = seconds(&measured) / seconds(&before);
    assert!((times - 50.0).abs() < 0.01, "{times}");
    assert_eq!(measured.origin.expect("an origin").device, "H200");
}

#[test]
fn messages_that_are_slow_alone_are_told_from_a_slow_link() {
    let made = made("megatron");
    let is_one = |entry: &Value| {
        let of = entry["operator"].as_str().unwrap_or_default();
        entry["pass"] == "forward" && of.contains("\"h.0.mlp") || of.contains("\"h.1.mlp")
    };
    let times = |entry: &Value| if is_one(entry) { 50.0 } else { 1.0 };
    let (data, _) = made.profiled(&made.recording(times, &json!([]))).expect("a profile");
    let said = words(&data);
    assert!(said[1].starts_with("All-reduces of h.*.mlp"), "{said:?}");
    assert_eq!(
        said[2],
        "All other messages on the link inside of a node take 1.0 times what was predicted: it is these alone."
    );
}

#[test]
fn slow_devices_are_named() {
    let made = made("megatron");
    let (data, _) = made.profiled(&made.recording(|_| 1.0, &made.calls(0.01))).expect("a profile");
    let said = words(&data);
    assert!(said[1].contains(" times what was predicted, ") && said[1].contains(" takes "), "{said:?}");
    assert!(said[2].starts_with("The devices are slower than h200:4 says: all modules take "), "{said:?}");
    let slower = data["slower"]["devices"]["h200"].as_f64().expect("a number");
    assert!(slower > 1.25 && data["slower"]["inside"] == json!(1.0), "{slower}");
}

#[test]
fn a_line_is_of_the_module_that_stands_in_it() {
    let made = made("data");
    let (program, lines) = emit::read_with_lines(&made.graph, &made.compiled.files).expect("a program");
    let code = program.roles[0].body.codes.iter().find(|it| it.pass == Pass::Forward).expect("a code");
    let at = code.instrs.iter().position(|it| matches!(it, Instr::Call(_))).expect("a call");
    let Instr::Call(call) = &code.instrs[at] else { panic!("it is a call") };
    let of = lines.line(0, code.key(), at).expect("lines");
    let last = call.ops.len() - 1;
    let module = &made.graph.op(call.ops[last].op).module;
    let computed = json!([{
        "pass": "forward", "call": call.id.0, "seconds": [0.5], "lines": [[0, 1.0], [of.ops[last], 3.0]],
    }]);
    let (data, _) = made.profiled(&made.recording(|_| 1.0, &computed)).expect("a profile");
    let entries = data["entries"].as_array().expect("rows");
    let measured: Vec<&Value> = entries
        .iter()
        .filter(|it| it["kind"] == "computation" && it["measured"].as_f64().is_some_and(|it| it > 0.0))
        .collect();
    assert_eq!(measured.len(), 1, "{measured:?}");
    assert_eq!(measured[0]["module"], json!(module));
    // A quarter of the call was around it.
    assert!((measured[0]["measured"].as_f64().expect("seconds") - 0.375).abs() < 1e-9);
}

#[test]
fn what_was_recorded_of_another_program_is_refused() {
    let made = made("megatron");
    let code = |recording: &Value| made.profiled(recording).expect_err("an error").code;
    let foreign = json!([{ "pass": "forward", "call": 999, "seconds": [1.0], "lines": [] }]);
    assert_eq!(code(&made.recording(|_| 1.0, &foreign)), "SW0933");
    let mut other = made.recording(|_| 1.0, &json!([]));
    other["world"] = json!(8);
    assert_eq!(code(&other), "SW0933");
    assert_eq!(code(&made.recording(|_| 1.0, &json!([{ "pass": "forward" }]))), "SW0932");
}
