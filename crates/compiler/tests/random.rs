//! Random plans are lowered, emitted, read back and proved.

use graph::Graph;
use lower::Outputs;
use plan::random;
use rules::Analysis;

fn check(model: &str) {
    let text =
        std::fs::read_to_string(format!("../../tests/python/golden/{model}.graph")).expect("a golden graph");
    let graph: Graph = text.parse().expect("it parses");
    let analysis = Analysis::of(&graph);
    for seed in 1000..1060 {
        let devices = 2 + u32::try_from(seed % 5).unwrap_or(0);
        let plan = random::plan(&graph, &analysis, devices, seed);
        if let Err(error) = compiler::compile(&graph, &analysis, &plan, &Outputs::All) {
            panic!("{model}, seed {seed}, {devices} devices: {error}");
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
