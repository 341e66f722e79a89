//! Right programs are equal to their models, number by number.

mod support;

use reference::Verdict;
use rules::Analysis;
use support::{LARGER, MODELS, ROTARY, boundaries, compiled, drawn, graph, named};

const PLANS: &[(&str, u32)] = &[
    ("replicate", 2),
    ("data", 2),
    ("data", 3),
    ("megatron", 2),
    ("data:2 x megatron:2", 4),
    ("sequence", 2),
    ("zigzag", 2),
    ("ulysses", 2),
    ("megatron-sp", 2),
    ("megatron x overlap", 2),
    ("megatron-sp x recompute x overlap", 2),
    ("image", 2),
    ("coshard:2", 1),
    ("data:2 x coshard:2 x recompute", 2),
    ("zero1", 2),
    ("zero2", 3),
    ("zero3", 2),
    ("data:2 x zero3:2 x recompute", 4),
    ("megatron:2 x recompute:selective", 2),
    ("stages:2", 2),
    ("stages:2 x data:2", 4),
    ("stages:3 x gpipe", 3),
    ("stages:2 x zero3:2 x zb-h1 x recompute", 4),
    ("stages:2 x zb-v", 2),
    ("stages:2 x 2bw", 2),
    ("stages:2 x interleaved:2", 2),
    ("stages:2 x interlaced", 2),
    ("stages:2 x bidirectional", 2),
    ("stages:2 x tokens:2", 2),
];

const FEW: &[(&str, u32)] =
    &[("data:2 x megatron:2", 4), ("image", 2), ("ulysses", 2), ("stages:2 x tokens:2", 2)];

#[test]
fn named_plans_are_equal() {
    assert!(equal(&MODELS, PLANS) > 120);
}

#[test]
fn larger_models_are_equal() {
    assert!(equal(&LARGER, FEW) > 5);
}

/// How many programs there were.
fn equal(models: &[&str], plans: &[(&str, u32)]) -> u32 {
    let (mut seen, mut wrong) = (0, vec![]);
    for model in models {
        for (name, devices) in plans {
            let graph = graph(model, name);
            let analysis = Analysis::new(&graph);
            for boundary in boundaries(&graph) {
                let made = named(&graph, &analysis, name, *devices)
                    .and_then(|plan| compiled(&graph, &analysis, &plan, &boundary));
                let Ok(program) = made else { continue };
                seen += 1;
                match reference::compare(&graph, &program, 7, 2).expect("it is of this model") {
                    Verdict::Equal(report) => {
                        assert!(report.elements > report.undefined, "{model} {name}: nothing is compared");
                    }
                    Verdict::Different(it) => wrong.push(format!("{model}, {name}: {it}")),
                    Verdict::Unknown(it) => wrong.push(format!("{model}, {name}: {it}")),
                }
            }
        }
    }
    assert!(wrong.is_empty(), "of {seen}:\n{}", wrong.join("\n"));
    seen
}

#[test]
fn random_plans_are_equal() {
    let mut wrong = vec![];
    for model in &MODELS[..2] {
        let graph = graph(model, "random");
        let analysis = Analysis::new(&graph);
        for seed in 0..12 {
            let plan = drawn(&graph, &analysis, seed);
            let boundary = &boundaries(&graph)[usize::from(seed % 2 == 0)];
            let program = compiled(&graph, &analysis, &plan, boundary).expect("it compiles");
            match reference::compare(&graph, &program, seed, 2).expect("it is of this model") {
                Verdict::Equal(_) => {}
                other => wrong.push(format!("{model}, {seed}: {other:?}")),
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn what_stages_compute_of_constants_is_equal() {
    let stages: Vec<_> = PLANS.iter().copied().filter(|(name, _)| name.contains("stages")).collect();
    assert!(equal(&[ROTARY], &stages) > 14);
}
