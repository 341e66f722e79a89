//! `make mutate`: mutants of programs of all models and plans, and which of them the check accepts though they are different.
//! The arguments are how many of each kind, the first number they are made with, and, to repeat some of them, a part of
//! the names of programs.

#![allow(clippy::print_stdout)]

#[path = "../tests/support/mod.rs"]
mod support;

use std::time::Instant;

use plan::Plan;
use rules::Analysis;
use support::harness::{Many, Subject, all, mutate, table};
use support::{ATTENTION, EXPERTS, IMAGES, MODELS, boundaries, compiled, drawn, graph, named};

const PLANS: &[(&str, u32)] = &[
    ("data", 2),
    ("data:2 x megatron:2", 4),
    ("sequence", 2),
    ("zigzag", 2),
    ("ulysses", 2),
    ("megatron-sp", 2),
    ("data:2 x megatron:2 x overlap", 4),
    ("megatron-sp x recompute x overlap", 2),
    ("image", 2),
    ("coshard:2", 1),
    ("expert", 2),
    ("expert:2 x data:2", 4),
    ("zero1", 2),
    ("zero2", 3),
    ("zero3 x whole-updates", 2),
    ("data:2 x zero3:2 x recompute", 4),
    ("megatron:2 x recompute:selective", 2),
    ("data x offload:activations", 2),
    ("data x offload:state", 2),
    ("data x offload:parameters", 2),
    ("zero3:2 x offload", 2),
    ("stages:2 x data:2", 4),
    ("stages:3 x gpipe", 3),
    ("stages:2 x 1f1b x zero1:2", 4),
    ("stages:2 x zero3:2 x zb-h1 x recompute", 4),
    ("stages:2 x zb-v", 2),
    ("stages:2 x interleaved:2", 2),
    ("stages:2 x bidirectional", 2),
    ("stages:2 x interlaced", 2),
    ("stages:2 x kf1b:2", 2),
    ("stages:2 x tokens:2", 2),
    ("stages:2 x 2bw", 2),
    ("stages:2 x 2bw x zero1:2", 4),
];

/// So many random plans of each model.
const DRAWN: u64 = 4;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize| arguments.get(at).map(|word| word.parse::<u32>().expect("a number"));
    let (each, seed) = (number(0).unwrap_or(4), u64::from(number(1).unwrap_or(0)));
    let mut subjects = vec![];
    for (name, devices) in PLANS {
        let before = subjects.len();
        for model in models() {
            programs(model, name, &|graph, analysis| named(graph, analysis, name, *devices), &mut subjects);
        }
        println!("{} programs of `{name}` on {devices}", subjects.len() - before);
    }
    for model in models() {
        for number in 0..DRAWN {
            let number = seed * DRAWN + number;
            let of = |graph: &_, analysis: &_| Ok(drawn(graph, analysis, number));
            programs(model, "random", &of, &mut subjects);
        }
    }
    let wanted = arguments.get(2).map_or("", String::as_str);
    subjects.retain(|subject| subject.what.contains(wanted));
    println!("{} programs in all", subjects.len());
    let begin = Instant::now();
    let rows = mutate(&subjects, Many { seed, each, refused: false });
    let (seconds, all) = (begin.elapsed().as_secs_f64(), all(&rows));
    println!("{}", table(&rows));
    println!("{:.0} mutants a second", f64::from(all.made) / seconds);
    assert!(all.survived.is_empty(), "the check accepts a program that is different");
    assert!(all.panicked.is_empty(), "a mutant ends the check with a panic");
}

fn models() -> impl Iterator<Item = &'static str> {
    MODELS.into_iter().chain([ATTENTION, EXPERTS, IMAGES])
}

/// Those of a model under a plan, for each boundary, where there are any.
fn programs(
    model: &str,
    name: &str,
    plan: &dyn Fn(&graph::Graph, &Analysis) -> diag::Result<Plan>,
    found: &mut Vec<Subject>,
) {
    let graph = graph(model, name);
    let analysis = Analysis::new(&graph);
    let Ok(plan) = plan(&graph, &analysis) else { return };
    for boundary in boundaries(&graph) {
        if let Ok(program) = compiled(&graph, &analysis, &plan, &boundary) {
            found.push(Subject { what: format!("{model}, {}", plan.name), graph: graph.clone(), program });
        }
    }
}
