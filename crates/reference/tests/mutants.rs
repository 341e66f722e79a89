//! Faults of many kinds at random places: what the reference calls different, the check refuses.

mod support;

use rules::Analysis;
use support::harness::{mutate, table};
use support::{boundaries, compiled, graph, named};

const PROGRAMS: &[(&str, &str, u32)] = &[
    ("tests/python/golden/mlp", "data", 2),
    ("tests/python/golden/mlp", "stages:2 x zero3:2 x zb-h1 x recompute", 4),
    ("crates/search/tests/graphs/uneven", "data:2 x megatron:2", 4),
    ("crates/search/tests/graphs/uneven", "stages:2 x 2bw", 2),
];

#[test]
fn what_is_different_is_refused() {
    let mut rows = vec![];
    for (model, name, devices) in PROGRAMS {
        let graph = graph(model, name);
        let analysis = Analysis::of(&graph);
        let plan = named(&graph, &analysis, name, *devices).expect("a plan");
        let program = compiled(&graph, &analysis, &plan, &boundaries(&graph)[0]).expect("it compiles");
        mutate(&format!("{model}, {name}"), &graph, &program, (1, 3), &mut rows);
    }
    let found = table(&rows);
    assert!(rows.iter().all(|row| row.survived.is_empty()), "{found}");
    let made: u32 = rows.iter().map(|row| row.made).sum();
    let harmless: u32 = rows.iter().map(|row| row.harmless).sum();
    assert!(rows.iter().filter(|row| row.made > 0).count() > 50 && made > 250, "{found}");
    // What is different is seen to be: else nothing would survive either.
    assert!(harmless < made / 2, "{found}");
}
