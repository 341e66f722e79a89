//! Plans for another graph of the same model, and plans for several units.

use graph::{Graph, OpId};
use plan::{On, Plan, Side, Split, Transferred, random, repeat, sets, transfer};
use rules::Analysis;

const MODEL: &str = r#"shardwright-graph 1
model "Tiny"
input %x f64[B,S,24] 0
param %w f64[72,24] "attn.qkv.weight"
param %o f64[24,24] "attn.proj.weight"
op %qkv f64[B,S,72] = aten.linear.default(%x, %w) in "attn.qkv" at "model.py:1"
op %q f64[B,S,24], %k f64[B,S,24], %v f64[B,S,24] = aten.split.Tensor(%qkv, 24, 2) in "attn" at "model.py:2"
op %qh f64[B,S,4,6] = aten.reshape.default(%q, [B, S, 4, 6]) in "attn" at "model.py:3"
op %kh f64[B,S,4,6] = aten.reshape.default(%k, [B, S, 4, 6]) in "attn" at "model.py:3"
op %vh f64[B,S,4,6] = aten.reshape.default(%v, [B, S, 4, 6]) in "attn" at "model.py:3"
op %qt f64[B,4,S,6] = aten.transpose.int(%qh, 1, 2) in "attn" at "model.py:3"
op %kt f64[B,4,S,6] = aten.transpose.int(%kh, 1, 2) in "attn" at "model.py:3"
op %vt f64[B,4,S,6] = aten.transpose.int(%vh, 1, 2) in "attn" at "model.py:3"
op %a f64[B,4,S,6] = aten.scaled_dot_product_attention.default(%qt, %kt, %vt) in "attn" at "model.py:4"
op %at f64[B,S,4,6] = aten.transpose.int(%a, 1, 2) in "attn" at "model.py:5"
op %ar f64[B,S,24] = aten.reshape.default(%at, [B, S, 24]) in "attn" at "model.py:5"
op %y f64[B,S,24] = aten.linear.default(%ar, %o) in "attn.proj" at "model.py:6"
"#;
const LOSS: &str = "op %loss f64[] = aten.mean.default(%y) in \"\" at \"model.py:7\"\noutput %loss\n";
const NO_LOSS: &str = "op %p f64[B,S,24] = aten.exp.default(%y) in \"\" at \"model.py:9\"\noutput %p\n";

struct It {
    graph: Graph,
    analysis: Analysis,
}

impl It {
    fn side(&self) -> Side<'_> {
        Side { graph: &self.graph, analysis: &self.analysis }
    }
}

fn model(batch: i64, sequence: i64, end: &str) -> It {
    let text = format!("{MODEL}{end}").replace('B', &batch.to_string()).replace('S', &sequence.to_string());
    let graph: Graph = text.parse().expect("it parses");
    let analysis = Analysis::new(&graph);
    It { graph, analysis }
}

fn named(it: &It, name: &str, devices: u32) -> Plan {
    sets::named(name, &it.graph, &it.analysis, devices).expect("a plan")
}

fn carried(plan: &Plan, from: &It, to: &It) -> Transferred {
    let found = transfer(plan, from.side(), to.side());
    found.plan.validate(&to.graph, &to.analysis).expect("a legal plan");
    found
}

fn splits(it: &It, plan: &Plan, tensor: &str) -> Vec<(String, u32)> {
    let op = it.graph.producer(it.graph.find(tensor).expect("a tensor")).expect("an operator").0;
    let word = |split: &Split| match split.on {
        On::Loop(index) => it.analysis.op(op).loops[index].name.clone(),
        On::Copies => "copies".into(),
        On::Value => "value".into(),
        On::Exchange { .. } => "exchange".into(),
    };
    plan.op(op).splits.iter().map(|s| (word(s), s.parts)).collect()
}

fn pair(name: &str, parts: u32) -> (String, u32) {
    (name.into(), parts)
}

#[test]
fn any_plan_carries_over_to_any_shape() {
    let from = model(4, 6, LOSS);
    for to in [model(1, 6, LOSS), model(3, 5, LOSS), model(9, 12, NO_LOSS), model(2, 1, NO_LOSS)] {
        for seed in 0..300 {
            let devices = 2 + u32::try_from(seed % 5).unwrap_or(0);
            let plan = random::plan(&from.graph, &from.analysis, devices, seed);
            let found = carried(&plan, &from, &to);
            assert_eq!(found.plan.devices, devices);
        }
    }
}

#[test]
fn the_same_graph_needs_no_change() {
    let it = model(4, 6, LOSS);
    for seed in 0..300 {
        let plan = random::plan(&it.graph, &it.analysis, 4, seed);
        let found = carried(&plan, &it, &it);
        assert_eq!((found.plan, found.notes), (plan, vec![]));
    }
}

#[test]
fn what_does_not_fit_is_split_as_far_as_it_goes() {
    let (from, to) = (model(4, 6, LOSS), model(3, 6, LOSS));
    let found = carried(&named(&from, "data", 4), &from, &to);
    assert_eq!(splits(&to, &found.plan, "qkv"), [pair("b", 2), pair("copies", 2)]);
    assert_eq!(
        found.notes[0],
        "aten.linear.default %qkv in \"attn.qkv\" at model.py:1 (and 2 more): `b` is split 2 ways and not 4"
    );
}

#[test]
fn weights_are_split_as_before() {
    let (from, to) = (model(4, 6, LOSS), model(1, 3, NO_LOSS));
    let found = carried(&named(&from, "data:2 x megatron:2", 4), &from, &to);
    assert_eq!(splits(&to, &found.plan, "qkv"), [pair("copies", 2), pair("n.1", 2)]);
    assert_eq!(
        splits(&to, &found.plan, "a").last(),
        splits(&from, &named(&from, "megatron", 2), "a").first()
    );
}

#[test]
fn a_new_operator_is_split_as_its_neighbours() {
    let (from, to) = (model(4, 6, LOSS), model(4, 6, NO_LOSS));
    let found = carried(&named(&from, "data", 4), &from, &to);
    assert_eq!(splits(&to, &found.plan, "p").iter().map(|s| s.1).collect::<Vec<_>>(), [4]);
    assert_eq!(
        found.notes,
        ["aten.exp.default %p in \"\" at model.py:9: the plan does not mention it; it is split as its \
             neighbours are"]
    );
}

#[test]
fn orders_are_kept_between_operators_that_are_still_there() {
    let (from, to) = (model(4, 6, LOSS), model(4, 6, NO_LOSS));
    let mut plan = named(&from, "data", 2);
    let last = OpId::new(from.graph.ops.len() - 1);
    plan.order = vec![(OpId(4), OpId(2)), (OpId(0), last)];
    assert_eq!(carried(&plan, &from, &to).plan.order, [(OpId(4), OpId(2))]);
}

#[test]
fn units_divide_the_batch_outermost() {
    let it = model(4, 6, LOSS);
    let unit = named(&it, "megatron", 2);
    let plan = repeat(&unit, &it.graph, &it.analysis, 2).expect("a plan");
    plan.validate(&it.graph, &it.analysis).expect("a legal plan");
    assert_eq!(plan.ops, named(&it, "data:2 x megatron:2", 4).ops);
}

#[test]
fn any_plan_can_be_a_unit() {
    let it = model(4, 6, LOSS);
    for seed in 0..300 {
        let unit = random::plan(&it.graph, &it.analysis, 3, seed);
        let plan = repeat(&unit, &it.graph, &it.analysis, 1 + u32::try_from(seed % 4).unwrap_or(0));
        plan.expect("a plan").validate(&it.graph, &it.analysis).expect("a legal plan");
    }
}

#[test]
fn too_many_units_are_refused() {
    let it = model(4, 6, LOSS);
    let error = |units| {
        let refused = repeat(&named(&it, "megatron", 2), &it.graph, &it.analysis, units);
        refused.expect_err("it is refused").code
    };
    assert_eq!(error(5), "SW0328");
    assert_eq!(error(u32::MAX), "SW0327");
    assert_eq!(error(0), "SW0327");
}
