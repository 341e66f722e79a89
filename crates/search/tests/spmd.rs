//! Plans of one block: what is claimed of them, beside what their programs take.

use cluster::{Cluster, named, read};
use compiler::{Setting, estimate};
use plan::{Plan, sets};
use search::Question;
use search::spmd::{Candidate, Count, explain, find, member};

use crate::model::Model;

fn models() -> Vec<Model> {
    let others = [
        include_str!("../../../tests/python/golden/mlp.graph"),
        include_str!("../../../tests/python/golden/resnet.graph"),
        include_str!("../../../tests/python/golden/two_losses.graph"),
        include_str!("graphs/twice.graph"),
        include_str!("graphs/sides.graph"),
        include_str!("graphs/parts.graph"),
        include_str!("graphs/uneven.graph"),
        include_str!("graphs/causal.graph"),
    ];
    [Model::gpt()].into_iter().chain(others.map(Model::new)).collect()
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
        one(&(node(3) + &node(3)), "1 GFLOP/s", "10 GB/s"),
        one(&node(8), "1 TFLOP/s", "1 GB/s"),
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
        compiled: false,
    };
    let found = estimate(question.graph, question.analysis, plan, question.boundary, &setting);
    let found = found.unwrap_or_else(|error| panic!("{}: {error:?}", plan.name));
    (found.simulation.seconds, found.memory.iter().map(check::Memory::total).max().unwrap_or(0))
}

/// A step takes no less than what is claimed of its plan, whatever is looked at.
fn is_no_less(question: &Question<'_>, candidate: &Candidate) {
    let (step, bytes) = seconds(question, &candidate.plan);
    let stats = candidate.claim.totals;
    assert!(stats.least() <= step * (1.0 + 1e-9), "{} of a step of {step}: {stats:?}", stats.least());
    assert!(stats.bytes <= bytes as f64, "{} bytes of {bytes}: {stats:?}", stats.bytes);
}

#[test]
fn what_is_found_is_proved_and_not_below_the_bound() {
    for model in models() {
        for cluster in clusters() {
            for batches in [1, 3] {
                let question = model.question(&cluster, cluster.devices(), batches);
                let inside = find(&question).expect("plans");
                assert!(!inside.plans.is_empty());
                for candidate in &inside.plans {
                    let step = seconds(&question, &candidate.plan).0;
                    assert!(step >= inside.stats.bound, "{step} is below {}", inside.stats.bound);
                }
            }
        }
    }
}

/// Names of plans of one block, whether or not they are plans of a model.
fn names(devices: u32) -> Vec<String> {
    let half = devices / 2;
    let own = ["data", "zero1", "zero3", "megatron", "replicate"].map(|name| format!("{name}:{devices}"));
    let recomputed =
        [format!("data:{devices} x recompute"), format!("zero2:{devices} x recompute:selective")];
    let both = [
        format!("data:{half} x megatron:2"),
        format!("zero3:2 x megatron:{half}"),
        format!("megatron:2 x data:{half}"),
        format!("zero2:{half} x megatron:2 x recompute"),
    ];
    own.into_iter().chain(recomputed).chain(both).collect()
}

#[test]
fn no_named_plan_that_fits_is_below_the_bound() {
    let (mut looked_at, mut closest) = (0, 0.0_f64);
    for model in models() {
        for cluster in clusters() {
            let question = model.question(&cluster, cluster.devices(), 2);
            let named =
                |name: &String| sets::named(name, &model.graph, &model.analysis, question.devices).ok();
            let plans: Vec<Plan> = names(question.devices).iter().filter_map(named).collect();
            let all: Vec<(f64, u64)> = plans.iter().map(|plan| seconds(&question, plan)).collect();
            let most = all.iter().map(|(_, bytes)| *bytes).max().expect("plans");
            for memory in [None, Some(most / 2), Some(most / 4)] {
                let bound = find(&Question { memory, ..question }).expect("plans").stats.bound;
                let fitting =
                    plans.iter().zip(&all).filter(|(_, (_, bytes))| *bytes <= memory.unwrap_or(most));
                for (plan, (step, _)) in fitting {
                    assert!(*step >= bound, "{}: {step} is below {bound}", plan.name);
                    (looked_at, closest) = (looked_at + 1, closest.max(bound / step));
                }
            }
        }
    }
    assert!(looked_at > 500 && closest > 0.7, "{looked_at} {closest}");
}

/// What is frozen is divided by plans with names alone: where memory is short, no bound may be claimed that they are below.
#[test]
fn no_plan_that_divides_what_is_frozen_is_below_the_bound() {
    let model = Model::new(include_str!("graphs/frozen.graph"));
    let text = "[[nodes]]\ndevices = \"d:2\"\nlink = { bandwidth = \"200 MB/s\", latency = \"1 us\", start = \"1 us\" }\n\
        [devices.d]\nmemory = \"42 MB\"\nbandwidth = \"100 GB/s\"\npeak = { f32 = \"40 GFLOP/s\" }\noverhead = \"1 us\"\n";
    let cluster = read(text, "devices.toml").expect("it reads");
    let question = model.question(&cluster, 2, 1);
    let plan = sets::named("zero3:2", &model.graph, &model.analysis, 2).expect("a plan");
    let (step, bytes) = seconds(&question, &plan);
    let bound = find(&question).expect("plans").stats.bound;
    assert!(bytes <= 42_000_000 && 0.0 < bound && bound <= step, "{bytes} {bound} {step}");
}

/// What is recomputed; nothing where no set is named.
fn term(text: &str) -> Option<plan::sets::SetTerm> {
    text.parse::<plan::PlanName>().ok().map(|name| name.terms()[0])
}

/// What of no span is needed again keeps nothing of it.
#[test]
fn what_is_frozen_keeps_nothing_to_be_computed_again() {
    let model = Model::new(include_str!("graphs/frozen.graph"));
    let cluster = named("cpu:4").expect("known");
    let mut first = |_: usize| 0;
    let question = model.question(&cluster, 4, 2);
    let found = member(&question, term("recompute"), 0.0, Count::Least, &mut first).expect("it is a plan");
    is_no_less(&question, &found.expect("there are layers"));
}

/// Any choices are a program that is proved, and takes no less than they come to at least.
#[test]
fn any_member_is_proved_and_takes_no_less_than_its_least() {
    let mut seed = 7_u64;
    let mut pick = |count: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % count
    };
    let mut looked_at = 0;
    for model in models() {
        for cluster in clusters() {
            for (batches, recomputed) in [(2, ""), (1, ""), (2, "recompute"), (3, "recompute:selective")] {
                let question = model.question(&cluster, cluster.devices(), batches);
                let byte = [0.0, 1e3, 1e9][pick(3)];
                let found =
                    member(&question, term(recomputed), byte, Count::Least, &mut pick).expect("it is a plan");
                let Some(found) = found else { continue };
                is_no_less(&question, &found);
                looked_at += 1;
            }
        }
    }
    assert!(looked_at > 100, "{looked_at}");
}

#[test]
fn what_was_chosen_is_the_best_of_the_ways_that_are_told() {
    for model in models() {
        for cluster in clusters() {
            let question = model.question(&cluster, 4, 2);
            let inside = find(&question).expect("plans");
            let claim = &inside.plans[0].claim;
            for op in model.graph.op_ids().step_by(7) {
                let stats = explain(&question, claim, op, 6).expect("ways").expect("it is small");
                assert!(stats.ops.contains(&op));
                assert_eq!(stats.ways[0].more, 0.0);
                assert!(stats.ways.windows(2).all(|two| two[0].more <= two[1].more));
                assert_eq!(stats.ways[0].totals, claim.totals);
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
    let inside = find(&question).expect("plans");
    assert!(!inside.plans.is_empty());
    assert_eq!(inside.stats.bound, 0.0);
    inside.plans.iter().for_each(|it| assert!(seconds(&question, &it.plan).0 > 0.0));
}

/// Where an operator is divided along a dim with its own algorithm, what is claimed is what that computes.
#[test]
fn what_is_rewritten_is_claimed_as_it_is_computed() {
    let text = "[[nodes]]\ndevices = \"d:4\"\nlink = { bandwidth = \"10 TB/s\", latency = \"0 s\", start = \"0 s\" }\n\
         [devices.d]\nmemory = \"1 GB\"\nbandwidth = \"1 GB/s\"\npeak = { f64 = \"1 PFLOP/s\", f32 = \"1 PFLOP/s\" }\noverhead = \"0 s\"\n";
    let cluster = read(text, "devices.toml").expect("it reads");
    let mut seed = 11_u64;
    let mut pick = |count: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % count
    };
    let (model, mut looked_at) = (Model::gpt(), 0);
    let question = model.question(&cluster, 4, 2);
    while looked_at < 8 {
        let found = member(&question, None, 0.0, Count::Alone, &mut pick).expect("a member").expect("a plan");
        let rewritten = plan::rewritings(&model.graph, &model.analysis, &found.plan);
        if !rewritten.iter().any(|it| it.dims == ["v"]) {
            continue;
        }
        let setting = Setting {
            cluster: &cluster,
            batches: 2,
            optimizer: "adamw",
            masters: &model.masters,
            compiled: false,
        };
        let found_of = estimate(&model.graph, &model.analysis, &found.plan, &model.boundary, &setting)
            .expect("it is estimated");
        let computed =
            found_of.simulation.ranks.iter().map(|it| it.forward + it.backward).fold(0.0, f64::max);
        let claimed = found.claim.totals.works;
        assert!((0.92..1.08).contains(&(claimed / computed)), "{claimed} of {computed}");
        looked_at += 1;
    }
}
