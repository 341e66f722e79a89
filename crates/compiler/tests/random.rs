//! Random plans are lowered, emitted, read back and proved, with every kind of boundary.

use graph::{Graph, Source};
use plan::random;
use program::{Boundary, Inputs, Output, Program};
use rules::Analysis;

/// The model, with the gradients of its inputs asked for.
fn graph(model: &str) -> Graph {
    let text =
        std::fs::read_to_string(format!("../../tests/python/golden/{model}.graph")).expect("a golden graph");
    let mut graph: Graph = text.parse().expect("it parses");
    for tensor in &mut graph.tensors {
        if let Source::Input { grad, .. } = &mut tensor.source {
            *grad = tensor.dtype.is_float();
        }
    }
    graph
}

/// Each output in each way, and inputs in both, as the seed goes.
fn boundary(graph: &Graph, seed: u64) -> Boundary {
    let ways = [Output::Whole, Output::Local, Output::Local];
    let output = |number: usize| ways[(usize::try_from(seed).unwrap_or(0) + number) % 3];
    let inputs = if seed % 2 == 0 { Inputs::Global } else { Inputs::Local };
    Boundary { inputs, outputs: (0..graph.outputs.len()).map(output).collect() }
}

fn compiled(graph: &Graph, analysis: &Analysis, seed: u64, boundary: &Boundary) -> Program {
    let devices = 2 + u32::try_from(seed % 5).unwrap_or(0);
    let plan = random::plan(graph, analysis, devices, seed);
    match compiler::compile(graph, analysis, &plan, boundary) {
        Ok(compiled) => compiled.program,
        Err(error) => panic!("seed {seed}, {devices} devices, {boundary:?}: {error}"),
    }
}

fn check(model: &str) {
    let graph = graph(model);
    let analysis = Analysis::new(&graph);
    for seed in 1000..1060 {
        let boundary = boundary(&graph, seed);
        let program = compiled(&graph, &analysis, seed, &boundary);
        assert_eq!(program.boundary, boundary);
        let asked = graph.tensors.iter().any(|t| matches!(t.source, Source::Input { grad: true, .. }));
        if boundary.inputs == Inputs::Global {
            assert!(program.roles.iter().all(|role| role.body.gradients.is_empty() != asked));
        }
    }
}

#[test]
fn mlp() {
    check("mlp");
}

#[test]
fn gpt() {
    check("gpt");
}

#[test]
fn resnet() {
    check("resnet");
}

#[test]
fn two_losses() {
    check("two_losses");
}
