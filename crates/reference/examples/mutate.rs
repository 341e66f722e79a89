//! `make mutate`: mutants of programs of all models and plans, and which of them the check accepts though they are different.
//! The arguments are how many of each kind, and the first number they are made with.

#![allow(clippy::print_stdout)]

#[path = "../tests/support/mod.rs"]
mod support;

use graph::Graph;
use plan::Plan;
use rules::Analysis;
use support::harness::{Row, mutate, table};
use support::{MODELS, boundaries, compiled, drawn, graph, named};

const PLANS: &[(&str, u32)] = &[
    ("data", 2),
    ("data:2 x megatron:2", 4),
    ("sequence", 2),
    ("ulysses", 2),
    ("coshard:2", 1),
    ("data:2 x zero3:2 x recompute", 4),
    ("zero2", 3),
    ("stages:2 x data:2", 4),
    ("stages:2 x zero3:2 x zb-h1 x recompute", 4),
    ("stages:2 x zb-v", 2),
    ("stages:2 x 2bw", 2),
    ("stages:2 x interlaced", 2),
];

fn main() {
    let mut arguments = std::env::args().skip(1).map(|word| word.parse::<u32>().expect("a number"));
    let (each, seed) = (arguments.next().unwrap_or(4), u64::from(arguments.next().unwrap_or(0)));
    let mut rows = vec![];
    for model in MODELS {
        for (name, devices) in PLANS {
            let graph = graph(model, name);
            let analysis = Analysis::of(&graph);
            let Ok(plan) = named(&graph, &analysis, name, *devices) else { continue };
            of_plan(model, &graph, &plan, (seed, each), &mut rows);
        }
        for number in 0..4 {
            let graph = graph(model, "random");
            let plan = drawn(&graph, &Analysis::of(&graph), number);
            of_plan(model, &graph, &plan, (seed, each), &mut rows);
        }
    }
    println!("{}", table(&rows));
    assert!(rows.iter().all(|row| row.survived.is_empty()), "the check accepts a program that is different");
}

fn of_plan(model: &str, graph: &Graph, plan: &Plan, many: (u64, u32), rows: &mut Vec<Row>) {
    let analysis = Analysis::of(graph);
    for boundary in boundaries(graph) {
        if let Ok(program) = compiled(graph, &analysis, plan, &boundary) {
            mutate(&format!("{model}, {}", plan.name), graph, &program, many, rows);
        }
    }
}
