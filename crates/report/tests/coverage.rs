//! What of a model has a rule.

use std::collections::BTreeMap;

use graph::Graph;
use plan::sets;
use report::{Coverage, Lack, coverage};
use rules::Analysis;

const NET: &str = r#"shardwright-graph 1
model "Net"
input %x f32[8,16] 0
param %u f32[64,16] "up"
param %d f32[16,64] "down"
param %g f32[16,16] "h.0.gate.w"
op %a f32[8,64] = aten.linear.default(%x, %u) in "h.0.mlp" at "m.py:1"
op %b f32[8,64] = aten.relu.default(%a) in "h.0.mlp" at "m.py:2"
op %c f32[8,16] = aten.linear.default(%b, %d) in "h.0.mlp" at "m.py:3"
op %e f32[8,16] = shardwright.module.default("h.0.gate", ["w"], [%g], [%c], "()", [], True, None) in "h.0.gate" at "m.py:4"
op %f f32[8,16] = shardwright.function.default("m:f", [%e], "(T0)") in "h.1" at "m.py:5"
op %h f32[8,16] = kernels.swish.default(%f) in "" at "m.py:6"
op %i f32[8,16] = aten.matrix_exp.default(%h) in "" at "m.py:7"
op %j f32[8,16] = aten.embedding.default(%i, %x, -1, True) in "" at "m.py:8"
op %s f32[] = aten.sum.default(%j) in "" at "m.py:9"
output %s
"#;

fn of(counted: &[(&str, f64)], plan: Option<&str>) -> Coverage {
    let graph: Graph = NET.parse().unwrap_or_else(|error| panic!("{error}"));
    let analysis = Analysis::new(&graph);
    let plan = plan.map(|name| sets::named(name, &graph, &analysis, 2).unwrap_or_else(|e| panic!("{e}")));
    let counted: BTreeMap<String, f64> =
        counted.iter().map(|(name, share)| ((*name).to_owned(), *share)).collect();
    coverage(&graph, &analysis, plan.as_ref(), &counted)
}

#[test]
fn each_lack_has_its_reason() {
    let found = of(&[], None);
    let mut lacks: Vec<(&str, &str)> =
        found.unruled.iter().map(|row| (&row.target[..], row.lack.name())).collect();
    lacks.sort_unstable();
    let expect = [
        ("aten.embedding.default", "call"),
        ("aten.matrix_exp.default", "operator"),
        ("kernels.swish.default", "library"),
        ("shardwright.function.default", "function"),
        ("shardwright.module.default", "module"),
    ];
    assert_eq!(lacks, expect);
    let call = found.unruled.iter().find(|row| row.lack.name() == "call").expect("a call");
    assert_eq!(call.lack, Lack::Call("embedding"));
    let module = found.unruled.iter().find(|row| row.lack == Lack::Module).expect("a module");
    assert_eq!((module.name.as_deref(), &module.names[..]), (Some("h.*.gate"), &["h.0.gate".to_owned()][..]));
    assert_eq!((&module.modules[0][..], &module.lines[0][..]), ("h.*.gate", "m.py:4"));
}

#[test]
fn what_was_counted_is_a_share_of_all() {
    let found = of(&[("h.0.gate", 0.25)], None);
    let module = found.unruled.iter().find(|row| row.lack == Lack::Module).expect("a module");
    assert!((module.amount.operations / found.all.operations - 0.25).abs() < 1e-9);
    assert!(module.counted);
    assert_eq!(module.amount.parameters, 16 * 16 * 4);
    assert_eq!(module.amount.activations, 8 * 16 * 4);
    assert_eq!(found.unruled[0].lack, Lack::Module, "it has the most");
    assert_eq!(found.all.parameters, (2 * 64 * 16 + 16 * 16) * 4);
}

#[test]
fn a_plan_divides_each_operator_in_one_way() {
    let found = of(&[], Some("megatron"));
    let planned = found.planned.expect("a plan");
    assert_eq!((planned.split.operators, planned.replicated.operators, planned.single.operators), (3, 6, 0));
    let all = planned.split.operations + planned.replicated.operations;
    assert!((all - found.all.operations).abs() < 1e-9);
    assert_eq!(of(&[], None).planned, None);
}
