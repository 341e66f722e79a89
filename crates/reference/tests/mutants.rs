//! Faults of many kinds at random places: what the reference calls different, the check refuses.

use rules::Analysis;

use crate::support::harness::{Many, Subject, all, mutate, table};
use crate::support::{boundaries, compiled, graph, named};

const PROGRAMS: &[(&str, &str, u32)] = &[
    ("tests/python/golden/mlp", "data", 2),
    ("tests/python/golden/mlp", "stages:2 x zero3:2 x zb-h1 x recompute", 4),
    ("crates/search/tests/graphs/uneven", "data:2 x megatron:2 x overlap", 4),
    ("crates/search/tests/graphs/uneven", "stages:2 x 2bw", 2),
];

#[test]
fn what_is_different_is_refused() {
    let subjects: Vec<Subject> = PROGRAMS
        .iter()
        .map(|(model, name, devices)| {
            let graph = graph(model, name);
            let analysis = Analysis::new(&graph);
            let plan = named(&graph, &analysis, name, *devices).expect("a plan");
            let program = compiled(&graph, &analysis, &plan, &boundaries(&graph)[0]).expect("it compiles");
            Subject { what: format!("{model}, {name}"), graph, program }
        })
        .collect();
    let rows = mutate(&subjects, Many { seed: 1, each: 3, refused: true });
    let (found, all) = (table(&rows), all(&rows));
    assert!(all.survived.is_empty() && all.panicked.is_empty(), "{found}");
    assert!(rows.iter().filter(|row| row.made > 0).count() > 50 && all.made > 250, "{found}");
    // What is different is seen to be: else nothing would survive either.
    assert!(all.harmless < all.made / 2, "{found}");
}
