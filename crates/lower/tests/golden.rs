//! What well-known plans communicate on the reference models.

use graph::Graph;
use lower::{Lowered, Outputs, lower};
use plan::sets;
use program::{Instr, RankId};
use rules::Analysis;

fn lowered(model: &str, plan: &str, devices: u32) -> Lowered {
    let text = std::fs::read_to_string(format!("../../tests/python/golden/{model}.graph")).expect("a golden graph");
    let graph: Graph = text.parse().expect("it parses");
    let analysis = Analysis::of(&graph);
    let plan = sets::named(plan, &graph, &analysis, devices).expect("a plan");
    lower(&graph, &analysis, &plan, &Outputs::Loss).expect("it lowers")
}

/// Rank 0's instructions, a word each, runs of calls as one.
fn words(it: &Lowered) -> (String, String) {
    let (role, _) = it.program.role_of(RankId(0)).expect("rank 0");
    let word = |i: &Instr| {
        let text = format!("{i:?}");
        text.split([' ', '(', '{']).next().unwrap_or_default().to_owned()
    };
    let line = |all: &[Instr]| all.iter().map(word).collect::<Vec<_>>().join(" ");
    (line(&role.body.forward), line(&role.body.backward))
}

#[test]
fn dump() {
    for (model, plan, devices) in [("mlp", "data", 2), ("gpt", "data", 2), ("gpt", "megatron", 2), ("gpt", "data:2 x megatron:2", 4), ("gpt", "coshard:2", 1), ("gpt", "coshard:4", 2), ("resnet", "data", 2), ("resnet", "megatron", 2), ("two_losses", "megatron", 2)] {
        let it = lowered(model, plan, devices);
        let (f, b) = words(&it);
        println!("{model} {plan} {devices}: roles {}\n  F {f}\n  B {b}\n", it.program.roles.len());
    }
}
