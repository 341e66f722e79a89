//! What constraints leave, beside all plans that there are; and which of them clash.

use cluster::{Cluster, named};
use diag::{Error, Result};
use plan::{On, Plan, Split, sets};
use search::spmd::{Count, find, member, tables};
use search::{Constraints, Evaluated, Question, best, compare};

use crate::model::Model;

/// Two linears, of which all plans can be looked at.
fn mlp() -> Model {
    Model::new(
        r#"shardwright-graph 1
model "Mlp"
in_spec "*"
out_spec "*"
module "" "Mlp"
module "up" "Linear"
module "down" "Linear"
input %x f64[8,32] 0
input %target f64[8,16] 1
param %p_up f64[64,32] "up.weight"
param %p_down f64[16,64] "down.weight"
op %linear f64[8,64] = aten.linear.default(%x, %p_up) in "up" at "mlp.py:1"
op %gelu f64[8,64] = aten.gelu.default(%linear) in "" at "mlp.py:2"
op %linear_1 f64[8,16] = aten.linear.default(%gelu, %p_down) in "down" at "mlp.py:3"
op %mse_loss f64[] = aten.mse_loss.default(%linear_1, %target) in "" at "mlp.py:4"
output %mse_loss
"#,
    )
}

fn read(model: &Model, cluster: &Cluster, lines: &str) -> Result<Constraints> {
    let text = format!("shardwright-constraints 1\n{lines}\n");
    Constraints::read(&text, "mine.constraints", &model.graph, &model.analysis, cluster, cluster.devices())
}

fn broken(constraints: &Constraints, model: &Model, plan: &Plan) -> Vec<usize> {
    constraints.broken(plan, &model.graph, &model.analysis).into_iter().collect()
}

/// All values of variables that have so many.
fn values_of(sizes: &[usize]) -> Vec<Vec<usize>> {
    let longer = |known: Vec<Vec<usize>>, size: &usize| {
        known.iter().flat_map(|it| (0..*size).map(move |value| [&it[..], &[value]].concat())).collect()
    };
    sizes.iter().fold(vec![vec![]], longer)
}

const SETS: [&str; 9] = [
    "pin \"*\" aten.linear.*: split batch",
    "pin \"up\": split inner 4",
    "pin \"up\": split inner\npin \"down\": split inner",
    "forbid \"*\": split batch",
    "limit \"*\": split batch 2",
    "limit aten.linear.*: split inner 2\nforbid \"down\": split batch",
    "pin \"down\": single",
    "forbid Linear between nodes: split inner",
    "pin Linear inside nodes: split batch 2",
];

/// The best that respects constraints is the best of those among all plans that do, which another look at each plan says.
#[test]
fn what_is_left_is_what_respects_the_constraints() {
    let model = mlp();
    for cluster in [named("cpu:4").expect("known"), named("ethernet-25g:2x2").expect("known")] {
        let free = model.question(&cluster, 4, 1);
        let all = tables(&free, 0.0).expect("tables").problem;
        let plans: Vec<(Plan, f64)> = values_of(&all.sizes)
            .iter()
            .map(|values| {
                let mut next = values.iter();
                let mut pick = |_: usize| *next.next().expect("a value");
                let plan = member(&free, None, 0.0, Count::Alone, &mut pick)
                    .expect("a member")
                    .expect("a plan")
                    .plan;
                (plan, all.cost(values))
            })
            .collect();
        for lines in SETS {
            let constraints = read(&model, &cluster, lines).expect(lines);
            let mut taken = 0;
            let filtered = plans.iter().filter(|(plan, _)| broken(&constraints, &model, plan).is_empty());
            let filtered =
                filtered.inspect(|_| taken += 1).map(|(_, cost)| *cost).fold(f64::INFINITY, f64::min);
            let question = Question { constraints: Some(&constraints), ..free };
            let own = tables(&question, 0.0).expect("tables");
            let found = own.least.expect("it is small").cost;
            assert!(taken > 0 && found == filtered, "{lines}: {found} of {filtered}, {taken} plans");
            let fewer = own.problem.sizes.iter().sum::<usize>() < all.sizes.iter().sum();
            assert!(fewer || taken == plans.len(), "{lines}");
        }
    }
}

#[test]
fn what_is_found_respects_them_and_is_no_better_than_without() {
    let model = Model::gpt();
    let cluster = named("ethernet-25g:2x2").expect("known");
    let free = model.question(&cluster, 4, 2);
    let best_of = |question: &Question<'_>| best(question, None, &mut |_| ()).expect("a plan").rows;
    // Of pipelines those are looked at that promise most, which may be others under constraints.
    let least = |rows: &[Evaluated]| {
        let own = rows.iter().filter(|candidate| candidate.fits() && candidate.plan.block_count() == 1);
        own.map(Evaluated::seconds).fold(f64::INFINITY, f64::min)
    };
    let without = least(&best_of(&free));
    for lines in [
        "pin \"*\": split batch",
        "use \"data\" between nodes\nuse \"megatron\" inside nodes",
        "pin \"h.*.mlp.c_fc\": split inner 4",
        "pin Attention: split heads",
        "tie Block\nlimit stages 1",
        "tie \"h.*.mlp.c_fc\"\nforbid recompute\nforbid offload",
        "limit stages 2",
        "pin \"h.0.*\": on 0..2",
        "forbid \"*\": split batch, split sequence",
    ] {
        let constraints = read(&model, &cluster, lines).expect(lines);
        let question = Question { constraints: Some(&constraints), ..free };
        let rows = best_of(&question);
        rows.iter().for_each(|candidate| {
            assert!(broken(&constraints, &model, &candidate.plan).is_empty(), "{lines}");
        });
        assert!(least(&rows) >= without * (1.0 - 1e-9), "{lines}");
    }
}

#[test]
fn a_tie_makes_fewer_decisions_which_are_equal_everywhere() {
    let model = Model::gpt();
    let cluster = named("cpu:4").expect("known");
    let free = model.question(&cluster, 4, 2);
    let constraints = read(&model, &cluster, "tie \"*\"").expect("it reads");
    let question = Question { constraints: Some(&constraints), ..free };
    let (all, tied) = (find(&free).expect("plans"), find(&question).expect("plans"));
    assert!(tied.stats.decisions < all.stats.decisions);
    assert!(!tied.plans.is_empty());
    let mut seed = 3_u64;
    let mut pick = |count: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % count
    };
    // Other plans of the same space are not tied, and that is seen.
    let plans = (0..8)
        .map(|_| member(&free, None, 0.0, Count::Alone, &mut pick).expect("a member").expect("a plan").plan);
    assert!(plans.into_iter().any(|plan| broken(&constraints, &model, &plan) == [0]));
    tied.plans.iter().for_each(|it| assert!(broken(&constraints, &model, &it.plan).is_empty()));
}

/// A fault in a plan is seen, whatever made it.
#[test]
fn a_plan_that_breaks_them_is_seen() {
    let model = Model::gpt();
    let cluster = named("ethernet-25g:2x2").expect("known");
    let named = |name: &str| sets::named(name, &model.graph, &model.analysis, 4).expect("a plan");
    let is_broken = |lines: &str, plan: &Plan| {
        !broken(&read(&model, &cluster, lines).expect(lines), &model, plan).is_empty()
    };
    for (lines, good, bad) in [
        ("use \"data\" between nodes", "data:2 x megatron:2", "megatron:2 x data:2"),
        ("use \"megatron\" inside nodes", "data:2 x megatron:2", "data:4"),
        ("forbid \"*\" between nodes: split inner", "data:2 x megatron:2", "megatron:4"),
        ("limit stages 2", "stages:2 x data:2 x 1f1b", "stages:4 x 1f1b"),
        ("forbid recompute", "data:4", "data:4 x recompute"),
        ("forbid offload", "data:4", "data:4 x offload:state"),
        ("pin \"h.0.*\": on 0..2", "stages:2 x data:2 x gpipe", "data:4"),
        ("pin \"lm_head\": single", "replicate:4", "data:4"),
        ("op \"lm_head\": replicate 4", "replicate:4", "stages:2 x data:2 x gpipe"),
        ("use \"data:4\"", "zero3:4", "megatron:4"),
    ] {
        assert!(!is_broken(lines, &named(good)), "{lines}: {good}");
        assert!(is_broken(lines, &named(bad)), "{lines}: {bad}");
    }
    // One operator of one layer.
    let fault = |plan: &Plan, path: &str, splits: &[Split]| {
        let mut plan = plan.clone();
        let op = model.graph.op_ids().find(|op| model.graph.op(*op).module == path).expect("it is there");
        plan.ops[op.index()].splits = splits.to_vec();
        plan
    };
    let (data, copies) = (named("data:4"), [Split { on: On::Copies, parts: 4 }]);
    for lines in ["tie Block", "pin \"*\": split batch 4", "use \"data:4\"", "pin Linear: split batch"] {
        assert!(!is_broken(lines, &data), "{lines}");
        let faulty = fault(&data, "h.1.mlp.c_fc", &copies);
        assert!(is_broken(lines, &faulty), "{lines}");
        let constraints = read(&model, &cluster, lines).expect(lines);
        let confirmed = |plan: &Plan| constraints.confirm(plan, &model.graph, &model.analysis);
        assert_eq!(confirmed(&data), Ok(()));
        assert_eq!(confirmed(&faulty).expect_err("a fault").code, "SW0532");
    }
}

fn refusal(lines: &str, batches: u32) -> Error {
    let model = Model::gpt();
    let cluster = named("cpu:4").expect("known");
    let constraints = read(&model, &cluster, lines).expect(lines);
    let question = Question { constraints: Some(&constraints), ..model.question(&cluster, 4, batches) };
    best(&question, None, &mut |_| ()).err().unwrap_or_else(|| panic!("{lines} is respected"))
}

/// Of all that is said only what clashes is named, and each of it is needed.
#[test]
fn a_smallest_set_that_clashes_is_named() {
    for (lines, stats) in [
        ("pin \"h.0.mlp.c_fc\": split inner 3", &[2][..]),
        (
            "forbid recompute\npin \"h.*\": split batch\nforbid \"h.1.*\": split batch\nlimit stages 1",
            &[3, 4],
        ),
        (
            "limit stages 1\ntie Block\npin \"h.0.mlp.c_fc\": split inner 4\npin \"h.1.mlp.c_fc\": split batch 4",
            &[3, 4, 5],
        ),
        ("pin \"h.0.*\": on 0..2\nforbid offload\nlimit stages 1", &[2, 4]),
    ] {
        let error = refusal(lines, 4);
        let why = error.why.expect("a reason");
        let named: Vec<usize> =
            (2..9).filter(|line| why.contains(&format!("(mine.constraints, line {line})"))).collect();
        assert_eq!((error.code, &named[..]), ("SW0333", stats), "{why}");
    }
}

#[test]
fn memory_that_clashes_is_named() {
    let model = Model::gpt();
    let cluster = named("cpu:4").expect("known");
    let free = compare(&model.question(&cluster, 4, 1), None, &mut |_| ()).expect("plans");
    let whole = free.rows.iter().find(|candidate| candidate.plan.name == "data:4").expect("a row").memory.1;
    let least = free.rows.iter().map(|candidate| candidate.memory.1).min().expect("plans");
    let between = u64::midpoint(least, whole);
    let error =
        refusal(&format!("forbid offload\nlimit memory {between}\nuse \"replicate:4\"\nforbid recompute"), 1);
    let why = error.why.expect("a reason");
    assert!(error.code == "SW0333" && error.what.contains("memory"), "{}", error.what);
    assert!(why.contains("limit memory") && why.contains("replicate") && !why.contains("offload"), "{why}");
    assert_eq!(
        refusal("limit memory 1000\ntie Block", 1).why.as_deref(),
        Some("none respects `limit memory 1000` (mine.constraints, line 2)")
    );
    // Where it is not for constraints, it is said what is needed.
    let tie = read(&model, &cluster, "tie Block\nlimit stages 1").expect("it reads");
    let question = Question { constraints: Some(&tie), memory: Some(1000), ..model.question(&cluster, 4, 1) };
    assert_eq!(best(&question, None, &mut |_| ()).expect_err("no memory").code, "SW0920");
}

#[test]
fn what_cannot_be_read_is_refused_with_its_line() {
    let model = Model::gpt();
    let cluster = named("cpu:4").expect("known");
    for (lines, code, column, part) in [
        ("pin \"h.*\" split batch", "SW0332", 1, "`:`"),
        ("tie Block\npin \"h.*\": split colour", "SW0332", 18, "`colour`"),
        ("pin \"h.*\": split batch two", "SW0332", 24, "`two`"),
        ("pin \"h.*\": halve batch", "SW0332", 12, "`halve batch`"),
        ("prefer \"h.*\": split batch", "SW0332", 1, "`prefer`"),
        ("tie Blok", "SW0302", 5, "`Blok`"),
        ("pin \"g.*\": single", "SW0302", 1, "no operator"),
        ("forbid \"h.*\": single", "SW0332", 15, "`single`"),
        ("limit memory much", "SW0431", 0, "much"),
        ("use \"dat\"", "SW0311", 0, "dat"),
    ] {
        let error = read(&model, &cluster, lines).expect_err(lines);
        let place = error.place.clone().unwrap_or_default();
        let line = 1 + lines.lines().count();
        let expected = if column > 0 { format!(", column {column}") } else { String::new() };
        assert_eq!(place, format!("mine.constraints, line {line}{expected}"), "{lines}");
        assert!(error.code == code && error.what.contains(part), "{lines}: {error}");
    }
    let text = "shardwright-plan 2\n";
    let error = Constraints::read(text, "a.plan", &model.graph, &model.analysis, &cluster, 4)
        .expect_err("no version");
    assert_eq!((error.code, error.place.as_deref()), ("SW0332", Some("a.plan, line 1")));
}

#[test]
fn a_partial_plan_is_a_constraint() {
    let model = Model::gpt();
    let cluster = named("cpu:4").expect("known");
    let text = "shardwright-plan 1\nname \"part\"\ndevices 4\nop \"h.*.mlp.c_fc\": split n 4\n";
    let constraints =
        Constraints::read(text, "part.plan", &model.graph, &model.analysis, &cluster, 4).expect("it reads");
    let question = Question { constraints: Some(&constraints), ..model.question(&cluster, 4, 1) };
    let rows = best(&question, None, &mut |_| ()).expect("a plan").rows;
    let op =
        model.graph.op_ids().find(|op| model.graph.op(*op).module == "h.1.mlp.c_fc").expect("it is there");
    assert_eq!(rows[0].plan.op(op).count(), 4);
    assert!(broken(&constraints, &model, &rows[0].plan).is_empty());
    let other = text.replace("devices 4", "devices 8");
    assert_eq!(
        Constraints::read(&other, "part.plan", &model.graph, &model.analysis, &cluster, 4)
            .expect_err("8")
            .code,
        "SW0332"
    );
    let more = format!("{text}recompute \"h.*\"\n");
    assert_eq!(
        Constraints::read(&more, "part.plan", &model.graph, &model.analysis, &cluster, 4)
            .expect_err("a span")
            .code,
        "SW0332"
    );
}

#[test]
fn levels_need_nodes_that_are_alike() {
    let model = Model::gpt();
    let cluster = named("dgx-h100:4x2").expect("known");
    let text = "shardwright-constraints 1\nuse \"data\" between nodes\n";
    let read = |devices| Constraints::read(text, "mine", &model.graph, &model.analysis, &cluster, devices);
    assert_eq!(read(6).expect_err("4 and 2").code, "SW0335");
    assert!(read(8).is_ok() && read(4).is_ok());
}
