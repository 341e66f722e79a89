//! Clusters as people write them, and messages beside what others measured.

use cluster::{Cluster, Crowd, Effort, Pattern, named, read};
use graph::Dtype;

const MIXED: &str = r#"
name = "old and new"

[network]
bandwidth = "100 Gbit/s"
latency = "14 us"
shared = true

[[nodes]]
count = 2
devices = "h100:8"

[[nodes]]
devices = ["a100:2", "slow:2"]
link = { bandwidth = "25 GB/s", shared = true }

[devices.slow]
like = "a100"
memory = "24 GiB"
peak = { bf16 = "100 TFLOP/s", f32 = "10 TFLOP/s" }
"#;

#[test]
fn nodes_may_differ_and_devices_inside_of_them() {
    let cluster = read(MIXED, "mixed.toml").expect("it reads");
    assert_eq!((cluster.name.as_str(), cluster.devices(), cluster.nodes.len()), ("old and new", 20, 3));
    let kinds: Vec<&str> = [0, 15, 16, 18].iter().map(|at| cluster.device(*at).name.as_str()).collect();
    assert_eq!(kinds, ["h100", "h100", "a100", "slow"]);
    assert_eq!((cluster.node(7), cluster.node(8), cluster.node(19)), (0, 1, 2));
    let slow = cluster.device(19);
    assert_eq!((slow.memory, slow.bandwidth), (24 << 30, 2.0e12));
    assert_eq!(slow.peak_of(Dtype::F16), 10e12, "what has no rate runs as the next wider type");
}

fn refused(text: &str) -> (String, String) {
    let error = read(text, "c.toml").expect_err("it is refused");
    assert_eq!(error.code, "SW0902");
    (error.place.unwrap_or_default(), format!("{} {}", error.what, error.why.unwrap_or_default()))
}

#[test]
fn what_is_missing_or_absurd_is_named_with_its_line_and_column() {
    let cases = [
        ("", "c.toml:1:1", "nodes"),
        ("nodes = []", "c.toml:1:9", "no node"),
        ("[[nodes]]\ncount = 0\ndevices = \"h100:8\"", "c.toml:2:9", "0 is no number"),
        ("[[nodes]]\ncount = 9999999\ndevices = \"h100:8\"", "c.toml:2:9", "no number"),
        ("[[nodes]]\ncount = 900000\ndevices = \"h100:8\"", "c.toml:2:9", "more devices"),
        ("[[nodes]]\ndevices = \"h900:8\"", "c.toml:2:11", "no device \"h900\""),
        ("[[nodes]]\ndevices = \"h100:many\"", "c.toml:2:11", "names no devices"),
        ("[[nodes]]\ndevices = []", "c.toml:2:11", "no devices"),
        ("[[nodes]]\ndevices = \"h100:-8\"", "c.toml:2:11", "-8 is no number"),
        ("[[nodes]]\ncount = 2\ndevices = \"h100:8\"", "c.toml:1:1", "[network]"),
        ("[[nodes]]\ndevices = \"h100\"\nspeed = 3", "c.toml:3:1", "unknown field"),
        (
            "[[nodes]]\ndevices = \"h100\"\nlink = { bandwidth = \"450 GB\" }",
            "c.toml:3:22",
            "\"450 GB\" is no value",
        ),
        ("[[nodes]]\ndevices = \"h100\"\nlink = { bandwidth = 450 }", "c.toml:3:22", "no unit"),
        ("[[nodes]]\ndevices = \"h100\"\nlink = { bandwidth = \"0 GB/s\" }", "c.toml:3:22", "above zero"),
        ("[[nodes]]\ndevices = \"x\"\n[devices.x]\nmemory = \"8 GB\"", "c.toml:3:1", "no `bandwidth`"),
        (
            "[[nodes]]\ndevices = \"x\"\n[devices.x]\nlike = \"h100\"\npeak = { bf17 = \"1 TFLOP/s\" }",
            "c.toml:5:17",
            "no type \"bf17\"",
        ),
        (
            "[[nodes]]\ndevices = \"x\"\n[devices.x]\nlike = \"h100\"\nmemory_reached = 1.5",
            "c.toml:5:18",
            "at most 1",
        ),
        (
            "[[nodes]]\ndevices = \"x\"\n[devices.x]\nlike = \"h100\"\noverhead = \"90 s\"",
            "c.toml:5:12",
            "10 seconds",
        ),
        ("[[nodes]", "c.toml:1:9", "description"),
    ];
    for (text, place, part) in cases {
        let (found, said) = refused(text);
        assert!(found.starts_with(place), "{text:?}: at {found}: {said}");
        assert!(said.contains(part), "{text:?}: {said}");
    }
}

#[test]
fn names() {
    for (name, devices, nodes) in [
        ("dgx-h100:8x4", 32, 4),
        ("dgx-a100:8x2", 16, 2),
        ("dgx-v100:16x2", 32, 2),
        ("h200:1", 1, 1),
        ("ethernet-25g:4x8", 32, 8),
        ("l4:8x2", 16, 2),
        ("cpu:4", 4, 1),
    ] {
        let cluster = named(name).expect(name);
        assert_eq!((cluster.devices(), cluster.nodes.len()), (devices, nodes), "{name}");
    }
    for (name, code) in [
        ("dgx-z9:8", "SW0900"),
        ("h200", "SW0901"),
        ("h200:0", "SW0901"),
        ("cpu:4x0", "SW0901"),
        ("cpu:4x", "SW0901"),
    ] {
        assert_eq!(named(name).expect_err(name).code, code, "{name}");
    }
}

fn seconds(cluster: &Cluster, pattern: Pattern, members: u32, bytes: f64) -> f64 {
    let group: Vec<u32> = (0..members).collect();
    cluster.collective(pattern, &group, Crowd(1), bytes)
}

/// What others measured, and what is said here: `(cluster, pattern, members, bytes, seconds)`. Bandwidths are of
/// messages of a gigabyte, latencies of those of a few bytes.
const MEASURED: [(&str, Pattern, u32, f64, f64); 18] = [
    ("dgx-h100:8", Pattern::AllGather, 2, 1e9, 1.0 / 537.0),
    ("dgx-h100:8", Pattern::AllGather, 4, 1e9, 1.0 / 434.0),
    ("dgx-h100:8", Pattern::AllGather, 8, 1e9, 1.0 / 394.0),
    ("dgx-h100:8", Pattern::ReduceScatter, 2, 1e9, 1.0 / 537.0),
    ("dgx-h100:8", Pattern::ReduceScatter, 4, 1e9, 1.0 / 434.0),
    ("dgx-h100:8", Pattern::ReduceScatter, 8, 1e9, 1.0 / 394.0),
    ("dgx-h100:8", Pattern::AllReduce, 2, 1e9, 1.0 / 324.0),
    ("dgx-h100:8", Pattern::AllReduce, 4, 1e9, 1.0 / 236.0),
    ("dgx-h100:8", Pattern::AllReduce, 8, 1e9, 1.0 / 267.0),
    ("dgx-h100:8", Pattern::AllToAll, 8, 1e9, 1.0 / 380.0),
    ("v100:8", Pattern::AllReduce, 8, 480e6, 6.87e-3),
    ("dgx-h100:8", Pattern::AllGather, 2, 8.0, 8e-6),
    ("dgx-h100:8", Pattern::AllGather, 4, 8.0, 17e-6),
    ("dgx-h100:8", Pattern::AllGather, 8, 8.0, 30e-6),
    ("dgx-h100:8", Pattern::AllReduce, 2, 8.0, 10e-6),
    ("dgx-h100:8", Pattern::AllReduce, 4, 8.0, 15e-6),
    ("dgx-h100:8", Pattern::AllReduce, 8, 8.0, 31e-6),
    ("v100:8", Pattern::AllReduce, 8, 5e6, 0.178e-3),
];

#[test]
fn messages_take_as_long_as_others_measured() {
    for (name, pattern, members, bytes, measured) in MEASURED {
        let said = seconds(&named(name).expect(name), pattern, members, bytes);
        let (off, allowed) = (said / measured, if bytes > 1e8 { 1.3 } else { 1.55 });
        assert!(
            (1.0 / allowed..=allowed).contains(&off),
            "{name} {pattern:?} of {members}, {bytes} bytes: {:.1} us said, {:.1} us measured",
            said * 1e6,
            measured * 1e6
        );
    }
}

#[test]
fn what_is_larger_farther_or_shared_takes_longer() {
    let (nodes, shared) =
        (named("dgx-h100:8x2").expect("it is known"), named("dgx-v100:16x2").expect("it is known"));
    for pattern in [Pattern::AllReduce, Pattern::AllGather, Pattern::ReduceScatter, Pattern::AllToAll] {
        let inside = seconds(&nodes, pattern, 8, 1e8);
        assert!(inside < seconds(&nodes, pattern, 8, 2e8));
        assert!(inside < seconds(&nodes, pattern, 16, 1e8), "{pattern:?}");
        assert_eq!(seconds(&nodes, pattern, 1, 1e8), 0.0);
        let across: Vec<u32> = vec![0, 16];
        let (alone, crowded) = (Crowd(1), Crowd(16));
        let time = |crowd| shared.collective(pattern, &across, crowd, 1e8);
        assert!(time(crowded) > 10.0 * time(alone), "{pattern:?}: all groups share the network of a node");
    }
    let groups: Vec<Vec<u32>> = (0..16).map(|at| vec![at, at + 16]).collect();
    assert_eq!(shared.crowd(groups.iter().map(Vec::as_slice)), Crowd(16));
    let inside: Vec<Vec<u32>> = vec![(0..16).collect(), (16..32).collect()];
    assert_eq!(shared.crowd(inside.iter().map(Vec::as_slice)), Crowd(1));
}

#[test]
fn an_operator_takes_as_long_as_what_it_has_more_of() {
    let device = named("h200:1").expect("it is known").device(0).clone();
    let seconds = |operations, bytes| device.seconds(Effort { operations, bytes }, Dtype::Bf16);
    // A product of 8192 x 8192 x 8192 was measured at 788 TFLOP/s, a copy of a gigabyte at 4.3 TB/s.
    let product = 2.0 * 8192_f64.powi(3);
    assert!((product / seconds(product, 3.0 * 2.0 * 8192_f64.powi(2)) / 788e12 - 1.0).abs() < 0.03);
    assert!((2e9 / seconds(0.0, 2e9) / 4.3e12 - 1.0).abs() < 0.03);
    assert_eq!(seconds(0.0, 0.0), 0.0);
    assert!(seconds(1.0, 1.0) >= device.overhead);
}
