//! Pages of small plans.

use compiler::{Masters, Setting, SimulatedStep};
use diag::Result;
use graph::Graph;
use report::page::{About, Candidate, Compared, RecordedFile, Subject, data};
use rules::Analysis;
use serde_json::Value;

pub const GPT: &str = include_str!("../../../../tests/python/golden/gpt.graph");

/// A GPT under a plan on four devices, and what was simulated.
pub fn page(plan: &str, batches: u32) -> (Value, SimulatedStep) {
    page_of(GPT, plan, 4, "h200:4", batches)
}

/// The same with a recording beside it.
pub fn recorded(plan: &str, batches: u32, text: String) -> Result<Value> {
    let recorded = Some(RecordedFile { name: "steps.json".into(), text });
    Ok(made(GPT, plan, 4, "h200:4", batches, recorded)?.0)
}

pub fn page_of(text: &str, plan: &str, devices: u32, cluster: &str, batches: u32) -> (Value, SimulatedStep) {
    made(text, plan, devices, cluster, batches, None).expect("a page")
}

fn made(
    text: &str,
    plan: &str,
    devices: u32,
    cluster: &str,
    batches: u32,
    recorded: Option<RecordedFile>,
) -> Result<(Value, SimulatedStep)> {
    let graph: Graph = text.parse().expect("a graph");
    let analysis = Analysis::new(&graph);
    let plan = plan::sets::named(plan, &graph, &analysis, devices).expect("a plan");
    let boundary = lower::loss(&graph, program::Inputs::Global);
    let compiled = compiler::compile(&graph, &analysis, &plan, &boundary).expect("a program");
    let (cluster, masters) = (cluster::named(cluster).expect("a cluster"), Masters::new());
    let setting =
        Setting { cluster: &cluster, batches, optimizer: "adamw", masters: &masters, compiled: false };
    let step = compiler::step(&graph, &analysis, &plan, &compiled, &setting, false).expect("a step");
    let candidate = Candidate { plan: "</script><b>".into(), seconds: 1.0, ..Candidate::default() };
    let compared = Some(Compared { bound: 0.5, candidates: vec![candidate] });
    let about = About {
        command: "shardwright report <model>".into(),
        version: "0".into(),
        compared,
        recorded,
        ..About::default()
    };
    let subject = Subject {
        graph: &graph,
        analysis: &analysis,
        plan: &plan,
        compiled: &compiled,
        step: &step,
        cluster: &cluster,
        batches,
        optimizer: "adamw",
        is_compiled: false,
        about: &about,
    };
    Ok((data(&subject)?, step))
}
