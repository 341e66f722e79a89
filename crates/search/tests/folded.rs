//! What few ranks tell of a step, beside what all of them tell: the same, to the last bit.

use check::Folding;
use cluster::{Cluster, named, read};
use compiler::{Estimate, Setting, estimate, estimate_one_by_one, estimate_unproved};
use plan::{Plan, sets};
use search::Question;
use search::spmd::{Count, find, member};
use simulate::Lane;

use crate::model::Model;

fn models() -> Vec<Model> {
    let others = [
        include_str!("../../compiler/tests/alike.graph"),
        include_str!("graphs/words.graph"),
        include_str!("graphs/parts.graph"),
    ];
    [Model::gpt()].into_iter().chain(others.map(Model::new)).collect()
}

/// Nodes of so many devices each, quick ones and slow ones.
fn nodes(name: &str, nodes: &[(u32, u32)]) -> Cluster {
    let node = |(quick, slow): &(u32, u32)| {
        let kinds = [(quick, "quick"), (slow, "slow")].into_iter().filter(|(count, _)| **count > 0);
        let kinds: Vec<String> = kinds.map(|(count, kind)| format!("\"{kind}:{count}\"")).collect();
        let link = "link = { bandwidth = \"10 GB/s\", latency = \"1 us\", start = \"1 us\" }";
        format!("[[nodes]]\ndevices = [{}]\n{link}\n", kinds.join(", "))
    };
    let device = |name: &str, peak: &str| {
        format!(
            "[devices.{name}]\nmemory = \"1 GB\"\nbandwidth = \"1 TB/s\"\npeak = {{ f64 = \"{peak}\", f32 = \"{peak}\" }}\noverhead = \"1 us\"\n"
        )
    };
    let text = nodes.iter().map(node).collect::<String>()
        + "[network]\nbandwidth = \"100 MB/s\"\nlatency = \"5 us\"\nstart = \"3 us\"\n"
        + &device("quick", "100 GFLOP/s")
        + &if nodes.iter().any(|(_, slow)| *slow > 0) { device("slow", "1 GFLOP/s") } else { String::new() };
    read(&text, name).expect("it reads")
}

fn clusters() -> Vec<Cluster> {
    vec![
        nodes("one", &[(6, 0)]),
        nodes("two", &[(6, 0), (6, 0)]),
        nodes("three", &[(4, 0), (4, 0), (4, 0)]),
        nodes("pairs", &[(2, 0); 6]),
        nodes("uneven", &[(5, 0), (1, 0)]),
        nodes("uneven", &[(7, 0), (3, 0), (2, 0)]),
        nodes("mixed", &[(5, 1)]),
        nodes("mixed", &[(6, 0), (5, 1)]),
        nodes("kinds", &[(6, 0), (0, 6)]),
        nodes("kinds", &[(8, 0), (0, 8)]),
        named("dgx-h100:8x3").expect("known"),
    ]
}

fn names(devices: u32) -> Vec<String> {
    let (half, third) = (devices / 2, devices / 3);
    vec![
        format!("data:{devices}"),
        format!("zero3:{devices}"),
        format!("megatron:{devices}"),
        format!("zero2:{devices} x recompute"),
        format!("data:{half} x megatron:2"),
        format!("megatron:2 x zero1:{half}"),
        format!("stages:2 x data:{half}"),
        format!("data:{half} x stages:2 x gpipe"),
        format!("stages:2 x zero3:{half} x zb-h1"),
        format!("stages:3 x data:{third}"),
        format!("stages:2 x zero2:{half} x interleaved:2 x recompute"),
        format!("stages:2 x megatron:2 x data:{}", devices / 4),
    ]
}

/// Whether what a plan takes is known without a proof.
fn is_measured(question: &Question<'_>, plan: &Plan) -> bool {
    let it = lower::lowered(question.graph, question.analysis, plan, question.boundary).expect("it lowers");
    let model = (&*it.graph, &*it.analysis);
    check::measured(model, &it.program, question.masters, Folding::LONG, question.batches).is_some()
}

/// All estimates; whether one of them was by folding.
fn both(question: &Question<'_>, plan: &Plan, measured: &mut [u32; 2]) -> bool {
    measured[usize::from(is_measured(question, plan))] += 1;
    let setting = Setting {
        cluster: question.cluster,
        batches: question.batches,
        optimizer: question.optimizer,
        masters: question.masters,
        compiled: false,
    };
    let stats = |estimate: diag::Result<Estimate>| {
        estimate.unwrap_or_else(|error| panic!("{}: {error:?}", plan.name))
    };
    let few = stats(estimate(question.graph, question.analysis, plan, question.boundary, &setting));
    let all =
        stats(estimate_one_by_one(question.graph, question.analysis, plan, question.boundary, &setting));
    let unproved =
        stats(estimate_unproved(question.graph, question.analysis, plan, question.boundary, &setting));
    let called = format!("{} on {}", plan.name, question.cluster.name);
    assert_eq!(all.simulation.ranks.len(), plan.devices as usize);
    same(&few, &all, &called);
    same(&unproved, &all, &format!("{called}, not proved"));
    few.simulation.ranks.len() < all.simulation.ranks.len()
}

fn same(few: &Estimate, all: &Estimate, called: &str) {
    let numbers = |it: &Estimate| [it.simulation.seconds, it.operations, it.utilisation].map(f64::to_bits);
    assert_eq!(numbers(few), numbers(all), "{called}");
    assert_eq!(few.passes, all.passes, "{called}");
    assert_eq!(few.handed, all.handed, "{called}");
    assert_eq!(few.memory, all.memory, "{called}");
    let lanes = |it: &Estimate| it.simulation.ranks.clone();
    for lane in lanes(few) {
        assert_eq!(lane, lanes(all)[lane.rank.index()], "{called}");
    }
    let parts = |lane: &Lane| lane.parts().map(|(_, seconds)| seconds.to_bits());
    for lane in lanes(all) {
        assert!(lanes(few).iter().any(|other| parts(other) == parts(&lane)), "{called}: {lane:?}");
    }
}

#[test]
fn a_step_of_few_ranks_is_that_of_all() {
    let mut seed = 5_u64;
    let mut pick = |count: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % count
    };
    let (mut named, mut found, mut any, mut measured) = ([0, 0], [0, 0], [0, 0], [0, 0]);
    for model in models() {
        for cluster in clusters() {
            let batches = [1, 3, 4][pick(3)];
            let question = model.question(&cluster, cluster.devices(), batches);
            for name in names(question.devices) {
                let Ok(plan) = sets::named(&name, &model.graph, &model.analysis, question.devices) else {
                    continue;
                };
                named[usize::from(both(&question, &plan, &mut measured))] += 1;
            }
            for candidate in find(&question).expect("plans").plans {
                found[usize::from(both(&question, &candidate.plan, &mut measured))] += 1;
            }
            let recomputed = [None, plan::sets::auto::recompute().last().copied()][pick(2)];
            if let Some(plan) = member(&question, recomputed, 0.0, Count::Least, &mut pick).expect("a plan") {
                any[usize::from(both(&question, &plan.plan, &mut measured))] += 1;
            }
        }
    }
    // Of few it is not clear how what others give lies: these are proved.
    assert!(20 * measured[0] < measured[1], "{measured:?}");
    assert!(named[1] > 50 && found[1] > 10 && any[0] > 30, "{named:?} {found:?} {any:?}");
}
