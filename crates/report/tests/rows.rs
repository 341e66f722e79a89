//! Which modules are one row.

use graph::Graph;
use plan::{Plan, text};
use report::{Row, kept, rows};
use rules::Analysis;

/// Layers of a norm, an attention of one product, and an MLP.
fn layers(count: usize) -> Graph {
    layers_in(count, |layer| layer.to_string())
}

/// The same, in modules with these names.
fn layers_in(count: usize, name: impl Fn(usize) -> String) -> Graph {
    let mut text = String::from("shardwright-graph 1\nmodel \"Tower\"\ninput %x0 f32[8,16] 0\n");
    for layer in 0..count {
        let module = name(layer);
        text += &format!(
            "param %a{layer} f32[16,16] \"h.{layer}.attn.w\"\nparam %u{layer} f32[64,16] \"h.{layer}.mlp.up\"\n\
             param %d{layer} f32[16,64] \"h.{layer}.mlp.down\"\n\
             op %p{layer} f32[8,16] = aten.relu.default(%x{layer}) in \"h.{module}.norm\" at \"m.py:1\"\n\
             op %q{layer} f32[8,16] = aten.linear.default(%p{layer}, %a{layer}) in \"h.{module}.attn\" at \"m.py:2\"\n\
             op %h{layer} f32[8,64] = aten.linear.default(%q{layer}, %u{layer}) in \"h.{module}.mlp\" at \"m.py:3\"\n\
             op %g{layer} f32[8,64] = aten.relu.default(%h{layer}) in \"h.{module}.mlp.act\" at \"m.py:4\"\n\
             op %y{layer} f32[8,16] = aten.linear.default(%g{layer}, %d{layer}) in \"h.{module}.mlp\" at \"m.py:5\"\n\
             op %x{} f32[8,16] = aten.add.Tensor(%x{layer}, %y{layer}) in \"h.{module}\" at \"m.py:6\"\n",
            layer + 1
        );
    }
    text += &format!("op %s f32[] = aten.sum.default(%x{count}) in \"\" at \"m.py:7\"\noutput %s\n");
    text.parse().unwrap_or_else(|error| panic!("{error}"))
}

fn plan(graph: &Graph, lines: &str) -> Plan {
    let file = format!("shardwright-plan 1\ndevices 4\n{lines}");
    text::parse(&file, graph, &Analysis::new(graph), None).unwrap_or_else(|error| panic!("{error}"))
}

fn table(count: usize, lines: &str) -> String {
    table_of(&layers(count), lines)
}

fn table_of(graph: &Graph, lines: &str) -> String {
    let found = rows(graph, &Analysis::new(graph), &plan(graph, lines), None);
    let mut all: Vec<_> = found.iter().flat_map(|row| row.ops.clone()).collect();
    all.sort_unstable();
    assert_eq!(all, graph.op_ids().collect::<Vec<_>>(), "each operator is in one row");
    let work: f64 = found.iter().map(|row| row.work).sum();
    assert!((work - 1.0).abs() < 1e-9, "{work}");
    found.iter().map(line).collect()
}

fn line(row: &Row) -> String {
    let path = |path: &String| if path.is_empty() { "the rest".to_owned() } else { path.clone() };
    let modules: Vec<String> = row.modules.iter().map(path).collect();
    let (modules, more) = (modules.join(" "), (row.others, row.recomputed, row.offloaded));
    format!("{modules}: {} on {} {more:?}\n", row.decided, row.decided.placed())
}

#[test]
fn a_plan_that_does_one_thing_is_one_row() {
    assert_eq!(table(3, "use \"data\"\n"), "the rest: batch 4 on 0..4 (0, 0, 0)\n");
}

#[test]
fn what_has_next_to_no_work_is_counted_only() {
    // An activation of the last MLP: of its operators it is the cheapest by far.
    let lines = "use \"data\"\nop \"h.2.mlp.act\": single on 0\n";
    assert_eq!(table(3, lines), "the rest: batch 4 on 0..4 (1, 0, 0)\n");
}

#[test]
fn layers_that_are_alike_are_a_range_and_parts_that_are_alike_one_row() {
    let lines = "\
use \"data:2 x replicate:2\"
op \"h.*.mlp\" aten.linear.default[0]: split b 2, split n 2
op \"h.*.mlp.act\": split a 2, split b 2
op \"h.*.mlp\" aten.linear.default[1]: split b 2, split k 2
";
    let expect = "\
the rest h.{0-4} h.{0-4}.norm h.{0-4}.attn: batch 2 x copies 2 on 0..4 (0, 0, 0)
h.{0-4}.mlp: batch 2 x inner 2 on 0..4 (0, 0, 0)
";
    assert_eq!(table(5, lines), expect);
}

#[test]
fn layers_that_are_called_twice_are_two_ranges() {
    let graph = layers_in(6, |layer| if layer < 3 { layer.to_string() } else { format!("{}@1", layer - 3) });
    let lines = "use \"data:2 x replicate:2\"\nop \"h.*.mlp\": split b 2, split k 2\n";
    let found = table_of(&graph, lines);
    assert!(found.contains("h.{0-2}.mlp h.{0-2}@1.mlp"), "{found}");
}

#[test]
fn what_is_computed_again_in_some_layers_parts_them() {
    let found = table(6, "use \"data\"\nrecompute \"h.{0-3}\"\noffload \"h.{4-5}.mlp\"\n");
    let expect = "\
h.{0-3}: batch 4 on 0..4 (0, 24, 0)
h.{4-5}: batch 4 on 0..4 (0, 0, 6)
the rest: batch 4 on 0..4 (0, 0, 0)
";
    assert_eq!(found, expect);
}

#[test]
fn stages_are_told_by_their_devices() {
    let lines = "use \"stages:2 x data:2\"\nparam \"h.0.*\": over (0 1), gather step, reduce last\n";
    let found = table(4, lines);
    let devices: Vec<&str> =
        found.lines().filter_map(|line| line.split(" on ").nth(1)?.split(' ').next()).collect();
    assert_eq!(devices, ["0..2", "2..4"], "{found}");
    let graph = layers(4);
    let param_shardings = kept(&graph, &plan(&graph, lines));
    let told: Vec<_> = param_shardings.iter().map(|it| (it.over, it.count, it.bytes)).collect();
    assert_eq!(told, [(2, 3, 4 * (16 * 16 + 2 * 64 * 16))]);
}
