//! Plans of one block: what is claimed of them, beside what their programs take.

use check::Masters;
use cluster::{Cluster, named, read};
use compiler::{Setting, estimate};
use graph::Graph;
use plan::{Plan, sets};
use program::{Boundary, Inputs};
use rules::Analysis;
use search::Question;
use search::inside::{Candidate, find, member};

struct Model {
    graph: Graph,
    analysis: Analysis,
    boundary: Boundary,
    masters: Masters,
}

impl Model {
    fn new(text: &str) -> Self {
        let graph: Graph = text.parse().expect("it parses");
        let boundary = lower::loss(&graph, Inputs::Global);
        Self { analysis: Analysis::of(&graph), boundary, masters: Masters::new(), graph }
    }

    fn question<'q>(&'q self, cluster: &'q Cluster, devices: u32, batches: u32) -> Question<'q> {
        Question {
            graph: &self.graph,
            analysis: &self.analysis,
            boundary: &self.boundary,
            masters: &self.masters,
            cluster,
            devices,
            batches,
            optimizer: "adamw",
            memory: None,
        }
    }
}

fn models() -> Vec<Model> {
    vec![Model::new(include_str!("../../../tests/python/golden/gpt.graph"))]
}

/// Devices that are slow beside their links, and links that are slow beside their devices; in one node and in two.
fn clusters() -> Vec<Cluster> {
    let one = |nodes: &str, peak: &str, link: &str| {
        let text = format!(
            "{nodes}[network]\nbandwidth = \"{link}\"\nlatency = \"2 us\"\nstart = \"1 us\"\n\
             [devices.d]\nmemory = \"1 GB\"\nbandwidth = \"1 TB/s\"\npeak = {{ f64 = \"{peak}\", f32 = \"{peak}\" }}\noverhead = \"0 s\"\n"
        );
        read(&text, "devices.toml").expect("it reads")
    };
    let node = |count: u32| {
        format!(
            "[[nodes]]\ndevices = \"d:{count}\"\nlink = {{ bandwidth = \"1 GB/s\", latency = \"1 us\", start = \"1 us\" }}\n"
        )
    };
    vec![
        one(&node(4), "1 GFLOP/s", "1 GB/s"),
        one(&node(4), "1 TFLOP/s", "1 GB/s"),
        one(&(node(2) + &node(2)), "100 GFLOP/s", "100 MB/s"),
        named("cpu:4").expect("known"),
    ]
}

fn seconds(question: &Question<'_>, plan: &Plan) -> (f64, search::inside::Totals, u64) {
    let setting = Setting {
        cluster: question.cluster,
        batches: question.batches,
        optimizer: question.optimizer,
        masters: question.masters,
    };
    let found = estimate((question.graph, question.analysis), plan, question.boundary, &setting);
    let found = found.unwrap_or_else(|error| panic!("{}: {error:?}", plan.name));
    let lane = &found.simulation.ranks[0];
    let totals = search::inside::Totals {
        works: lane.forward + lane.backward + lane.again + lane.copies + lane.update,
        waits: lane.exposed,
        sends: lane.communication,
        bytes: 0.0,
    };
    (found.simulation.seconds, totals, found.memory.iter().map(check::Memory::total).max().unwrap_or(0))
}

/// A step takes no less than what is claimed of its plan, for any share of what is sent meanwhile.
fn is_no_less(question: &Question<'_>, candidate: &Candidate) {
    let (step, found, bytes) = seconds(question, &candidate.plan);
    let told = candidate.totals;
    println!("{} {step:e} {told:?} {found:?} {bytes}", candidate.plan.name);
    let slack = 1.0 + 1e-6;
    assert!(told.works + told.waits <= step * slack, "{told:?} of a step of {step}, {found:?}");
    assert!(told.waits + told.sends <= step * slack, "{told:?} of a step of {step}, {found:?}");
    if told.bytes > bytes as f64 {
        println!("MORE {} of {bytes}, batches {}", told.bytes / bytes as f64, question.batches);
    }
}

#[test]
fn what_is_found_takes_no_less_than_is_claimed() {
    for model in models() {
        for cluster in clusters() {
            for batches in [1, 3] {
                let question = model.question(&cluster, 4, batches);
                let inside = find(&question).expect("plans");
                assert!(!inside.plans.is_empty());
                for candidate in &inside.plans {
                    is_no_less(&question, candidate);
                    assert!(seconds(&question, &candidate.plan).0 >= inside.bound);
                }
            }
        }
    }
}

#[test]
fn no_named_plan_is_below_the_bound() {
    let names = [
        "data:4",
        "zero1:4",
        "zero3:4",
        "megatron:4",
        "data:2 x megatron:2",
        "zero3:2 x megatron:2",
        "megatron:2 x data:2",
        "data:4 x recompute",
        "zero2:4 x recompute:selective",
        "replicate:4",
    ];
    for model in models() {
        for cluster in clusters() {
            let question = model.question(&cluster, 4, 2);
            let bound = find(&question).expect("plans").bound;
            for name in names {
                let plan = sets::named(name, &model.graph, &model.analysis, 4).expect("a plan");
                let step = seconds(&question, &plan).0;
                assert!(step >= bound, "{name}: {step} is below {bound}");
            }
        }
    }
}

/// Any choices are a program that is proved, and takes no less than is claimed.
#[test]
fn any_member_is_proved_and_takes_no_less_than_is_claimed() {
    let mut seed = 7_u64;
    let mut pick = |count: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % count
    };
    for model in models() {
        for cluster in clusters() {
            let question = model.question(&cluster, 4, 2);
            for again in ["", "recompute", "recompute:selective"] {
                for byte in [0.0, 1e3, 1e9] {
                    let found = member(&question, again, byte, &mut pick).expect("a member");
                    is_no_less(&question, &found.expect("it has layers"));
                }
            }
        }
    }
}
