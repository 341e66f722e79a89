//! Models and plans of this repository, compiled.

#![allow(dead_code)]

pub mod harness;
pub mod mutants;
pub mod wild;

use graph::{Graph, Source};
use plan::{Plan, random, sets};
use program::{Boundary, Inputs, Output, Program};
use rules::Analysis;

pub const MODELS: [&str; 5] = [
    "tests/python/golden/mlp",
    "tests/python/golden/two_losses",
    "crates/compiler/tests/alike",
    "crates/search/tests/graphs/uneven",
    "crates/search/tests/graphs/twice",
];

/// One whose sequence can be cut, causally.
pub const ATTENTION: &str = "crates/reference/tests/graphs/attention";
/// One whose rows go to experts.
pub const EXPERTS: &str = "crates/reference/tests/graphs/experts";
/// One of images.
pub const IMAGES: &str = "crates/reference/tests/graphs/images";

/// One whose layers read tables that are made of constants.
pub const ROTARY: &str = "crates/reference/tests/graphs/rotary";

/// Models of which one step takes seconds.
pub const LARGER: [&str; 2] = ["tests/python/golden/gpt", "tests/python/golden/resnet"];

/// A model of this repository, with the gradients of its inputs asked for, but under a plan with blocks, which has none.
pub fn graph(model: &str, plan: &str) -> Graph {
    let file = format!("{}/../../{model}.graph", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(file).expect("a graph");
    let mut graph: Graph = text.parse().expect("it parses");
    for tensor in &mut graph.tensors {
        if let Source::Input { grad, .. } = &mut tensor.source {
            *grad = tensor.dtype.is_float() && !plan.contains("stages");
        }
    }
    graph
}

/// The whole loss, or parts of all outputs with inputs in parts.
pub fn boundaries(graph: &Graph) -> [Boundary; 2] {
    let first = |number: usize| if number == 0 { Output::Whole } else { Output::None };
    let loss = Boundary { inputs: Inputs::Global, outputs: (0..graph.outputs.len()).map(first).collect() };
    let local = Boundary { inputs: Inputs::Local, outputs: vec![Output::Local; graph.outputs.len()] };
    [loss, local]
}

/// Reads back what is written, as everything else does that runs or proves a program.
pub fn compiled(
    graph: &Graph,
    analysis: &Analysis,
    plan: &Plan,
    boundary: &Boundary,
) -> diag::Result<Program> {
    let compiled = compiler::compile(graph, analysis, plan, boundary)?;
    emit::read(graph, &compiled.files)
}

pub fn named(graph: &Graph, analysis: &Analysis, name: &str, devices: u32) -> diag::Result<Plan> {
    sets::named(name, graph, analysis, devices)
}

pub fn drawn(graph: &Graph, analysis: &Analysis, seed: u64) -> Plan {
    random::plan(graph, analysis, 2 + u32::try_from(seed % 4).unwrap_or(0), seed)
}
