//! What was measured stands beside what was predicted of the same communication, and of no other.

use serde_json::{Value, json};

use crate::made::{page, recorded};

/// The manifest of a plan as a recording of three steps: each communication takes `times(entry)` of what is expected.
fn recording(plan: &str, batches: u32, times: impl Fn(&Value) -> f64) -> Value {
    let (_, step) = page(plan, batches);
    let mut manifest: Value = serde_json::from_str(&step.manifest).expect("JSON");
    manifest["format"] = json!(1);
    for role in manifest["roles"].as_array_mut().expect("roles") {
        role["measured_step_seconds"] = json!([9.0, 1e-3, 2e-3]);
        for entry in role["communications"].as_array_mut().expect("rows") {
            let (expected, start) = (entry["expected_seconds"].as_f64(), entry["start_seconds"].as_f64());
            let seconds = expected.expect("seconds") * times(entry);
            let (start, waits) = (start.expect("seconds"), seconds / 2.0);
            entry["measured"] = json!({
                "start_seconds": [9.0, start, start],
                "seconds": [9.0, seconds, seconds],
                "waited_seconds": [9.0, waits, waits],
            });
        }
    }
    manifest
}

fn is_of_mlp(entry: &Value) -> bool {
    entry["kind"] == "all_reduce"
        && entry["operator"].as_str().is_some_and(|operator| operator.contains(".mlp"))
}

#[test]
fn the_largest_difference_is_said() {
    let times = |entry: &Value| if is_of_mlp(entry) && entry["pass"] == "forward" { 2.1 } else { 1.0 };
    let data = recorded("megatron", 1, recording("megatron", 1, times).to_string()).expect("a page");
    let shown = &data["recorded"];
    let words = shown["words"][1].as_str().expect("words");
    assert!(words.starts_with("All-reduces of h.*.mlp"), "{words}");
    assert!(words.contains(" in forward take 2.1 times what was predicted, "), "{words}");
    assert_eq!((&shown["steps"], &shown["seconds"]), (&json!(3), &json!(2e-3)));
    for entry in shown["entries"].as_array().expect("entries") {
        let times = entry["times"].as_f64().expect("a number");
        let name = entry["name"].as_str().expect("a name");
        let isnt_predicted = name.contains(".mlp") && entry["pass"] == "forward";
        assert!((times - if isnt_predicted { 2.1 } else { 1.0 }).abs() < 1e-6, "{entry}");
    }
}

#[test]
fn each_rank_has_its_row() {
    let plan = "stages:2 x 1f1b x data";
    let data = recorded(plan, 4, recording(plan, 4, |_| 3.0).to_string()).expect("a page");
    let ranks = data["recorded"]["ranks"].as_array().expect("ranks");
    let places: Vec<_> = ranks.iter().map(|it| (it["rank"].as_u64(), it["track"].as_u64())).collect();
    assert_eq!(places, [(Some(0), Some(0)), (Some(2), Some(1))]);
    for rank in ranks {
        let numbers: Vec<i64> = rank["parts"]
            .as_array()
            .expect("parts")
            .iter()
            .map(|it| it.as_i64().expect("a number"))
            .collect();
        assert!(!numbers.is_empty());
        for part in numbers.chunks_exact(7) {
            assert!((part[4] - 3 * part[6]).abs() <= 3, "three times what was predicted: {part:?}");
        }
    }
}

#[test]
fn who_comes_early_measures_the_wait_and_is_not_counted() {
    let mut recording = recording("data", 1, |_| 1.0);
    // Rank 1 does the same in the same group, and comes long before.
    let mut early = recording["roles"][0].clone();
    early["rank"] = json!(1);
    for entry in early["communications"].as_array_mut().expect("rows") {
        entry["measured"]["seconds"] = json!([5.0]);
    }
    recording["roles"].as_array_mut().expect("roles").push(early);
    let data = recorded("data", 1, recording.to_string()).expect("a page");
    let entries = data["recorded"]["entries"].as_array().expect("entries");
    assert!(
        entries.iter().all(|it| (it["times"].as_f64().expect("times") - 1.0).abs() < 1e-6),
        "{entries:?}"
    );
}

#[test]
fn a_message_takes_from_when_both_ends_are_there() {
    let (plan, mut begun) = ("stages:2 x gpipe x megatron", 0);
    let mut recording = recording(plan, 2, |_| 1.0);
    // Senders never wait, and receivers ask a second before anything is sent.
    for role in recording["roles"].as_array_mut().expect("roles") {
        for entry in role["communications"].as_array_mut().expect("entries") {
            let seconds = entry["expected_seconds"].as_f64().expect("seconds");
            if entry["kind"] == "send" {
                entry["measured"]["start_seconds"] = json!([10.0]);
                entry["measured"]["seconds"] = json!([0.0]);
            } else if entry["kind"] == "receive" {
                begun += 1;
                entry["measured"]["start_seconds"] = json!([9.0]);
                entry["measured"]["seconds"] = json!([1.0 + 2.0 * seconds]);
            }
        }
    }
    assert!(begun > 0);
    let data = recorded(plan, 2, recording.to_string()).expect("a page");
    for entry in data["recorded"]["entries"].as_array().expect("entries") {
        let is_message = entry["kind"] == "send" || entry["kind"] == "receive";
        let times = entry["times"].as_f64().expect("a number");
        assert!((times - if is_message { 2.0 } else { 1.0 }).abs() < 1e-6, "{entry}");
    }
}

#[test]
fn a_recording_of_another_program_is_refused() {
    let refusal = |plan: &str, batches: u32, text: String| {
        let error = recorded(plan, batches, text).expect_err("an error");
        (error.code, error.why.unwrap_or_default())
    };
    let recording = recording("megatron", 1, |_| 1.0);
    let (code, why) = refusal("data", 1, recording.to_string());
    assert_eq!(code, "SW0933");
    assert!(why.contains("its rank 0"), "{why}");
    let (code, why) = refusal("megatron", 2, recording.to_string());
    assert_eq!((code, &why[..]), ("SW0933", "its number of micro-batches is 1, here it is 2"));
    let mut larger = recording.clone();
    larger["world"] = json!(8);
    assert_eq!(refusal("megatron", 1, larger.to_string()).1, "its number of ranks is 8, here it is 4");
    let mut other = recording;
    other["roles"][0]["communications"][0]["bytes"] = json!(12);
    let (code, why) = refusal("megatron", 1, other.to_string());
    assert_eq!(code, "SW0933");
    assert!(why.starts_with("communication 0 of its rank 0 is ") && why.contains(" of 12 bytes"), "{why}");
}

#[test]
fn what_is_no_recording_is_refused() {
    let refusal = |text: &str| {
        let error = recorded("data", 1, text.into()).expect_err("an error");
        (error.code, error.why.unwrap_or_default())
    };
    assert_eq!(refusal("steps").0, "SW0932");
    assert_eq!(refusal("{}"), ("SW0932", "it has no valid `format`".into()));
    let (_, step) = page("data", 1);
    assert_eq!(refusal(&step.manifest), ("SW0932", "it has no valid `format`".into()));
}
