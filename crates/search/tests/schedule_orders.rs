//! Orders of blocks that are searched for.

use cluster::{named, read};
use plan::{Plan, Schedule};
use search::{Evaluated, Question, compare};

use crate::model::Model;
use crate::narrow::{narrow, untied};

const OWN: &str = ", in an order of its own";

/// Each plan in an order of its own, with the same plan in the order that its schedule has.
fn both(rows: &[Evaluated]) -> Vec<(&Evaluated, &Evaluated)> {
    let of = |candidate: &Evaluated| candidate.plan.name.strip_suffix(OWN).map(str::to_owned);
    let with = |candidate| {
        of(candidate).and_then(|name| Some((candidate, rows.iter().find(|it| it.plan.name == name)?)))
    };
    rows.iter().filter_map(with).collect()
}

fn all(question: &Question<'_>) -> Vec<Evaluated> {
    compare(question, None, &mut |_| ()).expect("plans").rows
}

/// All of them are lowered and proved, or there would be no row.
#[test]
fn an_order_of_its_own_is_quicker_and_fits() {
    let mut found = 0;
    for model in [Model::gpt(), untied()] {
        for (cluster, devices) in [(narrow(), 4), (named("dgx-h100:4x1").expect("known"), 4)] {
            for batches in [2, 4, 8] {
                let rows = all(&model.question(&cluster, devices, batches));
                for (own, named) in both(&rows) {
                    assert!(own.fits() && own.seconds() < named.seconds(), "{}", own.plan.name);
                    assert_eq!(own.plan.timetables.len(), devices as usize, "each device has one");
                    let same = Plan {
                        name: named.plan.name.clone(),
                        schedule: named.plan.schedule,
                        timetables: named.plan.timetables.clone(),
                        ..own.plan.clone()
                    };
                    assert_eq!(same, named.plan, "nothing else is another");
                    found += 1;
                }
            }
        }
    }
    assert!(found > 3, "{found}");
}

/// A backward is in two where its schedule had it in two.
#[test]
fn passes_are_those_that_the_plan_has() {
    let model = untied();
    let cluster = narrow();
    let rows = all(&model.question(&cluster, 4, 8));
    for (own, named) in both(&rows) {
        assert_eq!(own.plan.schedule.splits_backward(), named.plan.schedule.splits_backward());
        let passes = |candidate: &Evaluated| {
            candidate.estimate.passes.iter().map(|it| (it.block, it.pass)).collect::<Vec<_>>()
        };
        assert_eq!(passes(own), passes(named), "{}", own.plan.name);
    }
    assert!(!both(&rows).is_empty());
}

/// However slow links are, no order is told to be shorter than the shortest there is.
#[test]
fn an_order_is_told_with_its_bound() {
    let model = Model::new(include_str!("../../../tests/python/golden/mlp.graph"));
    let mut found = 0;
    for link in ["100 MB/s", "50 MB/s", "30 MB/s", "20 MB/s"] {
        let text = format!(
            "[[nodes]]\ndevices = \"d:8\"\nlink = {{ bandwidth = \"{link}\", latency = \"1 us\", start = \"1 us\" }}\n\
             [devices.d]\nmemory = \"1 GB\"\nbandwidth = \"1 TB/s\"\npeak = {{ f64 = \"1 GFLOP/s\" }}\noverhead = \"0 s\"\n"
        );
        let cluster = read(&text, "slow.toml").expect("it reads");
        for candidate in
            all(&model.question(&cluster, 8, 4)).iter().filter(|candidate| candidate.plan.name.ends_with(OWN))
        {
            let Some(bound) = candidate.order else { continue };
            assert!(0.0 < bound && bound <= candidate.seconds(), "{}: {bound}", candidate.plan.name);
            found += 1;
        }
    }
    assert!(found > 0, "{found}");
}

/// Where there is no room for one more, none is kept.
#[test]
fn what_is_kept_has_room() {
    let model = untied();
    let cluster = narrow();
    let question = model.question(&cluster, 4, 8);
    let free = all(&question);
    let most = free.iter().map(|candidate| candidate.memory.1).max().expect("plans");
    let least = free.iter().map(|candidate| candidate.memory.1).min().expect("plans");
    let mut found = 0;
    for eighth in 1..8 {
        let memory = Some(least + (most - least) * eighth / 8);
        let rows = all(&Question { memory, ..question });
        found += both(&rows).iter().filter(|(own, _)| own.fits()).count();
        assert!(rows.iter().filter(|candidate| candidate.plan.name.ends_with(OWN)).all(Evaluated::fits));
    }
    assert!(found > 0);
}

/// What a pass takes is of the pass, whatever the order: so a step takes no less than the busiest stage works.
#[test]
fn passes_are_within_the_step() {
    let model = untied();
    let cluster = narrow();
    let batches = 8;
    for candidate in all(&model.question(&cluster, 4, batches)) {
        let count = candidate.plan.block_count();
        assert_eq!(candidate.estimate.passes.is_empty(), count < 2, "{}", candidate.plan.name);
        let is_v = candidate.plan.schedule == Schedule::ZbV;
        for block in (0..count).filter(|_| count > 1 && !is_v) {
            let own = candidate.estimate.passes.iter().filter(|it| it.block == block);
            let work: f64 = own.map(|it| it.seconds).sum::<f64>() * f64::from(batches);
            assert!(work > 0.0 && work <= candidate.seconds() * 1.001, "{}: {work}", candidate.plan.name);
        }
    }
}
