//! `make mutate`: mutants of programs of all models and plans, and which of them the check accepts though they are different.
//! The arguments are how many of each kind, and the first number they are made with.

#![allow(clippy::print_stdout)]

#[path = "../tests/support/mod.rs"]
mod support;

use rules::Analysis;
use support::harness::{mutate, table};
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
        let graph = graph(model);
        let analysis = Analysis::of(&graph);
        let plans = PLANS.iter().filter_map(|(name, devices)| {
            Some(((*name).to_owned(), named(&graph, &analysis, name, *devices).ok()?))
        });
        let random = (0..4).map(|number| (format!("random {number}"), drawn(&graph, &analysis, number)));
        for (name, plan) in plans.chain(random) {
            for boundary in boundaries(&graph) {
                let Ok(program) = compiled(&graph, &analysis, &plan, &boundary) else { continue };
                mutate(&format!("{model}, {name}"), &graph, &program, (seed, each), &mut rows);
            }
        }
    }
    println!("{}", table(&rows));
    assert!(rows.iter().all(|row| row.survived.is_empty()), "the check accepts a program that is different");
}
