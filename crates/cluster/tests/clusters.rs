//! Clusters as people write them, and messages beside what others measured.

use cluster::{Cluster, Collective, Contention, Direction, OpCost, Sort, named, read};
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
        ("[[nodes]]\ncount = 0\ndevices = \"h100:8\"", "c.toml:2:9", "0 is not a number"),
        ("[[nodes]]\ncount = 9999999\ndevices = \"h100:8\"", "c.toml:2:9", "not a number"),
        ("[[nodes]]\ncount = 900000\ndevices = \"h100:8\"", "c.toml:2:9", "more devices"),
        ("[[nodes]]\ndevices = \"h900:8\"", "c.toml:2:11", "no device \"h900\""),
        ("[[nodes]]\ndevices = \"h100:many\"", "c.toml:2:11", "names no devices"),
        ("[[nodes]]\ndevices = []", "c.toml:2:11", "no devices"),
        ("[[nodes]]\ndevices = \"h100:-8\"", "c.toml:2:11", "-8 is not a number"),
        ("[[nodes]]\ncount = 2\ndevices = \"h100:8\"", "c.toml:1:1", "[network]"),
        ("[[nodes]]\ndevices = \"h100\"\nspeed = 3", "c.toml:3:1", "unknown field"),
        (
            "[[nodes]]\ndevices = \"h100\"\nlink = { bandwidth = \"450 GB\" }",
            "c.toml:3:22",
            "\"450 GB\" is not a valid value",
        ),
        ("[[nodes]]\ndevices = \"h100\"\nlink = { bandwidth = 450 }", "c.toml:3:22", "no unit"),
        ("[[nodes]]\ndevices = \"h100\"\nlink = { bandwidth = \"0 GB/s\" }", "c.toml:3:22", "above zero"),
        ("[[nodes]]\ndevices = \"x\"\n[devices.x]\nmemory = \"8 GB\"", "c.toml:3:1", "no `bandwidth`"),
        (
            "[[nodes]]\ndevices = \"x\"\n[devices.x]\nlike = \"h100\"\npeak = { bf17 = \"1 TFLOP/s\" }",
            "c.toml:5:17",
            "no dtype \"bf17\"",
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
fn every_example_is_a_cluster_of_the_size_that_it_says() {
    for (name, about) in cluster::examples() {
        let cluster = named(&name).unwrap_or_else(|error| panic!("{name}: {error}"));
        let (_, size) = name.split_once(':').expect("a size");
        let (devices, nodes) = size.split_once('x').unwrap_or((size, "1"));
        let number = |text: &str| text.parse::<u32>().expect("a number");
        let (devices, nodes) = (number(devices), number(nodes));
        assert_eq!((cluster.devices(), cluster.nodes.len()), (devices * nodes, nodes as usize), "{name}");
        assert!(about.contains("node") || about.contains("machine"), "{about}");
        let rate = |link: &cluster::Link| link.rate() / if link.shared { f64::from(devices) } else { 1.0 };
        let (within, between) = (rate(&cluster.nodes[0].link), rate(&cluster.network));
        assert!(name.starts_with("cpu") || between <= within, "{name}: nodes are no closer than devices");
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

fn seconds(cluster: &Cluster, collective: Collective, members: u32, bytes: f64) -> f64 {
    let group: Vec<u32> = (0..members).collect();
    cluster.collective(collective, &group, Contention(1), bytes)
}

/// What others measured, and what is said here: `(cluster, collective, members, bytes, seconds)`. Bandwidths are of
/// messages of a gigabyte, latencies of those of a few bytes.
const MEASURED: [(&str, Collective, u32, f64, f64); 18] = [
    ("dgx-h100:8", Collective::AllGather, 2, 1e9, 1.0 / 537.0),
    ("dgx-h100:8", Collective::AllGather, 4, 1e9, 1.0 / 434.0),
    ("dgx-h100:8", Collective::AllGather, 8, 1e9, 1.0 / 394.0),
    ("dgx-h100:8", Collective::ReduceScatter, 2, 1e9, 1.0 / 537.0),
    ("dgx-h100:8", Collective::ReduceScatter, 4, 1e9, 1.0 / 434.0),
    ("dgx-h100:8", Collective::ReduceScatter, 8, 1e9, 1.0 / 394.0),
    ("dgx-h100:8", Collective::AllReduce, 2, 1e9, 1.0 / 324.0),
    ("dgx-h100:8", Collective::AllReduce, 4, 1e9, 1.0 / 236.0),
    ("dgx-h100:8", Collective::AllReduce, 8, 1e9, 1.0 / 267.0),
    ("dgx-h100:8", Collective::AllToAll, 8, 1e9, 1.0 / 380.0),
    ("v100:8", Collective::AllReduce, 8, 480e6, 6.87e-3),
    ("dgx-h100:8", Collective::AllGather, 2, 8.0, 8e-6),
    ("dgx-h100:8", Collective::AllGather, 4, 8.0, 17e-6),
    ("dgx-h100:8", Collective::AllGather, 8, 8.0, 30e-6),
    ("dgx-h100:8", Collective::AllReduce, 2, 8.0, 10e-6),
    ("dgx-h100:8", Collective::AllReduce, 4, 8.0, 15e-6),
    ("dgx-h100:8", Collective::AllReduce, 8, 8.0, 31e-6),
    ("v100:8", Collective::AllReduce, 8, 5e6, 0.178e-3),
];

#[test]
fn messages_take_as_long_as_others_measured() {
    for (name, collective, members, bytes, measured) in MEASURED {
        let said = seconds(&named(name).expect(name), collective, members, bytes);
        let (off, allowed) = (said / measured, if bytes > 1e8 { 1.3 } else { 1.55 });
        assert!(
            (1.0 / allowed..=allowed).contains(&off),
            "{name} {collective:?} of {members}, {bytes} bytes: {:.1} us said, {:.1} us measured",
            said * 1e6,
            measured * 1e6
        );
    }
}

#[test]
fn what_is_larger_farther_or_shared_takes_longer() {
    let (nodes, shared) =
        (named("dgx-h100:8x2").expect("it is known"), named("dgx-v100:16x2").expect("it is known"));
    for collective in
        [Collective::AllReduce, Collective::AllGather, Collective::ReduceScatter, Collective::AllToAll]
    {
        let inside = seconds(&nodes, collective, 8, 1e8);
        assert!(inside < seconds(&nodes, collective, 8, 2e8));
        assert!(inside < seconds(&nodes, collective, 16, 1e8), "{collective:?}");
        assert_eq!(seconds(&nodes, collective, 1, 1e8), 0.0);
        let across: Vec<u32> = vec![0, 16];
        let (alone, crowded) = (Contention(1), Contention(16));
        let time = |contention| shared.collective(collective, &across, contention, 1e8);
        assert!(time(crowded) > 10.0 * time(alone), "{collective:?}: all groups share the network of a node");
    }
    let groups: Vec<Vec<u32>> = (0..16).map(|at| vec![at, at + 16]).collect();
    assert_eq!(shared.contention(groups.iter().map(Vec::as_slice)), Contention(16));
    let inside: Vec<Vec<u32>> = vec![(0..16).collect(), (16..32).collect()];
    assert_eq!(shared.contention(inside.iter().map(Vec::as_slice)), Contention(1));
}

#[test]
fn an_operator_takes_as_long_as_what_it_has_more_of() {
    let device = named("h200:1").expect("it is known").device(0).clone();
    let seconds = |operations, bytes| device.seconds(OpCost { operations, bytes }, Dtype::Bf16);
    // A product of 8192 x 8192 x 8192 was measured at 788 TFLOP/s, a copy of a gigabyte at 4.3 TB/s, each by itself.
    // In a step, where the device is never at rest, its clock is lower.
    let product = 2.0 * 8192_f64.powi(3);
    let rate = product / seconds(product, 3.0 * 2.0 * 8192_f64.powi(2)) / 788e12;
    assert!((0.85..1.0).contains(&rate), "{rate}");
    let rate = 2e9 / seconds(0.0, 2e9) / 4.3e12;
    assert!((0.9..1.0).contains(&rate), "{rate}");
    assert_eq!(seconds(0.0, 0.0), 0.0);
    assert!(seconds(1.0, 1.0) >= device.overhead);
}

const PROFILE: &str = r#"
[profile]
device = "a processor"
torch = "2.15.0"
threads = 2

[[nodes]]
devices = "here:4"

[nodes.link]
bandwidth = "1 GB/s"
latency = "10 us"

[[nodes.link.collectives]]
kind = "all_reduce"
devices = 2
bytes = [1000.0, 1000000.0]
seconds = [1e-4, 1e-2]

[[nodes.link.collectives]]
kind = "message"
devices = 2
bytes = [1000.0]
seconds = [5e-5]

[devices.here]
like = "cpu"

[devices.here.runtime]
step = "1 ms"
call = "50 us"
wake = "20 us"
apart = "90 us"
hidden = 0.25

[[devices.here.operators]]
kind = "contraction"
dtype = "f32"
pass = "forward"
operations = [1e6, 1e8]
seconds = [1e-4, 1e-2]

[[devices.here.operators]]
kind = "pointwise"
dtype = "f32"
pass = "backward"
bytes = [1e6]
seconds = [1e-3]

[[devices.here.operators]]
kind = "aten.gelu"
dtype = "f32"
pass = "backward"
bytes = [1e6]
seconds = [4e-3]
"#;

fn is(found: f64, expected: f64) {
    assert!((found / expected - 1.0).abs() < 1e-9, "{found}, not {expected}");
}

#[test]
fn what_was_measured_of_an_operator_is_taken_before_the_roofline() {
    let cluster = read(PROFILE, "here.toml").expect("it reads");
    let origin = cluster.origin.clone().expect("it says where it is from");
    assert_eq!((origin.device.as_str(), origin.torch.as_str(), origin.threads), ("a processor", "2.15.0", 2));
    let device = cluster.device(3);
    is(device.runtime.step, 1e-3);
    is(device.runtime.call, 5e-5);
    is(device.runtime.wake, 2e-5);
    is(device.runtime.apart, 9e-5);
    is(device.runtime.hidden, 0.25);
    let sort = |kinds, direction| Sort { kinds, dtype: Dtype::F32, direction };
    let product = sort(["aten.linear", "contraction"], Direction::Forward);
    let op_cost = |operations, bytes| OpCost { operations, bytes };
    is(device.seconds_of(op_cost(1e7, 1e3), product), 1e-3);
    // What has more bytes for its operations than what was measured may be as slow as the memory.
    let thin = op_cost(1e6, 1e9);
    is(device.seconds_of(thin, product), 1e9 / device.bandwidth);
    // An operator of its own name comes before its family.
    let backward = op_cost(0.0, 2e6);
    is(device.seconds_of(backward, sort(["aten.gelu", "pointwise"], Direction::Backward)), 8e-3);
    is(device.seconds_of(backward, sort(["aten.mul", "pointwise"], Direction::Backward)), 2e-3);
    // Of what was not measured the roofline is told: of another pass, type or kind.
    let usual = |sort: Sort<'_>| is(device.seconds_of(thin, sort), device.seconds(thin, sort.dtype));
    usual(sort(["aten.mul", "pointwise"], Direction::Forward));
    usual(sort(["aten.sort", ""], Direction::Forward));
    usual(Sort { dtype: Dtype::F64, ..product });
    // It takes no less than copies of its bytes, where these were measured.
    let row = "[[devices.here.operators]]\nkind = \"copies\"\ndtype = \"f32\"\npass = \"forward\"\nbytes = [1e6]\nseconds = [1.0]\n";
    let cluster = read(&format!("{PROFILE}{row}"), "here.toml").expect("it reads");
    is(cluster.device(0).seconds_of(op_cost(1.0, 2e6), sort(["aten.sort", ""], Direction::Backward)), 2.0);
    assert_eq!(device.seconds_of(OpCost::default(), product).to_bits(), 0.0_f64.to_bits(), "a view");
}

#[test]
fn what_was_measured_is_taken_where_it_is_quicker_than_kernels_usually_are() {
    let rows = |kind: &str, by: &str, seconds: f64| {
        format!(
            "[[devices.here.operators]]\nkind = \"{kind}\"\ndtype = \"f16\"\npass = \"forward\"\n\
             {by} = [1e9, 1e12]\nseconds = [{}, {seconds}]\n",
            seconds / 500.0
        )
    };
    // Products of an A10G at 98% of its peak, and copies of what is in its cache at twice its bandwidth.
    let (product, norm) = (1e12 / (0.98 * 70e12), 1e12 / (2.0 * 600e9));
    let text = format!(
        "[[nodes]]\ndevices = \"here:1\"\n[devices.here]\nlike = \"a10g\"\n{}{}",
        rows("contraction", "operations", product),
        rows("norms", "bytes", norm)
    );
    let cluster = read(&text, "here.toml").expect("it reads");
    let device = cluster.device(0);
    let sort = |family| Sort { kinds: ["", family], dtype: Dtype::F16, ..Sort::SUM };
    let (operations, bytes) =
        (OpCost { operations: 1e12, bytes: 1e6 }, OpCost { operations: 1e6, bytes: 1e12 });
    is(device.seconds_of(operations, sort("contraction")), product);
    is(device.seconds_of(bytes, sort("norms")), norm);
    assert!(device.seconds(operations, Dtype::F16) > product && device.seconds(bytes, Dtype::F16) > norm);
    // Nothing that is told is below what no plan can beat, and parts together are not either.
    for family in ["contraction", "norms", "pointwise"] {
        for size in (0..40).map(|at| 1e6 * 10_f64.powf(f64::from(at) / 5.0)) {
            for work in [(size, 1e6), (1e6, size), (size, size / 100.0)] {
                let work = OpCost { operations: work.0, bytes: work.1 };
                let half = OpCost { operations: work.operations / 2.0, bytes: work.bytes / 2.0 };
                let bound = device.lower_bound(work, sort(family)) * (1.0 - 1e-9);
                assert!(bound <= device.seconds_of(work, sort(family)), "{family} {work:?}");
                assert!(bound <= 2.0 * device.seconds_of(half, sort(family)), "{family} {work:?}");
            }
        }
    }
}

#[test]
fn parts_of_an_operator_take_no_less_than_the_bound_of_the_whole() {
    for name in ["v100:1", "a100:1", "h100:1", "b200:1", "l40s:1", "cpu:1"] {
        let cluster = named(name).expect("known");
        let device = cluster.device(0);
        for family in ["contraction", "attention", "norms", "losses", "pointwise", "no such"] {
            let sort = Sort { kinds: ["", family], dtype: Dtype::Bf16, direction: Direction::Backward };
            for size in (0..40).map(|at| 1e5 * 10_f64.powf(f64::from(at) / 4.0)) {
                for parts in [1.0, 2.0, 3.0, 64.0] {
                    for (operations, bytes) in [(size, size), (size, size / 200.0), (0.0, size)] {
                        let bound = device.lower_bound(OpCost { operations, bytes }, sort);
                        let part = OpCost { operations: operations / parts, bytes: bytes / parts };
                        let together = parts * device.seconds_of(part, sort);
                        assert!(bound <= together * (1.0 + 1e-9), "{name} {family} {size} {parts}");
                        // Of a whole it is all that is told.
                        assert!(parts > 1.0 || bound >= together * (1.0 - 1e-9), "{name} {family} {size}");
                    }
                }
            }
        }
    }
}

#[test]
fn what_was_measured_of_messages_is_taken_for_groups_of_that_size() {
    let measured = read(PROFILE, "here.toml").expect("it reads");
    let bare = PROFILE.split("[[nodes.link.collectives]]").next().expect("a part").to_owned()
        + "[devices.here]\nlike = \"cpu\"";
    let bare = read(&bare, "here.toml").expect("it reads");
    let seconds = |cluster: &Cluster, group: &[u32]| {
        cluster.collective(Collective::AllReduce, group, Contention(1), 1e4)
    };
    is(seconds(&measured, &[0, 1]), 1e-4 * 10_f64.powf(2.0 / 3.0));
    is(seconds(&measured, &[0, 1, 2, 3]), seconds(&bare, &[0, 1, 2, 3]));
    is(measured.message(0, 3, Contention(1), 4e3), 2e-4);
    let gather = |cluster: &Cluster| cluster.collective(Collective::AllGather, &[0, 1], Contention(1), 1e4);
    is(gather(&measured), gather(&bare));
}

#[test]
fn what_is_no_measurement_is_refused_with_its_place() {
    for (from, to, expected) in [
        ("operations = [1e6, 1e8]", "operations = [1e8, 1e6]", "not a list of sizes"),
        ("operations = [1e6, 1e8]", "operations = [1e6]", "not a list of sizes"),
        ("operations = [1e6, 1e8]", "", "the sizes of \"contraction\" have no kind"),
        ("seconds = [5e-5]", "seconds = [0.0]", "not a list of sizes"),
        ("pass = \"forward\"", "pass = \"sideways\"", "no pass \"sideways\""),
        ("dtype = \"f32\"", "dtype = \"f31\"", "no dtype \"f31\""),
        ("kind = \"all_reduce\"", "kind = \"broadcast\"", "no collective \"broadcast\""),
        ("hidden = 0.25", "hidden = 1.5", "1.5 is not a valid value"),
        ("call = \"50 us\"", "call = 50", "not a valid value here"),
        ("threads = 2", "threads = -2", "not a description of a cluster"),
    ] {
        let (place, why) = refused(&PROFILE.replacen(from, to, 1));
        assert!(place.starts_with("c.toml:") && why.contains(expected), "{place}: {why}, not {expected}");
    }
}

#[test]
fn bytes_alone_take_no_longer_and_of_large_messages_nearly_as_long() {
    for name in ["dgx-h100:8x2", "dgx-v100:16x2", "ethernet-25g:2x2", "l4:8x1", "cpu:4"] {
        let cluster = cluster::named(name).expect("known");
        for count in 2..=cluster.devices() {
            let group: Vec<u32> = (0..count).collect();
            for (bytes, share) in [(1e3, 0.0), (1e6, 0.0), (1e12, 0.99)] {
                for collective in Collective::ALL {
                    let all = cluster.collective(collective, &group, Contention(1), bytes);
                    let least = cluster.least(collective, &group, Contention(1), bytes);
                    assert!(least <= all && least >= share * all, "{name} {count} {collective:?} {bytes}");
                }
                let all = cluster.message(0, count - 1, Contention(1), bytes);
                let least = cluster.least_of_message(0, count - 1, Contention(1), bytes);
                assert!(least <= all && least >= share * all, "{name} {count} {bytes}");
            }
        }
    }
}
