//! The shapes of Tessel: the fewest bubbles, proved, and steps that hold.

use std::time::{Duration, Instant};

use orders::{Limits, Problem, Repetend, SHAPES, Whole, fault, makespan_bound, named, repetend, whole};

fn found(name: &str, devices: usize, limits: &Limits) -> (Problem, Repetend) {
    let problem = named(name, devices, None).unwrap();
    let found = repetend(&problem, limits).expect("an order that goes on for ever");
    (problem, found)
}

fn step(problem: &Problem, repetend: &Repetend, batches: usize) -> Whole {
    let step = whole(problem, repetend, batches, &Limits::default()).expect("a step");
    assert_eq!(fault(problem, &step.starts), None);
    assert!(step.bound <= step.end && makespan_bound(problem, batches) <= step.bound);
    step
}

/// Unoptimised the search takes longer, and tests run beside others: this is only so that it does not become hopeless.
const PATIENCE: Duration = Duration::from_secs(20);

#[test]
fn every_shape_has_no_bubbles_on_any_number_of_devices() {
    for devices in [2, 3, 4, 8, 16] {
        for (name, _) in SHAPES {
            let start = Instant::now();
            let (problem, repetend) = found(name, devices, &Limits::default());
            assert_eq!(
                (repetend.bubbles(&problem), repetend.is_shortest()),
                (0, true),
                "{name} on {devices}"
            );
            assert!(start.elapsed() < PATIENCE, "{name} on {devices} took {:?}", start.elapsed());
        }
    }
}

#[test]
fn with_few_micro_batches_under_way_bubbles_are_proved_to_be_the_fewest() {
    for (name, devices, in_flight, bubbles) in [
        ("alphafold", 4, 4, 2),
        ("alphafold", 4, 5, 1),
        ("alphafold", 4, 6, 0),
        ("x", 4, 3, 0),
        ("k", 4, 3, 0),
        ("v", 4, 2, 4),
    ] {
        let (problem, repetend) =
            found(name, devices, &Limits { in_flight: Some(in_flight), ..Limits::default() });
        assert_eq!(
            (repetend.bubbles(&problem), repetend.is_shortest()),
            (bubbles, true),
            "{name}, {in_flight}"
        );
        assert!(repetend.in_flight(&problem) <= in_flight);
    }
}

#[test]
fn steps_are_as_short_as_the_bound_says_or_nearly() {
    for devices in [4, 8] {
        for (name, _) in SHAPES {
            let (problem, repetend) = found(name, devices, &Limits::default());
            let step = step(&problem, &repetend, 4 * devices);
            let most = if name == "x" { 0.03 } else { 0.0 };
            assert!(step.gap() <= most, "{name} on {devices}: {} against {}", step.end, step.bound);
        }
    }
}

#[test]
fn a_pipeline_takes_what_its_formula_says() {
    // Of p stages and m micro-batches: m + p - 1 times a forward and a backward.
    for (devices, batches) in [(2, 1), (4, 3), (4, 16), (8, 8), (8, 64)] {
        let (problem, repetend) = found("v", devices, &Limits::default());
        let step = step(&problem, &repetend, batches);
        let formula = i64::try_from(4 * (batches + devices - 1)).unwrap();
        assert_eq!((step.end, step.bound, step.in_turn), (formula, formula, true));
    }
}

#[test]
fn less_room_takes_longer_and_none_is_refused() {
    let found =
        (1..=4).map(|room| repetend(&named("v", 4, Some(room)).unwrap(), &Limits::default()).unwrap());
    let periods: Vec<(usize, i64, bool)> = found.map(|it| (it.group, it.period, it.is_shortest())).collect();
    // One micro-batch goes through in 16. Three at a time fill what one leaves open.
    assert_eq!(periods, [(1, 16, true), (1, 8, true), (3, 16, true), (1, 4, true)]);
    for (room, end) in [(1, 256), (2, 132), (3, 96), (4, 76)] {
        let problem = named("v", 4, Some(room)).unwrap();
        let step = step(&problem, &repetend(&problem, &Limits::default()).unwrap(), 16);
        assert_eq!(step.end, end);
        assert!(step.gap() < 0.04, "{} against {}", step.end, step.bound);
    }
    assert_eq!(repetend(&named("v", 4, Some(0)).unwrap(), &Limits::default()), None);
}

#[test]
fn the_same_problem_has_the_same_answer() {
    for (name, _) in SHAPES {
        assert_eq!(found(name, 5, &Limits::default()), found(name, 5, &Limits::default()));
    }
}

#[test]
fn at_the_end_of_the_time_there_is_the_best_so_far_and_its_bound() {
    let problem = named("mllm", 16, None).unwrap();
    for time in [Duration::ZERO, Duration::from_millis(50)] {
        let limits = Limits { nodes: u64::MAX, until: Some(Instant::now() + time), in_flight: None };
        let start = Instant::now();
        let found = repetend(&problem, &limits).expect("one block after the other, at worst");
        assert!(start.elapsed() < PATIENCE);
        assert!(found.period >= found.bound && found.bound >= problem.most_work());
        step(&problem, &found, 3);
    }
}

#[test]
fn a_shape_has_two_devices_or_more_and_a_name() {
    for (name, devices) in [("v", 1), ("v", 33), ("w", 4)] {
        assert_eq!(named(name, devices, None).unwrap_err().code, "SW0372");
    }
}
