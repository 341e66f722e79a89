//! What a step would take on a changed cluster, and what holds it back.

use serde_json::Value;

use crate::made::{GPT, page, page_of};

fn seconds(data: &Value) -> Vec<f64> {
    let rows = data["sensitivity"]["rows"].as_array().expect("rows");
    rows.iter().filter_map(|it| it["seconds"].as_f64()).collect()
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
        let changed = seconds(&data);
        assert_eq!(changed.len(), 3, "links, devices, hosts");
        assert!(
            changed.iter().all(|it| *it <= now * (1.0 + 1e-9) && *it >= now / 2.0 - 1e-12),
            "{plan}: {changed:?} {now}"
        );
        assert!(changed.iter().any(|it| *it < 0.95 * now), "{plan}: {changed:?} {now}");
    }
}

/// One product, with a large parameter whose gradient all devices sum.
const WIDE: &str = r#"shardwright-graph 1
model "Wide"
input %x f32[64,4096] 0
param %w f32[4096,4096] "w"
op %y f32[64,4096] = aten.linear.default(%x, %w) in "" at "m.py:3"
op %s f32[] = aten.sum.default(%y) in "" at "m.py:4"
output %s
"#;

#[test]
fn a_slow_network_holds_the_step_back() {
    let (data, step) = page_of(WIDE, "data", 4, "ethernet-25g:1x4", 1);
    let changed = seconds(&data);
    assert!(
        changed[0] < changed[1] && changed[0] < changed[2],
        "{changed:?} {}",
        step.estimate.simulation.seconds
    );
    assert!(words(&data).starts_with("Communication holds the step back most: with links twice as fast"));
    assert!(words(&data).ends_with("Half of the memory would do."));
}

#[test]
fn small_operators_take_their_starts() {
    let (data, _) = page_of(GPT, "data", 1, "h200:1", 1);
    assert!(words(&data).starts_with("Starting operators holds the step back most"), "{}", words(&data));
}
