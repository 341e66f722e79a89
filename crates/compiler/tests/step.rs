//! Steps on clusters, beside what formulas say of them.

use std::collections::{BTreeMap, BTreeSet};

use check::Masters;
use cluster::{Cluster, Faster, read};
use compiler::{Compiled, Estimate, Setting, SimulatedStep};
use diag::Result;
use graph::Graph;
use plan::{Plan, sets};
use program::Kind;
use rules::Analysis;

const LAYERS: usize = 8;
const WIDTH: u64 = 1024;
const ROWS: u64 = 4096;

/// Layers that are alike, behind a first sum through which gradients flow.
fn chain() -> Graph {
    let mut text = String::from(
        "shardwright-graph 1\nmodel \"Chain\"\n\
         in_spec \"{\\\"tree\\\":[1,{\\\"type\\\":null,\\\"context\\\":null,\\\"children_spec\\\":[]}],\\\"leaves\\\":[\\\"*\\\"]}\"\n\
         out_spec \"{\\\"tree\\\":[1,{\\\"type\\\":null,\\\"context\\\":null,\\\"children_spec\\\":[]}],\\\"leaves\\\":[\\\"*\\\"]}\"\n\
         module \"\" \"Chain\"\n",
    );
    for layer in 0..LAYERS {
        text += &format!("module \"l.{layer}\" \"Linear\"\n");
    }
    text += &format!("input %x f32[{ROWS},{WIDTH}] 0\nparam %p f32[{WIDTH}] \"p\"\n");
    for layer in 0..LAYERS {
        text += &format!("param %w{layer} f32[{WIDTH},{WIDTH}] \"l.{layer}.weight\"\n");
    }
    text += &format!("op %h0 f32[{ROWS},{WIDTH}] = aten.add.Tensor(%x, %p) in \"\" at \"chain.py:1\"\n");
    for layer in 0..LAYERS {
        text += &format!(
            "op %h{} f32[{ROWS},{WIDTH}] = aten.linear.default(%h{layer}, %w{layer}) in \"l.{layer}\" at \"chain.py:2\"\n",
            layer + 1
        );
    }
    text += &format!("op %sum f32[] = aten.sum.default(%h{LAYERS}) in \"\" at \"chain.py:3\"\noutput %sum\n");
    text.parse().expect("it parses")
}

/// So many devices that compute, and do nothing else that takes time; links as given.
fn devices(count: u32, link: &str) -> Cluster {
    let text = format!(
        "[[nodes]]\ndevices = \"d:{count}\"\nlink = {{ {link} }}\n\
         [devices.d]\nmemory = \"1 TB\"\nbandwidth = \"100 PB/s\"\npeak = {{ f32 = \"1 TFLOP/s\" }}\n\
         overhead = \"0 s\"\ncompute_reached = 1.0\nmemory_reached = 1.0\n"
    );
    read(&text, "devices.toml").expect("it reads")
}

const FREE: &str = "bandwidth = \"100 PB/s\", latency = \"0 s\", start = \"0 s\", reached = 1.0";
const SLOW: &str = "bandwidth = \"1 GB/s\", latency = \"0 s\", start = \"0 s\", reached = 1.0";

struct Model {
    graph: Graph,
    analysis: Analysis,
}

impl Model {
    fn new() -> Self {
        Self::from_graph(chain())
    }

    fn from_graph(graph: Graph) -> Self {
        Self { analysis: Analysis::new(&graph), graph }
    }

    fn compiled(&self, plan: &str, count: u32) -> (Plan, Compiled) {
        let plan = sets::named(plan, &self.graph, &self.analysis, count).expect("a plan");
        let boundary = lower::loss(&self.graph, program::Inputs::Global);
        let compiled = compiler::compile(&self.graph, &self.analysis, &plan, &boundary).expect("it compiles");
        (plan, compiled)
    }

    fn estimate(&self, plan: &str, cluster: &Cluster, batches: u32, masters: &Masters) -> Estimate {
        let setting = Setting { cluster, batches, optimizer: "none", masters, compiled: false };
        let (chosen, _) = self.compiled(plan, cluster.devices());
        let boundary = lower::loss(&self.graph, program::Inputs::Global);
        compiler::estimate(&self.graph, &self.analysis, &chosen, &boundary, &setting).expect("an estimate")
    }

    fn step(&self, plan: &str, count: u32, cluster: &Cluster, batches: u32) -> Result<SimulatedStep> {
        let (plan, compiled) = self.compiled(plan, count);
        let masters = Masters::new();
        let setting = Setting { cluster, batches, optimizer: "none", masters: &masters, compiled: false };
        compiler::step(&self.graph, &self.analysis, &plan, &compiled, &setting, true)
    }
}

/// Seconds of a layer's forward on one device, and of each of its two gradients.
fn layer() -> f64 {
    (2 * ROWS * WIDTH * WIDTH) as f64 / 1e12
}

fn near(found: f64, expected: f64) {
    assert!((found / expected - 1.0).abs() < 0.01, "{found} for {expected}");
}

#[test]
fn one_device_computes_and_nothing_else() {
    let step = Model::new().step("replicate", 1, &devices(1, FREE), 3).expect("a step");
    near(step.estimate.simulation.seconds, 3.0 * 3.0 * layer() * LAYERS as f64);
    let lane = &step.estimate.simulation.ranks[0];
    near(lane.backward, 2.0 * lane.forward);
    assert_eq!((lane.exposed, lane.idle, lane.recomputed, lane.communication), (0.0, 0.0, 0.0, 0.0));
    near(step.estimate.utilisation, 1.0);
}

#[test]
fn the_parts_of_every_rank_are_the_step() {
    let model = Model::new();
    for plan in
        ["data", "zero3", "megatron", "data:2 x megatron:2", "stages:4 x 1f1b", "stages:2 x zb-h1 x data:2"]
    {
        for link in [FREE, SLOW] {
            let step = model.step(plan, 4, &devices(4, link), 4).expect("a step");
            for lane in &step.estimate.simulation.ranks {
                let parts: f64 = lane.parts().iter().map(|(_, seconds)| seconds).sum();
                near(parts, step.estimate.simulation.seconds);
                assert!(lane.parts().iter().all(|(_, seconds)| *seconds >= -1e-12), "{plan}: {lane:?}");
            }
        }
    }
}

#[test]
fn pipelines_are_idle_as_long_as_their_formula_says() {
    let model = Model::new();
    for (stages, plan) in [(2, "stages:2 x 1f1b"), (4, "stages:4 x 1f1b"), (4, "stages:4 x gpipe")] {
        for batches in [4, 8, 16] {
            let step = model.step(plan, stages, &devices(stages, FREE), batches).expect("a step");
            let (p, m) = (f64::from(stages), f64::from(batches));
            for lane in &step.estimate.simulation.ranks {
                near(lane.idle / step.estimate.simulation.seconds, (p - 1.0) / (m + p - 1.0));
            }
        }
    }
}

#[test]
fn recomputation_is_a_forward_more() {
    let model = Model::new();
    let (plain, recomputed) = ("replicate", "replicate x recompute");
    let seconds = |plan| model.step(plan, 1, &devices(1, FREE), 1).expect("a step").estimate.simulation;
    let (plain, recomputed) = (seconds(plain), seconds(recomputed));
    near(recomputed.seconds - plain.seconds, recomputed.ranks[0].recomputed);
    // Eight linears in three segments: what each begins with is kept, and the last one is not computed again.
    near(recomputed.ranks[0].recomputed, 3.0 / 8.0 * recomputed.ranks[0].forward);
}

#[test]
fn gradients_are_reduced_as_long_as_a_ring_takes() {
    let model = Model::new();
    let step = model.step("data", 4, &devices(4, SLOW), 2).expect("a step");
    let bytes = (4 * (LAYERS as u64 * WIDTH * WIDTH + WIDTH)) as f64;
    let lane = &step.estimate.simulation.ranks[0];
    near(lane.communication, 2.0 * 0.75 * bytes / 1e9);
    assert!(lane.exposed > 0.0 && lane.exposed <= lane.communication);
    let sent: u64 = step
        .estimate
        .simulation
        .messages
        .iter()
        .filter(|it| it.kind == Kind::ReduceGradients)
        .map(|it| it.bytes)
        .sum();
    assert_eq!(sent, 4 * (LAYERS as u64 * WIDTH * WIDTH + WIDTH));
    for message in &step.estimate.simulation.messages {
        assert!(message.share <= 1.0 + 1e-9, "{message:?}");
    }
}

#[test]
fn what_is_gathered_ahead_is_hidden_by_what_is_computed() {
    // A layer is gathered in less time than it computes on a part of the rows.
    let link = "bandwidth = \"2 GB/s\", latency = \"0 s\", start = \"0 s\", reached = 1.0";
    let step = Model::new().step("zero3", 2, &devices(2, link), 1).expect("a step");
    let lane = &step.estimate.simulation.ranks[0];
    assert!(lane.exposed < 0.5 * lane.communication, "{lane:?}");
    assert!(lane.exposed > 0.0, "the first layer is waited for: {lane:?}");
}

#[test]
fn what_lives_on_the_host_is_waited_for_where_the_way_there_is_slow() {
    let model = Model::new();
    for plan in ["zero3 x offload:parameters", "data x offload:activations"] {
        let [quick, slow] = ["100 PB/s", "100 MB/s"].map(|host| {
            let text = format!(
                "[[nodes]]\ndevices = \"d:2\"\nlink = {{ {FREE} }}\n[devices.d]\nlike = \"h100\"\nhost = \"{host}\"\n"
            );
            let cluster = read(&text, "host.toml").expect("it reads");
            model.step(plan, 2, &cluster, 2).expect("a step").estimate.simulation
        });
        assert!(slow.seconds > 2.0 * quick.seconds, "{plan}: {} {}", slow.seconds, quick.seconds);
        assert!(slow.ranks[0].exposed > quick.ranks[0].exposed, "{plan}");
    }
}

/// All that memory counts there, also what one operator makes and another one keeps.
#[test]
fn what_is_on_the_host_goes_there_and_comes_back_with_each_micro_batch() {
    let gpt = include_str!("../../../tests/python/golden/gpt.graph").parse().expect("it parses");
    for model in [Model::new(), Model::from_graph(gpt)] {
        let text = "[[nodes]]\ndevices = \"d:1\"\n[devices.d]\nlike = \"h100\"\nhost = \"10 kB/s\"\n";
        let cluster = read(text, "host.toml").expect("it reads");
        for batches in [1, 3] {
            let told = model.estimate("replicate x offload:activations", &cluster, batches, &Masters::new());
            let there = told.memory[0].offloaded as f64;
            assert!(there > 0.0);
            near(told.simulation.seconds, 2.0 * f64::from(batches) * there / 10e3);
        }
    }
}

#[test]
fn a_slow_link_makes_a_step_longer_and_not_its_computation() {
    let model = Model::new();
    for plan in ["data", "zero3", "megatron", "stages:4 x 1f1b"] {
        let [fast, slow] = [FREE, SLOW]
            .map(|link| model.step(plan, 4, &devices(4, link), 4).expect("a step").estimate.simulation);
        assert!(slow.seconds > 1.01 * fast.seconds, "{plan}");
        for (a, b) in fast.ranks.iter().zip(&slow.ranks) {
            near(a.forward + a.backward, b.forward + b.backward);
        }
    }
}

#[test]
fn what_is_told_of_messages_is_what_the_proof_counts() {
    let model = Model::new();
    for plan in ["data", "megatron", "data:2 x megatron:2", "stages:2 x data:2"] {
        let (made, compiled) = model.compiled(plan, 4);
        let (cluster, masters) = (devices(4, SLOW), Masters::new());
        let setting =
            Setting { cluster: &cluster, batches: 1, optimizer: "none", masters: &masters, compiled: false };
        let step =
            compiler::step(&model.graph, &model.analysis, &made, &compiled, &setting, true).expect("a step");
        for (lane, parts) in step.estimate.simulation.ranks.iter().zip(&step.estimate.simulation.parts) {
            let mut told: BTreeMap<(&str, &str), (usize, u64)> = BTreeMap::new();
            for part in parts.iter().filter(|part| part.kind != Kind::Receive) {
                let found = told.entry((part.pass.name(), part.kind.name())).or_default();
                *found = (found.0 + 1, found.1 + step.estimate.simulation.messages[part.message].bytes);
            }
            let counted = &compiled.proof.traffic[lane.rank.index()];
            let counted: BTreeMap<(&str, &str), (usize, u64)> = counted
                .iter()
                .map(|(what, issued)| (*what, (issued.count, issued.bytes)))
                .filter(|it| it.1.1 > 0)
                .collect();
            assert_eq!(told, counted, "{plan}, rank {}", lane.rank.0);
        }
    }
}

#[test]
fn refusals() {
    let model = Model::new();
    let code = |step: Result<SimulatedStep>| step.err().map(|error| error.code);
    assert_eq!(code(model.step("data", 4, &devices(2, FREE), 1)), Some("SW0910"));
    assert_eq!(code(model.step("data", 2, &devices(2, FREE), 0)), Some("SW0912"));
    assert_eq!(code(model.step("data", 2, &devices(4, FREE), 1)), None);
}

#[test]
fn a_step_is_told_the_same_each_time() {
    let model = Model::new();
    let step = || model.step("stages:2 x zero3:2 x 1f1b", 4, &devices(4, SLOW), 4).expect("a step");
    let (a, b) = (step(), step());
    assert_eq!(a.estimate.simulation, b.estimate.simulation);
    assert_eq!((a.manifest, a.trace), (b.manifest, b.trace));
}

#[test]
fn an_estimate_is_the_step_without_who_does_what_when() {
    let (model, masters) = (Model::new(), Masters::new());
    let plans = ["data", "zero3", "megatron", "stages:4 x 1f1b", "stages:2 x zb-h1 x data:2"];
    for (plan, batches) in plans.iter().flat_map(|plan| [(plan, 1), (plan, 8)]) {
        let cluster = devices(4, SLOW);
        let told = model.step(plan, 4, &cluster, batches).expect("a step").estimate;
        let found = model.estimate(plan, &cluster, batches, &masters);
        assert_eq!(found.simulation.seconds.to_bits(), told.simulation.seconds.to_bits(), "{plan}");
        assert_eq!(found.simulation.ranks, told.simulation.ranks, "{plan}");
        assert_eq!((&found.memory, &found.passes), (&told.memory, &told.passes), "{plan}");
        let noted = &found.simulation;
        assert!(noted.spans.is_empty() && noted.messages.is_empty() && noted.parts.is_empty(), "{plan}");
        let whole = &told.simulation;
        assert!(!whole.spans.is_empty() && !whole.messages.is_empty() && !whole.parts.is_empty(), "{plan}");
    }
}

/// Two that take half as long as the other two.
fn uneven() -> Cluster {
    let link = "link = { bandwidth = \"3 GB/s\", latency = \"1 ms\" }";
    let device = |name: &str, peak: u32| {
        format!(
            "[devices.{name}]\nmemory = \"1 TB\"\nbandwidth = \"1 TB/s\"\npeak = {{ f32 = \"{peak} TFLOP/s\" }}\n"
        )
    };
    let text = format!(
        "[[nodes]]\ndevices = \"fast:2\"\n{link}\n[[nodes]]\ndevices = \"slow:2\"\n{link}\n\
         [network]\nbandwidth = \"2 GB/s\"\nlatency = \"1 ms\"\n{}{}",
        device("fast", 2),
        device("slow", 1)
    );
    read(&text, "uneven.toml").expect("it reads")
}

#[test]
fn of_many_micro_batches_few_are_gone_through() {
    let (model, masters) = (Model::new(), Masters::new());
    let of_all = [
        "data",
        "zero3",
        "megatron",
        "zero3 x recompute",
        "zero1 x offload:activations",
        "zero3 x offload:parameters",
        "stages:4 x gpipe",
        "stages:4 x 1f1b",
        "stages:2 x zb-h1 x data:2",
        "stages:2 x zb-v x zero3:2",
        "stages:2 x interleaved x megatron:2",
        "stages:2 x 1f1b x data:2 x recompute",
    ];
    let mut never: BTreeSet<&str> = of_all.into_iter().collect();
    for (plan, batches) in of_all.iter().flat_map(|plan| [(plan, 48), (plan, 65)]) {
        for cluster in [devices(4, SLOW), devices(4, FREE), uneven()] {
            let told = model.step(plan, 4, &cluster, batches).expect("a step").estimate.simulation;
            let found = model.estimate(plan, &cluster, batches, &masters).simulation;
            assert_eq!(told.gone_through, batches);
            let same = |a: f64, b: f64| (a - b).abs() <= 1e-9 * told.seconds;
            assert!(
                same(found.seconds, told.seconds),
                "{plan}, {batches}: {} for {}",
                found.seconds,
                told.seconds
            );
            for (found, told) in found.ranks.iter().zip(&told.ranks) {
                for ((part, found), (_, told)) in found.parts().iter().zip(told.parts()) {
                    assert!(same(*found, told), "{plan}, {batches}, {part}: {found} for {told}");
                }
                assert!(same(found.communication, told.communication), "{plan}, {batches}");
            }
            let is_shorter = found.gone_through < batches;
            assert!(is_shorter || plan.contains("stages"), "{plan}, {batches}");
            if is_shorter {
                never.remove(plan);
            }
        }
    }
    // All forwards, and then all backwards: there is no one period.
    assert_eq!(never.into_iter().collect::<Vec<_>>(), ["stages:4 x gpipe"]);
}

#[test]
fn a_compiled_plan_is_estimated_as_its_step_is_simulated() {
    let (model, masters) = (Model::new(), Masters::new());
    for name in ["zero3", "stages:4 x 1f1b", "stages:2 x zb-v x zero3:2"] {
        let (cluster, batches) = (uneven(), 512);
        let (plan, compiled) = model.compiled(name, 4);
        let setting =
            Setting { cluster: &cluster, batches, optimizer: "none", masters: &masters, compiled: false };
        let brief = compiler::brief(&model.graph, &model.analysis, &plan, &compiled, &setting);
        let brief = brief.expect("an estimate").simulation;
        let whole = model.step(name, 4, &cluster, batches).expect("a step").estimate.simulation;
        assert!((brief.seconds / whole.seconds - 1.0).abs() < 1e-9, "{name}: {}", brief.seconds);
        assert!(brief.gone_through < batches / 4, "{name}: {}", brief.gone_through);
    }
}

#[test]
fn on_several_clusters_it_is_estimated_as_on_each() {
    let (model, masters) = (Model::new(), Masters::new());
    for name in ["zero3", "stages:2 x zb-v x zero3:2"] {
        let cluster = uneven();
        let clusters = [Faster::Links, Faster::Devices, Faster::Hosts].map(|part| cluster.faster(part, 2.0));
        let (plan, compiled) = model.compiled(name, 4);
        let on = |cluster| Setting {
            cluster,
            batches: 16,
            optimizer: "adamw",
            masters: &masters,
            compiled: false,
        };
        let Model { graph, analysis, .. } = &model;
        let together = compiler::brief_on(&clusters, graph, analysis, &plan, &compiled, &on(&cluster));
        let together = together.expect("estimates");
        for (cluster, estimate) in clusters.iter().zip(&together) {
            let alone =
                compiler::brief(graph, analysis, &plan, &compiled, &on(cluster)).expect("an estimate");
            assert!(estimate.simulation.seconds.to_bits() == alone.simulation.seconds.to_bits(), "{name}");
            assert_eq!(estimate.memory, alone.memory, "{name}");
        }
    }
}

/// A step of which all but the memory's bandwidth, and the host's, is as quick as can be.
fn with_memory(plan: &str, count: u32, batches: u32) -> Estimate {
    let text = format!(
        "[[nodes]]\ndevices = \"d:{count}\"\nlink = {{ {FREE} }}\n\
         [devices.d]\nmemory = \"1 TB\"\nbandwidth = \"100 GB/s\"\npeak = {{ f32 = \"1000 PFLOP/s\" }}\n\
         overhead = \"0 s\"\ncompute_reached = 1.0\nmemory_reached = 1.0\nhost = \"10 GB/s\"\nhost_bandwidth = \"20 GB/s\"\n"
    );
    let (model, cluster, masters) =
        (Model::new(), read(&text, "memory.toml").expect("it reads"), Masters::new());
    let (chosen, _) = model.compiled(plan, count);
    let boundary = lower::loss(&model.graph, program::Inputs::Global);
    let setting =
        Setting { cluster: &cluster, batches, optimizer: "adamw", masters: &masters, compiled: false };
    compiler::estimate(&model.graph, &model.analysis, &chosen, &boundary, &setting).expect("an estimate")
}

/// Bytes of all parameters.
const PARAMETERS: f64 = 4.0 * (LAYERS as u64 * WIDTH * WIDTH + WIDTH) as f64;
/// AdamW has two tensors for each, and reads or writes twenty in a step.
const STATES: f64 = 2.0;
const PASSES: f64 = 20.0;

#[test]
fn what_is_on_the_host_is_updated_in_its_time() {
    let update = |plan: &str, batches| with_memory(plan, 1, batches).simulation.ranks[0].update;
    for batches in [1, 3] {
        let here = PASSES * PARAMETERS / 100e9;
        near(update("replicate", batches), here);
        near(update("replicate x offload:state", batches), here + 2.0 * STATES * PARAMETERS / 10e9);
    }
    // The last gradients are on their way when backward ends, and what is added of them is read twice and written.
    let there = PASSES * PARAMETERS / 20e9;
    let (one, three) =
        (update("replicate x offload:parameters", 1), update("replicate x offload:parameters", 3));
    assert!(there <= one && one < there + PARAMETERS / 10e9, "{one} {there}");
    assert!(one < three && three < one + 2.0 * 3.0 * PARAMETERS / 20e9, "{one} {three}");
    let both = with_memory("data x offload:parameters", 2, 1).simulation.ranks[0].update;
    assert!(both >= there, "{both} {there}");
}

#[test]
fn gradients_add_up_where_they_are() {
    // What a step of so many takes of the device beyond so many steps of one.
    let added = |plan: &str, batches: u32| {
        let of = |batches| {
            let step = with_memory(plan, 4, batches);
            let lane = &step.simulation.ranks[0];
            lane.forward + lane.backward + lane.copies
        };
        of(batches) - f64::from(batches) * of(1)
    };
    for batches in [2, 5] {
        let whole = f64::from(batches - 1) * 3.0 * PARAMETERS / 100e9;
        for (plan, share) in
            [("data", 1.0), ("zero1", 1.0), ("zero2", 0.25), ("zero3", 0.25), ("megatron", 0.25)]
        {
            let found = added(plan, batches);
            assert!((found - share * whole).abs() < 0.05 * whole, "{plan}: {found} for {}", share * whole);
        }
    }
}
