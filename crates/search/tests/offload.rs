//! What layers keep is on the host, where that is quicker than to compute it again.

use std::collections::BTreeSet;

use cluster::{Cluster, read};
use compiler::{Estimate, Setting, estimate};
use search::{Constraints, Evaluated, Question, best, compare};

use crate::model::Model;

/// Eight layers of two products each, of so many rows.
fn deep(rows: usize) -> Model {
    let mut text = String::from(
        "shardwright-graph 1\nmodel \"Deep\"\nin_spec \"\"\nout_spec \"\"\nmodule \"\" \"Deep\"\n",
    );
    let layers = 0..8;
    layers.clone().for_each(|at| text += &format!("module \"h.{at}\" \"Layer\"\n"));
    text += &format!(
        "input %x f32[{rows},32] 0\nparam %e f32[32,32] \"embed\"\n\
             op %h f32[{rows},32] = aten.mm.default(%x, %e) in \"\" at \"m.py:1\"\n"
    );
    let mut before = String::from("h");
    for at in layers {
        text += &format!(
            "param %u{at} f32[32,64] \"h.{at}.up\"\nparam %d{at} f32[64,32] \"h.{at}.down\"\n\
             op %a{at} f32[{rows},64] = aten.mm.default(%{before}, %u{at}) in \"h.{at}\" at \"m.py:2\"\n\
             op %g{at} f32[{rows},64] = aten.tanh.default(%a{at}) in \"h.{at}\" at \"m.py:3\"\n\
             op %m{at} f32[{rows},32] = aten.mm.default(%g{at}, %d{at}) in \"h.{at}\" at \"m.py:4\"\n\
             op %r{at} f32[{rows},32] = aten.add.Tensor(%{before}, %m{at}) in \"h.{at}\" at \"m.py:5\"\n"
        );
        before = format!("r{at}");
    }
    text += &format!("op %s f32[] = aten.sum.default(%{before}) in \"\" at \"m.py:6\"\noutput %s\n");
    Model::new(&text)
}

/// Devices with so much of a host.
fn devices(count: u32, host: &str, memory: &str) -> Cluster {
    let text = format!(
        "[[nodes]]\ndevices = \"d:{count}\"\nlink = {{ bandwidth = \"1 TB/s\", latency = \"1 us\", start = \"1 us\" }}\n\
         [devices.d]\nmemory = \"1 GB\"\nbandwidth = \"1 TB/s\"\npeak = {{ f64 = \"1 GFLOP/s\", f32 = \"1 GFLOP/s\" }}\n\
         overhead = \"0 s\"\nhost = \"{host}\"\nhost_memory = \"{memory}\"\n"
    );
    read(&text, "devices.toml").expect("it reads")
}

/// Memory in which the model fits with its layers on the host, or computed again, and not without.
fn tight(model: &Model) -> u64 {
    let cluster = devices(1, "1 TB/s", "1 GB");
    let question = model.question(&cluster, 1, 1);
    let of = |name: &str| stats(&question, name).expect("a plan").memory[0].total();
    let tight = of("replicate x offload:activations").max(of("replicate x recompute"));
    assert!(tight < of("replicate"));
    tight
}

fn stats(question: &Question<'_>, name: &str) -> Option<Estimate> {
    let plan = plan::sets::named(name, question.graph, question.analysis, question.devices).ok()?;
    let Question { cluster, batches, optimizer, masters, .. } = *question;
    let setting = Setting { cluster, batches, optimizer, masters, compiled: false };
    Some(
        estimate(question.graph, question.analysis, &plan, question.boundary, &setting).expect("an estimate"),
    )
}

fn on_host(candidate: &Evaluated) -> usize {
    candidate.plan.offload.len()
}

fn first(question: &Question<'_>) -> Evaluated {
    let found = best(question, None, &mut |_| ()).expect("plans");
    let candidate = found.rows.into_iter().next().expect("a plan");
    assert!(candidate.fits() && candidate.seconds() * (1.0 + 1e-9) >= found.bound, "{}", candidate.plan.name);
    candidate
}

#[test]
fn the_wider_the_way_to_the_host_the_quicker_is_what_is_chosen() {
    let model = deep(64);
    let mut mixed = 0;
    let cluster = devices(1, "1 TB/s", "1 GB");
    let question = model.question(&cluster, 1, 1);
    let of = |name: &str| stats(&question, name).expect("a plan").memory[0].total();
    // In the second there is not enough for all layers on the host at the same speed.
    for memory in [tight(&model), of("replicate x recompute") + 20_000] {
        let with = |host: &str| {
            let cluster = devices(1, host, "1 GB");
            first(&Question { memory: Some(memory), ..model.question(&cluster, 1, 1) })
        };
        let rows = ["10 kB/s", "2 MB/s", "8 MB/s", "20 MB/s", "50 MB/s", "1 TB/s"].map(with);
        assert!(on_host(&rows[0]) == 0 && !rows[0].plan.recompute.is_empty(), "{}", rows[0].plan.name);
        assert!(on_host(&rows[5]) > 0 && rows[5].seconds() < rows[0].seconds(), "{}", rows[5].plan.name);
        assert!(rows.windows(2).all(|two| two[1].seconds() <= two[0].seconds()));
        mixed += rows
            .iter()
            .filter(|candidate| on_host(candidate) > 0 && !candidate.plan.recompute.is_empty())
            .count();
    }
    assert!(mixed > 0);
}

#[test]
fn no_more_is_on_the_host_than_it_has_memory_for() {
    let model = deep(64);
    let memory = Some(tight(&model));
    let with = |host: u64| {
        let cluster = devices(1, "1 TB/s", &format!("{host} B"));
        first(&Question { memory, ..model.question(&cluster, 1, 1) })
    };
    let all = with(1 << 30);
    assert_eq!(all.host.2, 1 << 30);
    let (less, none) = (with(all.host.1 - 1), with(1000));
    assert!(less.seconds() > all.seconds(), "{}", less.plan.name);
    assert!(less.host.1 < all.host.1 && on_host(&none) == 0, "{}", none.plan.name);
}

#[test]
fn what_has_too_much_on_the_host_does_not_fit() {
    let model = Model::gpt();
    let (wide, narrow) = (devices(1, "1 TB/s", "1 GB"), devices(1, "1 TB/s", "2 kB"));
    let least = compare(&Question { memory: Some(1), ..model.question(&wide, 1, 1) }, None, &mut |_| ());
    let least = least.expect("plans").rows;
    let offload = |candidate: &&Evaluated| candidate.plan.name.contains("offload");
    let least = least
        .iter()
        .filter(|candidate| !offload(candidate))
        .map(|candidate| candidate.memory.1)
        .min()
        .expect("plans");
    let of = |cluster| {
        let question = Question { memory: Some(least - 1), ..model.question(cluster, 1, 1) };
        best(&question, None, &mut |_| ())
    };
    let fits = of(&wide).expect("it fits with a host").rows.remove(0);
    assert!(fits.host.1 > 2000 && offload(&&fits), "{}", fits.plan.name);
    let error = of(&narrow).expect_err("without it does not");
    assert_eq!(error.code, "SW0920");
}

#[test]
fn what_must_not_be_on_the_host_is_not() {
    let model = deep(64);
    let cluster = devices(1, "1 TB/s", "1 GB");
    let question = model.question(&cluster, 1, 1);
    let text = "shardwright-constraints 1\nforbid offload\n";
    let constraints =
        Constraints::read(text, "mine", question.graph, question.analysis, &cluster, 1).expect("they read");
    let question = Question { memory: Some(tight(&model)), constraints: Some(&constraints), ..question };
    assert_eq!(on_host(&first(&question)), 0);
}

#[test]
fn no_named_plan_with_its_layers_on_the_host_is_quicker() {
    let model = deep(64);
    let mut looked_at = 0;
    for (count, host) in [(1, "1 TB/s"), (2, "20 MB/s"), (4, "1 TB/s")] {
        let cluster = devices(count, host, "1 GB");
        let question = model.question(&cluster, count, 2);
        let all = compare(&Question { memory: Some(1), ..question }, None, &mut |_| ()).expect("plans").rows;
        let names: BTreeSet<String> = all.iter().map(|candidate| offload(&candidate.plan.name)).collect();
        let stats: Vec<(String, Estimate)> =
            names.into_iter().filter_map(|name| Some((name.clone(), stats(&question, &name)?))).collect();
        let needs = |stats: &Estimate| stats.memory.iter().map(check::Memory::total).max().unwrap_or(0);
        for (_, tight) in &stats {
            let chosen = first(&Question { memory: Some(needs(tight)), ..question });
            for (name, other) in stats.iter().filter(|(_, other)| needs(other) <= needs(tight)) {
                let (own, seconds) = (chosen.seconds(), other.simulation.seconds);
                assert!(
                    own <= seconds * 1.01,
                    "{count} {host}: {name} {seconds}, {} {own}",
                    chosen.plan.name
                );
                looked_at += 1;
            }
        }
    }
    assert!(looked_at > 50, "{looked_at}");
}

/// The same with its layers on the host.
fn offload(name: &str) -> String {
    let words = name.split(" x ");
    let others =
        words.filter(|word| !["recompute", "coshard", "offload"].iter().any(|it| word.starts_with(it)));
    format!("{} x offload:activations", others.collect::<Vec<_>>().join(" x "))
}

/// It goes there once a step, and what layers keep with each micro-batch.
#[test]
fn the_state_is_on_the_host_where_there_are_many_micro_batches() {
    let model = deep(64);
    let chosen = |host: &str, batches: u32| {
        let cluster = devices(1, host, "1 GB");
        let question = model.question(&cluster, 1, batches);
        let [all, none] = ["replicate x recompute", "replicate"]
            .map(|name| stats(&question, name).expect("a plan").memory[0].total());
        let first = first(&Question { memory: Some(all + (none - all) / 8), ..question });
        !first.plan.state_on_host.is_empty()
    };
    assert!(chosen("5 MB/s", 64) && !chosen("5 MB/s", 1) && !chosen("10 kB/s", 64));
}

/// What cannot be kept is recomputed, unless it goes to a host that is near.
#[test]
fn the_bound_knows_how_much_memory_there_is() {
    let model = deep(1024);
    let (far, near) = (devices(1, "10 kB/s", "1 GB"), devices(1, "1 TB/s", "1 GB"));
    for batches in [1, 4] {
        let question = model.question(&far, 1, batches);
        let [recomputed, none] = ["replicate x recompute", "replicate"]
            .map(|name| stats(&question, name).expect("a plan").memory[0].total());
        let free = search::bound(&question).expect("a bound");
        let mut last = f64::INFINITY;
        for share in [0.0, 0.1, 0.3] {
            let memory = Some(recomputed + (share * (none - recomputed) as f64) as u64);
            let found = best(&Question { memory, ..question }, None, &mut |_| ()).expect("plans");
            assert!(free < found.bound && found.bound <= found.rows[0].seconds(), "{batches} {share}");
            assert!(found.bound < last, "{batches} {share}: more memory");
            last = found.bound;
            let near = Question { memory, ..model.question(&near, 1, batches) };
            assert!(
                search::bound(&near).expect("a bound") < found.bound,
                "{batches} {share}: it is offloaded"
            );
        }
    }
}
