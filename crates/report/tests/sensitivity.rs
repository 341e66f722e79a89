//! What a step would take on a changed cluster, and what holds it back.

mod made;

use made::{GPT, page, page_of};
use serde_json::Value;

fn seconds(data: &Value) -> Vec<f64> {
    let rows = data["sensitivity"]["rows"].as_array().expect("rows");
    rows.iter().filter_map(|row| row["seconds"].as_f64()).collect()
}

fn words(data: &Value) -> String {
    let words = data["sensitivity"]["words"].as_array().expect("words");
    words.iter().map(|it| it.as_str().expect("words")).collect::<Vec<_>>().join(" ")
}

#[test]
fn quicker_parts_make_no_step_longer() {
    for (plan, batches) in [("megatron", 1), ("zero3", 2), ("stages:2 x 1f1b x megatron", 8)] {
        let (data, step) = page(plan, batches);
        let now = step.estimate.simulation.seconds;
        let found = seconds(&data);
        assert_eq!(found.len(), 3, "links, devices, hosts");
        assert!(found.iter().all(|it| *it <= now * (1.0 + 1e-9) && *it >= now / 2.0 - 1e-12), "{plan}: {found:?} {now}");
        assert!(found.iter().any(|it| *it < 0.95 * now), "{plan}: {found:?} {now}");
    }
}

#[test]
fn a_slow_network_holds_the_step_back() {
    let (data, step) = page_of(GPT, ("data", 4), ("ethernet-25g:4x1", 1));
    let found = seconds(&data);
    assert!(found[0] < found[1] && found[0] < found[2], "{found:?} {}", step.estimate.simulation.seconds);
    assert!(words(&data).starts_with("Communication holds the step back most: with links twice as fast"));
    assert!(words(&data).ends_with("Half of the memory would do."));
}

#[test]
fn small_operators_take_their_starts() {
    let (data, _) = page_of(GPT, ("data", 1), ("h200:1", 1));
    assert!(words(&data).starts_with("Starting operators holds the step back most"), "{}", words(&data));
}
