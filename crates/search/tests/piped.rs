//! Pipelines whose stages are found, under constraints: each is walked once more, part by part.

use std::collections::BTreeSet;

use cluster::{Cluster, named};
use plan::Plan;
use search::{Constraints, Evaluated, Question, best, pipeline};

use crate::model::Model;
use crate::narrow::{narrow, untied};

fn constraints(model: &Model, cluster: &Cluster, lines: &str) -> Constraints {
    let header = if lines.starts_with("shardwright") { "" } else { "shardwright-constraints 1\n" };
    let (text, devices) = (format!("{header}{lines}\n"), cluster.devices());
    Constraints::read(&text, "mine", &model.graph, &model.analysis, cluster, devices).expect(lines)
}

/// All pipelines that are found. None was made that breaks a constraint, to be left out then.
fn piped(question: &Question<'_>) -> Vec<Evaluated> {
    let (looked, _) = pipeline::rows(question, f64::INFINITY, &mut |_| ()).expect("pipelines");
    assert_eq!(looked.passed_over, []);
    looked.rows
}

/// The same under some lines, each of which respects them.
fn under(model: &Model, question: &Question<'_>, lines: &str) -> Vec<Evaluated> {
    let own = constraints(model, question.cluster, lines);
    let rows = piped(&Question { constraints: Some(&own), ..*question });
    for candidate in &rows {
        let broken = own.broken(&candidate.plan, &model.graph, &model.analysis);
        assert_eq!(broken, BTreeSet::new(), "{lines}: {}", candidate.plan.name);
    }
    rows
}

fn quickest(rows: &[Evaluated]) -> f64 {
    rows.iter().filter(|candidate| candidate.fits()).map(Evaluated::seconds).fold(f64::INFINITY, f64::min)
}

/// The devices of each stage.
fn devices(plan: &Plan) -> Vec<BTreeSet<u32>> {
    let mut found = vec![BTreeSet::new(); plan.block_count() as usize];
    let ops = plan.ops.iter().zip(&plan.blocks);
    ops.for_each(|(op, block)| found[*block as usize].extend(op.devices.iter()));
    found
}

/// How the operators of a module are divided.
fn splits(model: &Model, plan: &Plan, path: &str) -> Vec<(u32, usize)> {
    let own = model.graph.op_ids().filter(|op| model.graph.op(*op).module == path);
    own.map(|op| (plan.op(op).count(), plan.op(op).splits.len())).collect()
}

const KINDS: [&str; 16] = [
    "pin \"h.*.mlp.c_fc\": split inner 2",
    "pin Attention: split heads",
    "pin \"wte\": single",
    "pin \"h.*\" aten.linear.*: split batch 2",
    "forbid \"*\": split batch",
    "limit \"*\": split batch 2",
    "limit stages 2",
    "limit stages 3\nforbid offload",
    "forbid recompute",
    "tie \"h.*\"",
    "tie \"*\"",
    "use \"data:2\" inside nodes",
    "use \"megatron:2\" inside nodes",
    "use \"stages:2 x data:2\"",
    "pin \"h.0.*\": on 0..2",
    "shardwright-plan 1\nname \"part\"\ndevices 4\nop \"h.*.mlp.c_fc\": split n 2",
];

#[test]
fn pipelines_respect_each_kind_of_constraint() {
    let model = untied();
    let cluster = narrow();
    let free = model.question(&cluster, 4, 8);
    let least = quickest(&piped(&free));
    for lines in KINDS {
        let own = quickest(&under(&model, &free, lines));
        assert!(own.is_finite() && own >= least * (1.0 - 1e-3), "{lines}: {own} and {least}");
    }
}

/// Where little goes between nodes nothing of one block is as quick, and nothing with a name.
#[test]
fn what_is_taken_under_constraints_may_be_a_pipeline() {
    let model = untied();
    let cluster = narrow();
    for lines in ["tie \"h.*\"", "limit stages 2", "forbid \"*\": split sequence", "pin \"wte\": single"] {
        let own = constraints(&model, &cluster, lines);
        let question = Question { constraints: Some(&own), ..model.question(&cluster, 4, 8) };
        let found = best(&question, None, &mut |_| ()).expect("a plan");
        assert!(found.rows[0].plan.name.starts_with("found"), "{lines}: {}", found.rows[0].plan.name);
    }
}

#[test]
fn what_runs_on_some_devices_has_its_stage_there() {
    let model = untied();
    let cluster = narrow();
    let free = model.question(&cluster, 4, 8);
    let first = |rows: &[Evaluated]| {
        rows.iter().map(|candidate| devices(&candidate.plan)[0].len()).collect::<BTreeSet<_>>()
    };
    assert!(first(&piped(&free)).contains(&2));
    // Who may be on one device only has a stage there.
    assert_eq!(first(&under(&model, &free, "pin \"wte\": on 0..1")), BTreeSet::from([1]));
    for candidate in under(&model, &free, "pin \"h.0.*\": on 2..4") {
        let op = model.graph.op_ids().find(|op| model.graph.op(*op).module == "h.0.mlp.c_fc").expect("one");
        assert!(candidate.plan.op(op).devices.iter().all(|device| *device >= 2));
        assert!(devices(&candidate.plan)[0].iter().all(|device| *device < 2));
    }
}

#[test]
fn no_more_stages_than_are_asked_for() {
    let model = untied();
    let cluster = named("cpu:4").expect("known");
    let free = model.question(&cluster, 4, 8);
    let most = |rows: &[Evaluated]| rows.iter().map(|candidate| devices(&candidate.plan).len()).max();
    assert!(most(&piped(&free)) > Some(2));
    assert_eq!(most(&under(&model, &free, "limit stages 2\nlimit stages 3")), Some(2));
    let own = constraints(&model, &cluster, "limit stages 1");
    let question = Question { constraints: Some(&own), ..free };
    assert_eq!(most(&piped(&question)), None);
    let found = best(&question, None, &mut |_| ()).expect("a plan");
    assert!(found.stages.is_none() && found.rows.iter().all(|candidate| devices(&candidate.plan).len() == 1));
}

/// Layers of different stages are tied, too, and stages that have some of them have equally many devices.
#[test]
fn what_is_tied_is_divided_alike_in_all_stages() {
    let model = untied();
    let cluster = named("cpu:4").expect("known");
    let free = model.question(&cluster, 4, 8);
    let differ = |rows: &[Evaluated]| {
        rows.iter().any(|candidate| {
            splits(&model, &candidate.plan, "h.0.mlp.c_fc") != splits(&model, &candidate.plan, "h.1.mlp.c_fc")
        })
    };
    assert!(differ(&piped(&free)));
    let tied = under(&model, &free, "tie \"h.*\"");
    assert!(!differ(&tied) && tied.iter().any(|candidate| devices(&candidate.plan).len() == 4));
    // In one stage and nowhere else they are as is best there.
    assert!(!under(&model, &free, "tie \"h.*\"\npin \"h.*\": on 1..4").is_empty());
}

#[test]
fn where_nothing_is_computed_again_it_must_fit_without() {
    let model = untied();
    let cluster = narrow();
    let free = model.question(&cluster, 4, 8);
    let needed = |candidate: &Evaluated| candidate.memory.1;
    let most =
        piped(&free).iter().filter(|candidate| candidate.piped.is_some()).map(needed).min().expect("one");
    let tight = Question { memory: Some(most * 8 / 10), ..free };
    assert!(piped(&tight).iter().any(|candidate| candidate.fits() && !candidate.plan.recompute.is_empty()));
    assert!(
        under(&model, &tight, "forbid recompute").iter().all(|candidate| candidate.plan.recompute.is_empty())
    );
    // The same by a line.
    let rows = under(&model, &free, &format!("limit memory {}", most * 8 / 10));
    assert!(rows.iter().any(|candidate| candidate.fits() && candidate.memory.2 == most * 8 / 10));
}

/// What must be divided among all nodes is so in no stage.
#[test]
fn where_no_pipeline_respects_them_there_is_none() {
    let model = Model::gpt();
    let cluster = narrow();
    let free = model.question(&cluster, 4, 8);
    for lines in ["use \"data\" between nodes", "pin \"h.*\": on 0..1\npin \"h.1.*\": split heads 2"] {
        assert!(under(&model, &free, lines).is_empty(), "{lines}");
    }
}
