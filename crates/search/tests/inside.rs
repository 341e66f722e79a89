//! Plans of one block: what is claimed of them, beside what their programs take.

mod model;

use cluster::{Cluster, named, read};
use compiler::{Setting, estimate};
use plan::{Plan, sets};
use search::Question;
use search::inside::{Candidate, explain, find, member};

use model::Model;

fn models() -> Vec<Model> {
    vec![Model::gpt()]
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

/// Seconds of a step, and the bytes of the rank that needs most.
fn seconds(question: &Question<'_>, plan: &Plan) -> (f64, u64) {
    let setting = Setting {
        cluster: question.cluster,
        batches: question.batches,
        optimizer: question.optimizer,
        masters: question.masters,
    };
    let found = estimate((question.graph, question.analysis), plan, question.boundary, &setting);
    let found = found.unwrap_or_else(|error| panic!("{}: {error:?}", plan.name));
    (found.simulation.seconds, found.memory.iter().map(check::Memory::total).max().unwrap_or(0))
}

/// A step takes no less than what is claimed of its plan, whatever is looked at.
fn is_no_less(question: &Question<'_>, candidate: &Candidate) {
    let (step, bytes) = seconds(question, &candidate.plan);
    let told = candidate.claim.totals;
    assert!(told.least() <= step * (1.0 + 1e-6), "{} of a step of {step}: {told:?}", told.least());
    assert!(told.bytes <= bytes as f64, "{} bytes of {bytes}: {told:?}", told.bytes);
}

#[test]
fn what_is_found_takes_no_less_than_is_claimed() {
    for model in models() {
        for cluster in clusters() {
            for batches in [1, 3] {
                let question = model.question(&cluster, 4, batches);
                let inside = find(&question, None).expect("plans");
                assert!(!inside.plans.is_empty());
                for candidate in &inside.plans {
                    is_no_less(&question, candidate);
                    assert!(seconds(&question, &candidate.plan).0 >= inside.told.bound);
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
            let bound = find(&question, None).expect("plans").told.bound;
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

#[test]
fn what_was_chosen_is_the_best_of_the_ways_that_are_told() {
    for model in models() {
        for cluster in clusters() {
            let question = model.question(&cluster, 4, 2);
            let inside = find(&question, None).expect("plans");
            let claim = &inside.plans[0].claim;
            for op in model.graph.op_ids().step_by(7) {
                let told = explain(&question, claim, op, 6).expect("ways").expect("it is small");
                assert!(told.ops.contains(&op));
                assert_eq!(told.ways[0].more, 0.0);
                assert!(told.ways.windows(2).all(|two| two[0].more <= two[1].more));
                assert_eq!(told.ways[0].totals, claim.totals);
            }
        }
    }
}

#[test]
fn of_devices_that_differ_plans_are_found_and_no_bound_is_claimed() {
    let text = "[[nodes]]\ndevices = [\"h200:1\", \"l4:1\"]\n";
    let cluster = read(text, "mixed.toml").expect("it reads");
    let model = Model::gpt();
    let question = model.question(&cluster, 2, 1);
    let inside = find(&question, None).expect("plans");
    assert!(!inside.plans.is_empty());
    assert_eq!(inside.told.bound, 0.0);
    inside.plans.iter().for_each(|it| assert!(seconds(&question, &it.plan).0 > 0.0));
}
