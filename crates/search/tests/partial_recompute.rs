//! Some layers that are computed again, and others not.

use cluster::{Cluster, read};
use search::{Evaluated, Question, best, compare};

use crate::model::Model;

/// Devices whose way to their host is too narrow for what layers keep.
fn devices(count: u32, peak: &str) -> Cluster {
    let text = format!(
        "[[nodes]]\ndevices = \"d:{count}\"\nlink = {{ bandwidth = \"1 TB/s\", latency = \"1 us\", start = \"1 us\" }}\n\
         [devices.d]\nmemory = \"1 GB\"\nbandwidth = \"1 TB/s\"\npeak = {{ f64 = \"{peak}\", f32 = \"{peak}\" }}\noverhead = \"0 s\"\nhost = \"10 kB/s\"\n"
    );
    read(&text, "devices.toml").expect("it reads")
}

fn is_mixed(candidate: &Evaluated) -> bool {
    candidate.plan.name.ends_with(" layers again")
}

fn of<'r>(rows: &'r [Evaluated], name: &str) -> &'r Evaluated {
    rows.iter().find(|candidate| candidate.plan.name == name).unwrap_or_else(|| panic!("{name}"))
}

#[test]
fn no_more_layers_are_computed_again_than_memory_asks_for() {
    let model = Model::gpt();
    let cluster = devices(1, "1 GFLOP/s");
    let question = model.question(&cluster, 1, 1);
    let free = compare(&question, None, &mut |_| ()).expect("plans");
    assert!(!free.rows.iter().any(is_mixed), "all fit: nothing is computed again");
    let all = compare(&Question { memory: Some(1), ..question }, None, &mut |_| ()).expect("plans");
    let (none, recomputed) = (of(&all.rows, "replicate"), of(&all.rows, "replicate x recompute"));
    let middle =
        u64::midpoint(none.memory.1, recomputed.memory.1) + (none.memory.1 - recomputed.memory.1) / 8;
    let tight = Question { memory: Some(middle), ..question };
    let first = &best(&tight, None, &mut |_| ()).expect("plans").rows[0];
    assert!(is_mixed(first) && first.fits(), "{}", first.plan.name);
    assert_eq!(first.plan.recompute.len(), 1, "one of two layers");
    let seconds = |candidate: &Evaluated| candidate.seconds();
    assert!(seconds(none) < seconds(first) && seconds(first) < seconds(recomputed));
}

#[test]
fn each_stage_computes_again_what_it_must() {
    let model = Model::gpt();
    let cluster = devices(2, "1 GFLOP/s");
    let question = model.question(&cluster, 2, 4);
    let mut looked_at = 0;
    let all = compare(&Question { memory: Some(1), ..question }, None, &mut |_| ()).expect("plans");
    let most = all.rows.iter().map(|candidate| candidate.memory.1).max().expect("plans");
    let least = all.rows.iter().map(|candidate| candidate.memory.1).min().expect("plans");
    for step in 1..32 {
        let memory = Some(least + (most - least) * step / 32);
        let found = compare(&Question { memory, ..question }, None, &mut |_| ()).expect("plans");
        for candidate in found.rows.iter().filter(|candidate| is_mixed(candidate)) {
            assert!(candidate.fits() && !candidate.plan.recompute.is_empty(), "{}", candidate.plan.name);
            looked_at += 1;
        }
        let fits: Vec<f64> =
            found.rows.iter().filter(|candidate| candidate.fits()).map(Evaluated::seconds).collect();
        assert!(fits.windows(2).all(|two| two[0] <= two[1]), "the quickest is the first");
    }
    assert!(looked_at > 1, "{looked_at}");
}

#[test]
fn where_nothing_may_be_computed_again_nothing_is() {
    let model = Model::gpt();
    let cluster = devices(1, "1 GFLOP/s");
    let question = model.question(&cluster, 1, 1);
    let text = "shardwright-constraints 1\nforbid recompute\n";
    let constraints = search::Constraints::read(text, "mine", question.graph, question.analysis, &cluster, 1)
        .expect("they read");
    let tight = Question { memory: Some(1 << 20), constraints: Some(&constraints), ..question };
    let rows = compare(&tight, None, &mut |_| ()).map(|found| found.rows).unwrap_or_default();
    assert!(rows.iter().all(|candidate| candidate.plan.recompute.is_empty()));
}
