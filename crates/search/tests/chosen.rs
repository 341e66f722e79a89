//! What is chosen, on clusters whose answer is known.

use cluster::{Cluster, named, read};
use compiler::{Setting, estimate};
use diag::Result;
use search::{Constraints, Evaluated, Found, LowerBounds, Question, Wanted, best, bound, compare, quickest};

use crate::model::Model;

/// Devices that are slow beside their links, or links that are slow beside their devices.
fn devices(count: u32, peak: &str, link: &str) -> Cluster {
    let text = format!(
        "[[nodes]]\ndevices = \"d:{count}\"\nlink = {{ bandwidth = \"{link}\", latency = \"1 us\", start = \"1 us\" }}\n\
         [devices.d]\nmemory = \"1 GB\"\nbandwidth = \"1 TB/s\"\npeak = {{ f64 = \"{peak}\", f32 = \"{peak}\" }}\noverhead = \"0 s\"\n"
    );
    read(&text, "devices.toml").expect("it reads")
}

/// Attention in which no query sees what is behind it, of no heads, so that no one kernel computes it.
const CAUSAL: &str = include_str!("graphs/causal.graph");

/// Devices and links of which more was measured than their rates, and all of it is quicker than these say.
fn measured() -> Cluster {
    let mut text = String::from(
        "[[nodes]]\ndevices = \"d:4\"\n[nodes.link]\nbandwidth = \"10 MB/s\"\nlatency = \"1 us\"\nstart = \"1 us\"\n",
    );
    for kind in ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "message"] {
        let devices = if kind == "message" { 2 } else { 4 };
        text += &format!(
            "[[nodes.link.collectives]]\nkind = \"{kind}\"\ndevices = {devices}\nbytes = [1.0, 1e6]\nseconds = [1e-8, 1e-2]\n"
        );
    }
    text += "[devices.d]\nmemory = \"1 GB\"\nbandwidth = \"1 TB/s\"\npeak = { f64 = \"1 GFLOP/s\", f32 = \"1 GFLOP/s\" }\noverhead = \"20 us\"\n";
    for (kind, pass) in ["contraction", "pointwise", "losses", "copies", "optimizer"]
        .into_iter()
        .flat_map(|kind| ["forward", "backward"].map(|pass| (kind, pass)))
    {
        for dtype in ["f64", "f32"] {
            text += &format!(
                "[[devices.d.operators]]\nkind = \"{kind}\"\ndtype = \"{dtype}\"\npass = \"{pass}\"\nbytes = [1.0, 1e12]\nseconds = [1e-7, 1e-6]\n"
            );
        }
    }
    read(&text, "measured.toml").expect("it reads")
}

/// Messages that were measured, in a hundredth of the time that the link's rate says, on devices that are slow.
fn quick_messages() -> Cluster {
    let mut text = String::from(
        "[[nodes]]\ndevices = \"d:2\"\n[nodes.link]\nbandwidth = \"1 MB/s\"\nlatency = \"0 s\"\nstart = \"0 s\"\nreached = 1.0\n",
    );
    for kind in ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"] {
        text += &format!(
            "[[nodes.link.collectives]]\nkind = \"{kind}\"\ndevices = 2\nbytes = [1.0, 1e6]\nseconds = [1e-8, 1e-2]\n"
        );
    }
    text += "[devices.d]\nmemory = \"1 GB\"\nbandwidth = \"10 MB/s\"\npeak = { f64 = \"10 MFLOP/s\", f32 = \"10 MFLOP/s\" }\noverhead = \"0 s\"\n";
    read(&text, "messages.toml").expect("it reads")
}

fn found(question: &Question<'_>) -> Found {
    best(question, None, &mut |_| ()).expect("a plan")
}

#[test]
fn nothing_is_quicker_than_what_is_chosen_nor_than_the_bound() {
    let model = Model::gpt();
    for cluster in [
        devices(4, "1 GFLOP/s", "1 GB/s"),
        devices(4, "1 TFLOP/s", "10 MB/s"),
        named("cpu:4").expect("known"),
    ] {
        for batches in [1, 4] {
            let found = found(&model.question(&cluster, 4, batches));
            let first = &found.rows[0];
            assert!(
                found
                    .rows
                    .iter()
                    .all(|candidate| candidate.seconds() >= first.seconds() || !candidate.fits())
            );
            assert!(
                found.bound > 0.0 && found.rows.iter().all(|candidate| candidate.seconds() >= found.bound)
            );
            assert_eq!(found.tried.0, found.tried.1);
        }
    }
}

/// Threads evaluate plans before their turn, also those whose turn never comes.
#[test]
fn any_number_of_threads_finds_the_same() {
    let model = Model::gpt();
    for cluster in [devices(4, "1 GFLOP/s", "1 GB/s"), devices(4, "1 TFLOP/s", "10 MB/s")] {
        for (batches, memory) in [(1, None), (4, None), (2, Some(200_000)), (2, Some(1000))] {
            let told = |threads: usize| {
                let question = Question { threads, memory, ..model.question(&cluster, 4, batches) };
                let told = |found: Found| {
                    let row = |it: &Evaluated| (it.plan.clone(), it.seconds().to_bits(), it.memory);
                    let rows: Vec<_> = found.rows.iter().map(row).collect();
                    (rows, found.passed_over, found.tried, found.left_out)
                };
                (
                    best(&question, None, &mut |_| ()).map(told).map_err(|error| error.to_string()),
                    compare(&question, None, &mut |_| ()).map(told).map_err(|error| error.to_string()),
                )
            };
            let one = told(1);
            assert_eq!(told(3), one);
            assert_eq!(told(16), one);
        }
    }
}

#[test]
fn what_is_left_out_is_not_quicker() {
    let model = Model::gpt();
    let cluster = devices(4, "1 GFLOP/s", "100 MB/s");
    let all = compare(&model.question(&cluster, 4, 4), None, &mut |_| ()).expect("plans");
    let memory =
        all.rows.iter().map(|candidate| candidate.memory.1).collect::<std::collections::BTreeSet<u64>>();
    for limit in memory.into_iter().step_by(3) {
        let question = Question { memory: Some(limit), ..model.question(&cluster, 4, 4) };
        let (all, first) = (compare(&question, None, &mut |_| ()).expect("plans"), found(&question));
        assert!(all.rows[0].fits() && first.rows.len() <= all.rows.len());
        assert_eq!(all.rows[0].plan.name, first.rows[0].plan.name, "{limit}");
    }
}

#[test]
fn what_is_left_out_is_not_quicker_than_what_was_measured() {
    let model = Model::new(include_str!("../../../tests/python/golden/mlp.graph"));
    let cases = [(measured(), 2, 1), (measured(), 4, 1), (measured(), 4, 4), (quick_messages(), 2, 4)];
    for (cluster, devices, batches) in cases {
        let question = model.question(&cluster, devices, batches);
        let all = compare(&question, None, &mut |_| ()).expect("plans");
        let (first, all) = (found(&question).rows[0].seconds(), all.rows[0].seconds());
        assert!((first - all).abs() <= 1e-12, "{devices}, {batches}: {first} of {all}");
    }
}

/// What a set does that stands in another's place is looked at whether or not this one does anything.
#[test]
fn sequences_are_divided_where_megatron_finds_nothing() {
    let cut = CAUSAL.lines().filter(|line| !line.contains("%p_up") && !line.contains("%p_down"));
    let text: Vec<String> = cut.map(|line| line.replace("(%d, %target)", "(%y, %target)")).collect();
    let (alone, whole) = (Model::new(&text.join("\n")), Model::new(CAUSAL));
    let cluster = devices(2, "1 GFLOP/s", "1 GB/s");
    assert!(plan::sets::named("megatron:2", &alone.graph, &alone.analysis, 2).is_err());
    let first = |question: &Question<'_>| found(question).rows[0].plan.name.clone();
    assert_eq!(first(&alone.question(&cluster, 2, 1)), "zigzag:2");
    let constraints = "shardwright-constraints 1\nforbid \"up\": split n\nforbid \"down\": split k\n";
    let constraints =
        Constraints::read(constraints, "mine.constraints", &whole.graph, &whole.analysis, &cluster, 2);
    let constraints = constraints.expect("it reads");
    let question = Question { constraints: Some(&constraints), ..whole.question(&cluster, 2, 1) };
    assert_eq!(first(&question), "zigzag:2");
}

#[test]
fn slow_links_are_used_less() {
    let model = Model::gpt();
    let (slow, quick) = (devices(4, "10 GFLOP/s", "1 MB/s"), devices(4, "10 GFLOP/s", "100 GB/s"));
    let name = |cluster: &Cluster| {
        let found = compare(&model.question(cluster, 4, 4), None, &mut |_| ()).expect("plans");
        let candidate =
            found.rows.iter().find(|candidate| candidate.claim.is_none()).expect("plans that have names");
        (candidate.plan.name.clone(), candidate.seconds())
    };
    let (slow, quick) = (name(&slow), name(&quick));
    assert_ne!(slow.0, quick.0);
    assert!(slow.0.contains("stages"), "messages between stages are the smallest: {slow:?}");
    assert!(quick.1 < slow.1);
}

#[test]
fn more_devices_are_quicker_where_links_are() {
    let model = Model::gpt();
    let cluster = devices(8, "1 GFLOP/s", "100 GB/s");
    let seconds = |count: u32| found(&model.question(&cluster, count, 1)).rows[0].seconds();
    let (one, two, four) = (seconds(1), seconds(2), seconds(4));
    assert!(two < 0.6 * one && four < 0.6 * two, "{one} {two} {four}");
    assert!(one / four <= 4.0 + 1e-9);
}

#[test]
fn what_does_not_fit_is_divided_or_computed_again() {
    let model = Model::gpt();
    let cluster = devices(4, "1 GFLOP/s", "1 GB/s");
    let free = found(&model.question(&cluster, 4, 1));
    let most = free.rows.iter().map(|candidate| candidate.memory.1).max().expect("plans");
    let least = free.rows.iter().map(|candidate| candidate.memory.1).min().expect("plans");
    let limited = Question {
        memory: Some(u64::midpoint(least, free.rows[0].memory.1)),
        ..model.question(&cluster, 4, 1)
    };
    let limited = found(&limited);
    assert!(limited.rows[0].fits() && limited.rows[0].memory.1 < free.rows[0].memory.1.max(most));
    assert!(limited.rows[0].seconds() >= free.rows[0].seconds());
    let refusal = |memory: u64| {
        let none = Question { memory: Some(memory), ..model.question(&cluster, 4, 1) };
        best(&none, None, &mut |_| ()).expect_err("a refusal")
    };
    assert_eq!((refusal(0).code, refusal(1).code), ("SW0920", "SW0920"));
    let error = refusal(1000);
    assert_eq!(error.code, "SW0920");
    assert!(error.what.contains("1000 B") && error.why.unwrap_or_default().contains("parameters"));
}

#[test]
fn a_deadline_that_is_over_still_gives_a_plan() {
    let model = Model::gpt();
    let cluster = devices(8, "1 GFLOP/s", "1 GB/s");
    let found =
        best(&model.question(&cluster, 8, 4), Some(std::time::Duration::ZERO), &mut |_| ()).expect("a plan");
    assert!(!found.rows.is_empty() && found.tried.0 < found.tried.1);
}

#[test]
fn one_device_and_none_and_too_many() {
    let model = Model::gpt();
    let cluster = devices(2, "1 GFLOP/s", "1 GB/s");
    let one = found(&model.question(&cluster, 1, 1));
    assert_eq!(one.rows[0].plan.name, "replicate");
    let code =
        |count| compare(&model.question(&cluster, count, 1), None, &mut |_| ()).err().map(|error| error.code);
    assert_eq!((code(0), code(3)), (Some("SW0921"), Some("SW0921")));
}

#[test]
fn the_bound_of_unequal_devices_is_below_that_of_their_best_use() -> Result<()> {
    let model = Model::gpt();
    let text = "[[nodes]]\ndevices = [\"quick:1\", \"slow:1\"]\nlink = { bandwidth = \"1 GB/s\" }\n\
        [devices.quick]\nlike = \"h100\"\n[devices.slow]\nlike = \"v100\"\n";
    let mixed = read(text, "mixed.toml")?;
    let both = bound(&model.question(&mixed, 2, 1))?;
    let quick = bound(&model.question(&mixed, 1, 1))?;
    assert!(both < quick && both > 0.3 * quick, "{both} {quick}");
    let found = found(&model.question(&mixed, 2, 1));
    assert!(found.rows.iter().all(|candidate| candidate.seconds() >= both));
    Ok(())
}

/// Names of the space, with schedules and what is on the host, whether or not they are plans of a model.
fn names(devices: u32, batches: u32) -> Vec<String> {
    let others = ["gpipe", "interleaved:2", "zb-h1", "zb-v"];
    let shapes = search::shapes(devices, batches);
    let usual = shapes.iter().flat_map(search::Shape::ladders).flatten();
    let usual: Vec<String> = usual.map(|name| name.to_string()).collect();
    let piped = usual.iter().filter(|name| name.contains("1f1b"));
    let other = piped.flat_map(|name| others.map(|other| name.replace("1f1b", other)));
    let offload = usual.iter().filter(|name| name.ends_with("recompute"));
    let offload = offload.flat_map(|name| {
        ["activations", "state", "parameters"].map(|what| format!("{name} x offload:{what}"))
    });
    let divided = usual.iter().filter(|name| name.contains("megatron") && !name.contains("stages"));
    let instead = divided.flat_map(|name| INSTEAD.map(|set| name.replace("megatron", set)));
    let is_whole = |name: &&String| name.ends_with("recompute") && !name.contains("zero");
    let parted = usual.iter().filter(is_whole).filter(|name| name.contains("1f1b"));
    let parted = parted.flat_map(|name| {
        ["1f1b", "gpipe", "zb-v"].map(|other| name.replace("1f1b x", &format!("{other} x coshard x")))
    });
    usual.iter().cloned().chain(other).chain(offload).chain(instead).chain(parted).collect()
}

/// Sets that divide a model in the place of `megatron`.
const INSTEAD: [&str; 4] = ["sequence", "zigzag", "ulysses", "expert"];

/// Schedules of which the order of all tasks is known.
const ORDERS: [&str; 3] = ["gpipe", "interleaved:2", "zb-v"];

#[test]
fn nothing_takes_less_than_it_must() {
    let graphs = [
        include_str!("../../../tests/python/golden/gpt.graph"),
        include_str!("../../../tests/python/golden/mlp.graph"),
        include_str!("../../../tests/python/golden/resnet.graph"),
        include_str!("../../../tests/python/golden/two_losses.graph"),
        include_str!("graphs/experts.graph"),
        CAUSAL,
    ];
    let clusters = [
        devices(4, "1 GFLOP/s", "1 GB/s"),
        devices(4, "1 TFLOP/s", "10 MB/s"),
        devices(8, "10 GFLOP/s", "100 GB/s"),
        named("dgx-h100:2x4").expect("known"),
        named("cpu:6").expect("known"),
        measured(),
        quick_messages(),
    ];
    let mut by_memory = 0.0_f64;
    let (mut plans, mut closest, mut kept, mut in_order) = (0, 0.0_f64, 0.0_f64, [0.0_f64; ORDERS.len()]);
    for model in graphs.map(Model::new) {
        for (cluster, batches) in clusters.iter().zip([4, 1, 8, 2, 6, 4, 4]) {
            let question = model.question(cluster, cluster.devices(), batches);
            let setting = Setting {
                cluster,
                batches,
                optimizer: question.optimizer,
                masters: question.masters,
                compiled: false,
            };
            let mut leasts = LowerBounds::new(&question);
            let of_any = bound(&question).expect("a bound");
            for name in names(cluster.devices(), batches) {
                let Ok(plan) = plan::sets::named(&name, &model.graph, &model.analysis, question.devices)
                else {
                    continue;
                };
                let least = leasts.bound(&plan).expect("a least");
                let Ok(stats) = estimate(&model.graph, &model.analysis, &plan, &model.boundary, &setting)
                else {
                    continue;
                };
                let (seconds, memory) =
                    (stats.simulation.seconds, stats.memory.iter().map(check::Memory::total).max());
                let who = format!("{} under {name} on {}, {batches}", model.graph.model, cluster.name);
                assert!(least.seconds <= seconds * (1.0 + 1e-9), "{who}: {} > {seconds}", least.seconds);
                assert!(of_any <= seconds * (1.0 + 1e-9), "{who}: {of_any} > {seconds}");
                // In as much memory as it needs.
                let tight = bound(&Question { memory, ..question }).expect("a bound");
                assert!(tight <= seconds * (1.0 + 1e-9), "{who}: {tight} > {seconds} in {memory:?}");
                by_memory = by_memory.max(tight / of_any);
                assert!(Some(least.kept) <= memory, "{who}: {} > {memory:?}", least.kept);
                assert!(least.memory <= least.kept);
                let share = least.kept as f64 / memory.unwrap_or(0).max(1) as f64;
                kept = kept.max(share);
                let own = in_order.iter_mut().zip(ORDERS).filter(|(_, order)| name.contains(order));
                own.for_each(|(most, _)| *most = most.max(share));
                assert!(least.computes <= least.flat * (1.0 + 1e-12) && least.flat <= least.seconds);
                (plans, closest) = (plans + 1, closest.max(least.seconds / seconds));
            }
        }
    }
    assert!(plans > 500 && closest > 0.8 && kept > 0.8, "{plans} {closest} {kept}");
    assert!(in_order.iter().all(|most| *most > 0.6), "{in_order:?}");
    assert!(by_memory > 1.2, "{by_memory}");
}

#[test]
fn under_gpipe_all_micro_batches_are_there_at_once() {
    let (model, cluster) = (Model::gpt(), devices(2, "1 GFLOP/s", "1 GB/s"));
    let most = |name: &str, batches| {
        let question = model.question(&cluster, 2, batches);
        let setting = Setting {
            cluster: &cluster,
            batches,
            optimizer: question.optimizer,
            masters: question.masters,
            compiled: false,
        };
        let plan = plan::sets::named(name, &model.graph, &model.analysis, 2).expect("a plan");
        let stats = estimate(&model.graph, &model.analysis, &plan, &model.boundary, &setting);
        let memory = stats.expect("it is proved").memory;
        memory.iter().map(check::Memory::total).max().expect("ranks")
    };
    let [four, five, six] = [4, 5, 6].map(|batches| most("stages:2 x gpipe", batches));
    assert!(four < five && five - four == six - five, "{four} {five} {six}");
    // Otherwise only the inputs of all are there.
    let [less, more] = [4, 6].map(|batches| most("stages:2 x 1f1b", batches));
    assert!(less < more && more - less < five - four, "{less} {more}");
}

/// What ranks need at least, of what they need.
fn shares(model: &Model, names: &[&str], batches: u32) -> Vec<f64> {
    let cluster = devices(4, "1 GFLOP/s", "1 GB/s");
    let question = model.question(&cluster, 4, batches);
    let setting = Setting {
        cluster: &cluster,
        batches,
        optimizer: question.optimizer,
        masters: question.masters,
        compiled: false,
    };
    let share = |name: &&str| {
        let plan = plan::sets::named(name, &model.graph, &model.analysis, 4).expect("a plan");
        let stats = estimate(&model.graph, &model.analysis, &plan, &model.boundary, &setting);
        let memory = stats.expect("it is proved").memory.iter().map(check::Memory::total).max();
        LowerBounds::new(&question).bound(&plan).expect("a least").kept as f64 / memory.expect("ranks") as f64
    };
    names.iter().map(share).collect()
}

#[test]
fn what_a_span_needs_when_it_is_computed_again_counts_and_what_blocks_share() {
    let (model, names) = (Model::gpt(), ["replicate x recompute", "stages:4 x 1f1b x recompute"]);
    assert!(shares(&model, &names, 4).iter().all(|share| *share > 0.85));
    // Of the embedding, which the last stage reads as well, each of these ranks holds all.
    let names = ["stages:2 x zero3:2 x 1f1b", "stages:2 x zero1:2 x 1f1b x recompute"];
    assert!(shares(&model, &names, 4).iter().all(|share| *share > 0.65));
    assert!(shares(&model, &["stages:2 x megatron:2 x gpipe x recompute"], 4)[0] > 0.42);
}

#[test]
fn of_a_layer_that_is_recomputed_in_pieces_no_more_counts_than_is_there() {
    let model = Model::new(include_str!("graphs/gated.graph"));
    let plans = [
        "data:2 x megatron:2",
        "stages:2 x megatron:2 x 1f1b",
        "stages:4 x zb-h1",
        "stages:2 x zero1:2 x zb-v",
    ];
    let names: Vec<String> = ["recompute", "recompute:selective", "recompute:attention"]
        .iter()
        .flat_map(|mode| plans.map(|plan| format!("{plan} x {mode}")))
        .collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let shares = shares(&model, &names, 4);
    assert!(shares.iter().all(|share| *share <= 1.0), "{shares:?}");
    assert!(shares[..2].iter().all(|share| *share > 0.8), "{shares:?}");
}

#[test]
fn what_is_read_in_several_pieces_is_whole_on_each_device() {
    let model = Model::gpt();
    let names = ["zero3:4 x coshard", "data:4 x coshard x recompute", "stages:2 x zero3:2 x 1f1b x coshard"];
    let shares = shares(&model, &names, 4);
    assert!(shares.iter().all(|share| *share > 0.45 && *share <= 1.0), "{shares:?}");
}

#[test]
fn so_many_of_the_quickest_are_those_of_all() {
    let model = Model::gpt();
    for (cluster, batches) in
        [(devices(4, "1 GFLOP/s", "100 MB/s"), 4), (named("dgx-h100:2x4").expect("known"), 8)]
    {
        let question = model.question(&cluster, cluster.devices(), batches);
        let all = compare(&question, None, &mut |_| ()).expect("plans");
        let first = |found: &Found| -> Vec<(String, f64)> {
            found
                .rows
                .iter()
                .take(3)
                .map(|candidate| (candidate.plan.name.clone(), candidate.seconds()))
                .collect()
        };
        let some = quickest(&question, Wanted { count: 3, below: f64::INFINITY }, None, &mut |_| ());
        let some = some.expect("plans");
        assert_eq!(first(&some), first(&all));
        assert!(some.left_out > 0 && some.rows.len() < all.rows.len() && all.left_out == 0);
        let below = Wanted { count: 3, below: 0.0 };
        let none = quickest(&question, below, None, &mut |_| ()).expect("plans");
        assert!(none.rows.iter().all(|candidate| candidate.claim.is_some()));
    }
}

#[test]
fn a_sequence_is_divided_where_the_batch_does_not_go_round() {
    let model = Model::gpt();
    let rows = |count: u32| {
        let cluster = devices(count, "1 TFLOP/s", "100 GB/s");
        let found = compare(&model.question(&cluster, count, 1), None, &mut |_| ()).expect("plans");
        found.rows.into_iter().map(|candidate| candidate.plan.name).collect::<Vec<String>>()
    };
    let has = |rows: &[String], set: &str| rows.iter().any(|name| name.contains(set));
    let (few, many) = (rows(2), rows(8));
    for set in ["sequence", "zigzag", "ulysses"] {
        assert!(!has(&few, set) && has(&many, set), "{set}: {few:?} {many:?}");
    }
    assert!(!has(&many, "expert"));
}

#[test]
fn another_schedule_is_taken_where_stages_wait() {
    let model = Model::gpt();
    let cluster = devices(4, "1 GFLOP/s", "1 MB/s");
    let found = compare(&model.question(&cluster, 4, 4), None, &mut |_| ()).expect("plans");
    let seconds = |name: &str| {
        let candidate = found.rows.iter().find(|candidate| candidate.plan.name == name);
        candidate.map(search::Evaluated::seconds).expect("it was looked at")
    };
    assert!(seconds("stages:4 x zb-h1") < seconds("stages:4 x 1f1b"));
    assert!(!found.rows[0].plan.name.contains("1f1b"), "{}", found.rows[0].plan.name);
}

#[test]
fn where_a_layer_does_not_fit_its_parts_take_turns() {
    let model = Model::gpt();
    let cluster = devices(1, "1 TFLOP/s", "1 TB/s");
    let question = model.question(&cluster, 1, 1);
    let needs = |name: &str| {
        let plan = plan::sets::named(name, question.graph, question.analysis, 1).expect("a plan");
        let Question { optimizer, masters, .. } = question;
        let setting = Setting { cluster: &cluster, batches: 1, optimizer, masters, compiled: false };
        let stats = estimate(question.graph, question.analysis, &plan, question.boundary, &setting)
            .expect("an estimate");
        stats.memory[0].total()
    };
    let (recomputed, turns) = (needs("replicate x recompute"), needs("replicate x coshard x recompute"));
    assert!(turns < recomputed, "{turns} {recomputed}");
    let tight = Question { memory: Some(turns), ..question };
    let chosen = &found(&tight).rows[0];
    assert!(chosen.fits() && chosen.plan.name == "replicate x coshard x recompute", "{}", chosen.plan.name);
}

#[test]
fn what_fits_in_no_other_way_is_on_the_host() {
    let model = Model::gpt();
    let cluster = devices(1, "1 GFLOP/s", "1 GB/s");
    let free = compare(&model.question(&cluster, 1, 1), None, &mut |_| ()).expect("plans");
    assert!(free.rows.iter().all(|candidate| !candidate.plan.name.contains("offload")));
    let tight = |memory: u64| {
        let question = Question { memory: Some(memory), ..model.question(&cluster, 1, 1) };
        compare(&question, None, &mut |_| ()).expect("plans")
    };
    let least = tight(1)
        .rows
        .iter()
        .filter(|candidate| !candidate.plan.name.contains("offload"))
        .map(|candidate| candidate.memory.1)
        .min();
    let found = tight(least.expect("plans") - 1);
    assert!(
        found.rows[0].fits() && found.rows[0].plan.name.contains("offload"),
        "{}",
        found.rows[0].plan.name
    );
}

#[test]
fn a_deadline_that_is_over_gives_what_fits_and_how_far_it_can_be() {
    let model = Model::gpt();
    let cluster = devices(8, "1 GFLOP/s", "1 GB/s");
    let all = compare(&model.question(&cluster, 8, 4), None, &mut |_| ()).expect("plans");
    let least = all
        .rows
        .iter()
        .filter(|candidate| candidate.fits())
        .map(|candidate| candidate.memory.1)
        .min()
        .expect("plans");
    let tight = Question { memory: Some(least), ..model.question(&cluster, 8, 4) };
    let found = best(&tight, Some(std::time::Duration::ZERO), &mut |_| ()).expect("a plan");
    assert!(found.rows[0].fits() && found.bound > 0.0 && found.rows[0].seconds() >= found.bound);
}
