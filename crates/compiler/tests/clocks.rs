//! What a GPU's step takes that a CPU's does not: a host that starts things on a clock of its own, messages that take
//! multiprocessors, and kernels that a compiler joined.

use check::Masters;
use cluster::{Cluster, read};
use compiler::{Setting, SimulatedStep};
use graph::Graph;
use plan::sets;
use rules::Analysis;

const ROWS: u64 = 1024;
const WIDTH: u64 = 1024;

/// A product, and small operators behind it: `gelu`, a sum with what comes before, and again.
fn model(layers: usize) -> Graph {
    let spec = "{\\\"tree\\\":[1,{\\\"type\\\":null,\\\"context\\\":null,\\\"children_spec\\\":[]}],\\\"leaves\\\":[\\\"*\\\"]}";
    let mut text = format!(
        "shardwright-graph 1\nmodel \"Small\"\nin_spec \"{spec}\"\nout_spec \"{spec}\"\nmodule \"\" \"Small\"\n"
    );
    for layer in 0..layers {
        text += &format!("module \"l.{layer}\" \"Linear\"\n");
    }
    text += &format!("input %x f32[{ROWS},{WIDTH}] 0\nparam %p f32[{WIDTH}] \"p\"\n");
    for layer in 0..layers {
        text += &format!("param %w{layer} f32[{WIDTH},{WIDTH}] \"l.{layer}.weight\"\n");
    }
    text += &format!("op %h0 f32[{ROWS},{WIDTH}] = aten.add.Tensor(%x, %p) in \"\" at \"small.py:1\"\n");
    for layer in 0..layers {
        let op = |name: &str, what: &str| {
            format!("op %{name}{layer} f32[{ROWS},{WIDTH}] = {what} in \"l.{layer}\" at \"small.py:2\"\n")
        };
        text += &op("a", &format!("aten.linear.default(%h{layer}, %w{layer})"));
        text += &op("b", &format!("aten.gelu.default(%a{layer})"));
        text += &op("c", &format!("aten.mul.Tensor(%b{layer}, 2.0)"));
        text += &format!(
            "op %h{} f32[{ROWS},{WIDTH}] = aten.add.Tensor(%c{layer}, %h{layer}) in \"l.{layer}\" at \"small.py:3\"\n",
            layer + 1
        );
    }
    text += &format!("op %sum f32[] = aten.sum.default(%h{layers}) in \"\" at \"small.py:4\"\noutput %sum\n");
    text.parse().expect("it parses")
}

/// Devices of so many operations and bytes a second, and what else their file says.
fn cluster(count: u32, peak: &str, bandwidth: &str, link: &str, runtime: &str) -> Cluster {
    let text = format!(
        "[[nodes]]\ndevices = \"d:{count}\"\n\
         link = {{ bandwidth = \"{link}\", latency = \"0 s\", start = \"0 s\", reached = 1.0 }}\n\
         [devices.d]\nmemory = \"1 TB\"\nbandwidth = \"{bandwidth}\"\npeak = {{ f32 = \"{peak}\" }}\n\
         overhead = \"0 s\"\ncompute_reached = 1.0\nmemory_reached = 1.0\n\
         [devices.d.runtime]\nstep = \"0 s\"\nwake = \"0 s\"\n{runtime}\n"
    );
    read(&text, "devices.toml").expect("it reads")
}

fn step(graph: &Graph, plan: &str, cluster: &Cluster, compiled: bool) -> SimulatedStep {
    let analysis = Analysis::new(graph);
    let plan = sets::named(plan, graph, &analysis, cluster.devices()).expect("a plan");
    let made = compiler::compile(graph, &analysis, &plan, &lower::loss(graph, program::Inputs::Global));
    let masters = Masters::new();
    let setting = Setting { cluster, batches: 2, optimizer: "none", masters: &masters, compiled };
    compiler::step(graph, &analysis, &plan, &made.expect("it compiles"), &setting, false).expect("a step")
}

fn seconds(graph: &Graph, plan: &str, cluster: &Cluster, compiled: bool) -> f64 {
    step(graph, plan, cluster, compiled).estimate.simulation.seconds
}

const ON_ONE_CLOCK: &str = "call = \"0 s\"\nhidden = 1.0";
const ON_TWO: &str = "call = \"0 s\"\nhidden = 1.0\nlaunch = \"1 ms\"";

#[test]
fn the_slower_of_host_and_device_counts() {
    let graph = model(4);
    let one = |peak: &str, runtime: &str| {
        seconds(&graph, "replicate", &cluster(1, peak, "100 PB/s", "1 GB/s", runtime), false)
    };
    // 17 operators forward and 15 backward, with two micro-batches, a millisecond each: the device has nothing to do.
    let bound = one("1000 PFLOP/s", ON_TWO);
    assert!((0.05..0.09).contains(&bound), "{bound}");
    // Of products that take 2 ms and more the host is ahead.
    let alone = one("0.1 TFLOP/s", ON_ONE_CLOCK);
    let both = one("0.1 TFLOP/s", ON_TWO);
    assert!(alone > 0.5 && (both / alone - 1.0).abs() < 0.02, "{both} for {alone}");
}

#[test]
fn a_message_slows_what_is_computed_meanwhile_and_takes_no_longer() {
    let graph = model(4);
    let told = |hidden: &str| {
        let here =
            cluster(2, "0.02 TFLOP/s", "100 PB/s", "1 GB/s", &format!("call = \"0 s\"\nhidden = {hidden}"));
        step(&graph, "zero3", &here, false).estimate.simulation
    };
    let (all, half) = (told("1.0"), told("0.5"));
    let (before, after) = (&all.ranks[0], &half.ranks[0]);
    assert!((after.communication / before.communication - 1.0).abs() < 1e-9);
    let taken = after.copies - before.copies;
    // But for what is waited for at once.
    assert!((0.4..=0.5).contains(&(taken / before.communication)), "{taken} of {}", before.communication);
    assert!(half.seconds > all.seconds && half.seconds <= all.seconds + taken + 1e-9);
}

#[test]
fn what_is_compiled_moves_what_leaves_its_kernels() {
    let graph = model(4);
    let here = cluster(1, "1000 PFLOP/s", "1 TB/s", "1 GB/s", ON_ONE_CLOCK);
    let forward = |compiled| step(&graph, "replicate", &here, compiled).estimate.simulation.ranks[0].forward;
    // Of two micro-batches.
    let passes = |seconds: f64| seconds * 1e12 / (2 * ROWS * WIDTH * 4) as f64;
    // Products read two and write one, whoever compiles. By themselves gelu and the product with a number take two, sums
    // of two three; before and behind the layers are two and one.
    let apart = passes(forward(false));
    assert!((apart - (4.0 * (3.0 + 2.0 + 2.0 + 3.0) + 2.0 + 1.0)).abs() < 0.1, "{apart}");
    // Joined they read the product and what came before, and write once; the last one's sum is at once summed up.
    let joined = passes(forward(true));
    assert!((joined - (4.0 * (3.0 + 3.0) - 1.0 + 2.0)).abs() < 0.1, "{joined}");
}
