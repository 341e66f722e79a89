//! Right programs are equal to their models, number by number.

use plan::sets;
use reference::Verdict;
use rules::Analysis;

use crate::support::{ATTENTION, IMAGES, LARGER, MODELS, ROTARY, boundaries, compiled, drawn, graph, named};

/// Beside the examples of each set.
const PLANS: &[(&str, u32)] = &[
    ("data", 3),
    ("data:2 x megatron:2", 4),
    ("megatron-sp x recompute x overlap", 2),
    ("coshard:2", 1),
    ("data:2 x coshard:2 x recompute", 2),
    ("zero2", 3),
    ("data:2 x zero3:2 x recompute", 4),
    ("megatron:2 x recompute:selective", 2),
    ("megatron:2 x recompute:attention", 2),
    ("stages:2 x data:2", 4),
    ("stages:3 x gpipe", 3),
    ("stages:2 x zero3:2 x zb-h1 x recompute", 4),
    ("stages:2 x tokens:2", 2),
];

/// Names that show each set, on as many devices as they say, or on two. The reference does not interpret experts.
fn examples() -> Vec<(&'static str, u32)> {
    let devices = |name| sets::devices_of(name).expect("a name").unwrap_or(2);
    sets::examples().filter(|name| *name != "expert").map(|name| (name, devices(name))).collect()
}

const FEW: &[(&str, u32)] =
    &[("data:2 x megatron:2", 4), ("image", 2), ("ulysses", 2), ("stages:2 x tokens:2", 2)];

#[test]
fn named_plans_are_equal() {
    assert!(equal(&MODELS, PLANS) > 50);
}

/// Some model fits each of them.
#[test]
fn examples_of_every_set_are_equal() {
    for example in examples() {
        let fits = equal(&MODELS, &[example]) > 0 || equal(&[ATTENTION, IMAGES], &[example]) > 0;
        assert!(fits, "no model fits {example:?}");
    }
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
    let all = PLANS.iter().copied().chain(examples());
    let stages: Vec<_> = all.filter(|(name, _)| name.contains("stages")).collect();
    assert!(equal(&[ROTARY], &stages) > 14);
}
