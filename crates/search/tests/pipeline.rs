//! Pipelines whose stages are found, as programs.

use std::collections::BTreeSet;

use cluster::{Cluster, named, read};
use plan::{On, OpPlan, Schedule};
use search::spmd::limit;
use search::{Evaluated, Question, compare, pipeline, why};

use crate::model::Model;
use crate::narrow::{narrow, untied};

fn rows(question: &Question<'_>) -> Vec<Evaluated> {
    pipeline::rows(question, f64::INFINITY, &mut |_| ()).expect("pipelines").0.rows
}

fn sizes(candidate: &Evaluated) -> Vec<usize> {
    let mut sizes = vec![0; candidate.plan.block_count() as usize];
    for (plan, block) in candidate.plan.ops.iter().zip(&candidate.plan.blocks) {
        sizes[*block as usize] = plan.devices.len();
    }
    sizes
}

/// Where parameters of the first and the last block are tied, their gradients go between stages but in a V.
#[test]
fn what_is_tied_may_be_in_a_v() {
    let cluster = narrow();
    let is_v = |candidate: &Evaluated| candidate.plan.schedule == Schedule::ZbV;
    let (tied, apart) = (Model::gpt(), untied());
    let found = rows(&tied.question(&cluster, 4, 8));
    let least = |v: bool| {
        let own = found.iter().filter(|candidate| candidate.fits() && is_v(candidate) == v);
        own.map(Evaluated::seconds).fold(f64::INFINITY, f64::min)
    };
    assert!(least(true) < least(false), "{} and {}", least(true), least(false));
    for candidate in found.iter().filter(|candidate| is_v(candidate)) {
        let readers = tied.graph.op_ids().filter(|op| {
            let paths = ["wte", "lm_head"];
            paths.contains(&&*tied.graph.op(*op).module)
        });
        let devices: BTreeSet<_> = readers.map(|op| &candidate.plan.op(op).devices).collect();
        assert_eq!(devices.len(), 1, "{}", candidate.plan.name);
    }
    assert!(!rows(&apart.question(&cluster, 4, 8)).iter().any(is_v));
}

/// All of them are lowered and proved, or there would be no row.
#[test]
fn what_is_found_uses_all_devices_and_is_near_what_is_said() {
    let model = Model::gpt();
    let mut fast = named("dgx-h100:8x1").expect("known");
    // Of so small a model such a device waits for its host, of which a search knows nothing.
    fast.kinds.iter_mut().for_each(|kind| kind.runtime.launch = None);
    fast.kinds.iter_mut().for_each(|kind| kind.runtime.call = 0.0);
    for (cluster, devices) in [(narrow(), 4), (named("cpu:4").expect("known"), 4), (fast, 8)] {
        for batches in [2, 8] {
            let rows = rows(&model.question(&cluster, devices, batches));
            assert!(rows.iter().any(Evaluated::fits));
            for candidate in rows.iter().filter(|candidate| candidate.plan.schedule != Schedule::ZbV) {
                assert_eq!(
                    sizes(candidate).iter().sum::<usize>(),
                    devices as usize,
                    "{}",
                    candidate.plan.name
                );
                assert!(candidate.plan.name.contains(&format!("{} stages", sizes(candidate).len())));
                let Some(piped) = candidate.piped else { continue };
                assert!(
                    (0.4..1.05).contains(&(piped / candidate.seconds())),
                    "{piped} of {}",
                    candidate.seconds()
                );
            }
        }
    }
}

/// Each block is the best by itself, so what it comes to is the same whichever of its operators is asked for.
#[test]
fn of_each_block_it_is_said_why_it_is_divided_so() {
    let (model, mut divided) = (Model::gpt(), 0);
    for (cluster, devices) in
        [(narrow(), 4), (named("cpu:4").expect("known"), 4), (named("dgx-h100:8x1").expect("known"), 8)]
    {
        let free = model.question(&cluster, devices, 8);
        let needed = rows(&free).iter().map(|candidate| candidate.memory.1).min();
        let tight = Question { memory: needed.map(|needed| needed / 20 * 17), ..free };
        let all = [free, tight]
            .map(|question| rows(&question).into_iter().map(move |candidate| (question, candidate)));
        for (question, candidate) in all.into_iter().flatten() {
            let mut totals = vec![None; candidate.plan.block_count() as usize];
            for op in model.graph.op_ids().step_by(5) {
                let why = why(&question, &candidate, op, 6).expect("ways").expect("it is small");
                let (block, count, devices) = why.block.expect("there are several");
                assert_eq!((block, count), (candidate.plan.block(op) as usize, totals.len()));
                assert!(
                    candidate
                        .plan
                        .op(op)
                        .devices
                        .iter()
                        .all(|device| (devices.0..devices.1).contains(device))
                );
                let ways = &why.explanation.ways;
                assert!(why.explanation.ops.contains(&op));
                assert_eq!(ways[0].more, 0.0);
                assert!(ways.windows(2).all(|two| two[0].more <= two[1].more));
                let most = why.explanation.ops.iter().map(|op| parts(candidate.plan.op(*op))).max();
                assert_eq!(most, Some(parts_of(&ways[0].name)), "{}", ways[0].name);
                divided += usize::from(most > Some(1));
                assert_eq!(*totals[block].get_or_insert(ways[0].totals), ways[0].totals);
                assert!(ways[0].totals.bytes <= limit(&question) as f64);
                assert!(candidate.piped.is_none_or(|piped| ways[0].totals.least() <= piped * (1.0 + 1e-9)));
            }
        }
    }
    assert!(divided > 10, "{divided}");
}

/// In how many parts an operator is divided.
fn parts(plan: &OpPlan) -> u32 {
    plan.splits.iter().filter(|split| split.on != On::Copies).map(|split| split.parts).product()
}

/// How many parts a way has: `batch 2 x heads 4` has eight.
fn parts_of(name: &str) -> u32 {
    let levels =
        name.split(" between nodes, ").flat_map(|level| level.trim_end_matches(" inside").split(" x "));
    let dims = levels.filter_map(|word| word.rsplit_once(' ')).filter(|(dim, _)| *dim != "copies");
    dims.map(|(_, size)| size.parse::<u32>().expect("a number")).product()
}

#[test]
fn stages_may_have_different_numbers_of_devices() {
    let model = Model::gpt();
    let cluster = named("cpu:4").expect("known");
    let rows = rows(&model.question(&cluster, 4, 8));
    let is_uneven = |candidate: &Evaluated| sizes(candidate).windows(2).any(|two| two[0] != two[1]);
    assert!(rows.iter().any(is_uneven), "{:?}", rows.iter().map(sizes).collect::<Vec<_>>());
}

#[test]
fn where_little_goes_between_nodes_none_with_a_name_is_quicker() {
    let model = untied();
    let cluster = narrow();
    for batches in [4, 8] {
        let found = compare(&model.question(&cluster, 4, batches), None, &mut |_| ()).expect("plans");
        let least = |is_found: bool| {
            let rows = found
                .rows
                .iter()
                .filter(|candidate| candidate.fits() && candidate.plan.name.starts_with("found") == is_found);
            rows.map(Evaluated::seconds).fold(f64::INFINITY, f64::min)
        };
        assert!(least(true) <= least(false), "{} and {}", least(true), least(false));
        assert!(found.bound <= least(true));
    }
}

/// The stages of a plan that was found, in the other order.
#[test]
fn a_stage_that_reads_a_later_one_is_refused() {
    let model = Model::gpt();
    let rows = rows(&model.question(&narrow(), 4, 4));
    let mut plan = rows[0].plan.clone();
    let last = plan.block_count() - 1;
    plan.blocks.iter_mut().for_each(|block| *block = last - *block);
    let error = plan.validate(&model.graph, &model.analysis).expect_err("it goes backwards");
    assert_eq!(error.code, "SW0325");
}

#[test]
fn where_memory_is_short_less_is_kept() {
    let model = Model::gpt();
    let cluster = narrow();
    let question = model.question(&cluster, 4, 8);
    let most = rows(&question)
        .iter()
        .filter(|candidate| candidate.piped.is_some())
        .map(|candidate| candidate.memory.1)
        .min()
        .expect("one");
    let tight = Question { memory: Some(most * 9 / 10), ..question };
    assert!(rows(&tight).iter().any(Evaluated::fits), "{most}");
}

/// Two nodes whose devices compute so much.
fn nodes(peaks: [&str; 2]) -> Cluster {
    let link = "link = { bandwidth = \"1 GB/s\", latency = \"1 us\", start = \"1 us\" }";
    let mut text =
        String::from("[network]\nbandwidth = \"100 MB/s\"\nlatency = \"2 us\"\nstart = \"1 us\"\n");
    for (at, peak) in peaks.into_iter().enumerate() {
        text += &format!(
            "[[nodes]]\ndevices = \"d{at}:2\"\n{link}\n[devices.d{at}]\nmemory = \"1 GB\"\n\
             bandwidth = \"1 TB/s\"\npeak = {{ f64 = \"{peak}\", f32 = \"{peak}\" }}\noverhead = \"0 s\"\n"
        );
    }
    read(&text, "nodes.toml").expect("it reads")
}

fn quickest(question: &Question<'_>) -> f64 {
    let rows = rows(question);
    let all = rows.iter().filter(|candidate| candidate.fits()).map(Evaluated::seconds);
    all.fold(f64::INFINITY, f64::min)
}

/// The end of the model is more work than its begin.
#[test]
fn the_end_of_the_model_may_be_on_whichever_nodes() {
    let model = untied();
    let (quick, slow) = ("1 GFLOP/s", "200 MFLOP/s");
    let seconds = [[quick, slow], [slow, quick]].map(|peaks| quickest(&model.question(&nodes(peaks), 4, 8)));
    assert!((seconds[0] / seconds[1] - 1.0).abs() < 0.01, "{seconds:?}");
}
