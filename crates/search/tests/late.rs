//! A search that is stopped, wherever that is: it always has a plan, and what it says of it holds.

use std::sync::atomic::{AtomicUsize, Ordering};

use cluster::{Cluster, named};
use search::{Constraints, Found, Question, Stop, best, compare, spmd};

use crate::model::Model;

/// Runs a search that is stopped at one of its looks; gives how often it looked, too.
fn stopped<T>(question: &Question<'_>, at: usize, search: impl Fn(&Question<'_>) -> T) -> (T, usize) {
    let looks = AtomicUsize::new(0);
    let is_late = || looks.fetch_add(1, Ordering::Relaxed) >= at;
    let found = search(&Question { stop: Stop::when(&is_late), ..*question });
    (found, looks.load(Ordering::Relaxed))
}

/// Some places of so many: the first ones, and more and more seldom.
fn places(looks: usize) -> Vec<usize> {
    let mut found: Vec<usize> = (0..24.min(looks)).collect();
    while found.last().is_some_and(|last| last * 5 / 4 < looks) {
        found.push(found[found.len() - 1] * 5 / 4);
    }
    found
}

fn named_of(found: &Found) -> Vec<(String, u64)> {
    found.rows.iter().map(|candidate| (candidate.plan.name.clone(), candidate.seconds().to_bits())).collect()
}

fn gpt(cluster: &Cluster, lines: Option<&str>, check: impl Fn(&Question<'_>, usize)) {
    let model = Model::gpt();
    let read = |lines| {
        Constraints::read(lines, "mine", &model.graph, &model.analysis, cluster, 4).expect("they read")
    };
    let own = lines.map(read);
    let question = Question { constraints: own.as_ref(), ..model.question(cluster, 4, 4) };
    let (_, looks) = stopped(&question, usize::MAX, |it| best(it, None, &mut |_| ()).expect("a plan"));
    check(&question, looks);
}

#[test]
fn wherever_it_is_stopped_there_is_a_plan() {
    let cluster = named("ethernet-25g:2x2").expect("known");
    let tied = "shardwright-constraints 1\ntie \"h.*\"\n";
    for lines in [None, Some(tied)] {
        gpt(&cluster, lines, |question, looks| {
            let whole = best(question, None, &mut |_| ()).expect("a plan");
            assert!(looks > 500, "{looks}");
            for at in places(looks) {
                let (found, _) = stopped(question, at, |it| best(it, None, &mut |_| ()));
                let found = found.unwrap_or_else(|error| panic!("{at} of {looks}: {error}"));
                assert!(found.rows[0].fits(), "{at} of {looks}");
                assert!(found.rows[0].seconds() >= whole.rows[0].seconds(), "{at}");
                let bound = found.inside.map_or(0.0, |stats| stats.bound);
                assert!(
                    found.bound <= found.rows[0].seconds()
                        && bound <= whole.inside.map_or(0.0, |it| it.bound)
                );
            }
        });
    }
}

/// Once it is late, nothing is looked at much longer.
#[test]
fn what_is_stopped_ends_soon() {
    let cluster = named("ethernet-25g:2x2").expect("known");
    gpt(&cluster, None, |question, looks| {
        for at in places(looks) {
            let search = |it: &Question<'_>| best(it, None, &mut |_| ()).expect("a plan");
            let (_, asked) = stopped(question, at, search);
            assert!(asked <= at + 100, "{at}: {asked}");
        }
    });
}

/// Where most plans do not fit, few of them are looked at before one that does.
#[test]
fn where_memory_is_short_what_fits_is_found_soon() {
    let cluster = named("ethernet-25g:2x2").expect("known");
    gpt(&cluster, None, |question, _| {
        let all = compare(question, None, &mut |_| ()).expect("plans");
        let mut needed: Vec<u64> = all.rows.iter().map(|candidate| candidate.memory.1).collect();
        needed.sort_unstable();
        let tight = Question { memory: Some(needed[needed.len() / 8]), ..*question };
        let lowered = AtomicUsize::new(0);
        let search = |it: &Question<'_>| {
            let mut watch = |_: &str| {
                lowered.fetch_add(1, Ordering::Relaxed);
            };
            best(it, None, &mut watch).expect("a plan")
        };
        let (found, _) = stopped(&tight, 0, search);
        assert!(found.rows[0].fits());
        assert!(lowered.load(Ordering::Relaxed) <= 5, "{lowered:?}");
    });
}

/// Where nothing fits and the time for that is over, too, few plans are looked at, and it is said how many.
#[test]
fn what_does_not_fit_is_given_up() {
    let cluster = named("ethernet-25g:2x2").expect("known");
    gpt(&cluster, None, |question, _| {
        let lowered = |stop: Stop<'_>| {
            let mut names = 0;
            let none = Question { memory: Some(1000), stop, ..*question };
            let error = best(&none, None, &mut |_| names += 1).expect_err("nothing fits");
            assert_eq!(error.code, "SW0920");
            (names, error.fix.unwrap_or_default())
        };
        let over = Stop::default().after(std::time::Duration::ZERO).for_no_longer();
        let (few, fix) = lowered(over);
        assert!(few <= 3 && fix.contains("longer deadline"), "{few}: {fix}");
        let (many, fix) = lowered(Stop::default());
        assert!(many > few && !fix.contains("deadline"), "{many}: {fix}");
    });
}

#[test]
fn what_is_not_stopped_is_the_same_each_time() {
    let cluster = named("ethernet-25g:2x2").expect("known");
    gpt(&cluster, None, |question, _| {
        let all = |question: &Question<'_>| compare(question, None, &mut |_| ()).expect("plans");
        let (watched, _) = stopped(question, usize::MAX, all);
        assert_eq!(named_of(&all(question)), named_of(&watched));
    });
}

/// What was found in one block up to then is no better than all.
#[test]
fn plans_of_one_block_are_those_of_a_search_that_ends() {
    let cluster = named("cpu:4").expect("known");
    gpt(&cluster, None, |question, _| {
        let (whole, looks) = stopped(question, usize::MAX, |it| spmd::find(it).expect("plans"));
        for at in places(looks) {
            let (found, _) = stopped(question, at, |it| spmd::find(it).expect("plans"));
            assert!(found.plans.len() <= whole.plans.len());
            assert!(found.stats.bound == 0.0 || found.stats.bound == whole.stats.bound, "{at}");
        }
    });
}
