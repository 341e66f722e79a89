//! Plans as people read them.

use graph::Graph;
use plan::{Plan, print_folded, random, sets, text};
use rules::Analysis;

/// Three layers, the last of another width, with two additions each.
fn layers() -> Graph {
    tower(&[32, 32, 30])
}

fn tower(widths: &[i64]) -> Graph {
    let mut text = String::from("shardwright-graph 1\nmodel \"Tower\"\ninput %x0 f32[8,16] 0\n");
    for (layer, width) in widths.iter().enumerate() {
        let x = format!("%x{layer}");
        text += &format!(
            "param %u{layer} f32[{width},16] \"h.{layer}.up\"\nparam %d{layer} f32[16,{width}] \"h.{layer}.down\"\n\
             op %h{layer} f32[8,{width}] = aten.linear.default({x}, %u{layer}) in \"h.{layer}.mlp\" at \"m.py:1\"\n\
             op %a{layer} f32[8,{width}] = aten.relu.default(%h{layer}) in \"h.{layer}.mlp\" at \"m.py:2\"\n\
             op %y{layer} f32[8,16] = aten.linear.default(%a{layer}, %d{layer}) in \"h.{layer}.mlp\" at \"m.py:3\"\n\
             op %z{layer} f32[8,16] = aten.add.Tensor({x}, %y{layer}) in \"h.{layer}\" at \"m.py:4\"\n\
             op %x{} f32[8,16] = aten.add.Tensor(%z{layer}, {x}) in \"h.{layer}\" at \"m.py:5\"\n",
            layer + 1
        );
    }
    let last = widths.len();
    text += &format!("op %s f32[] = aten.sum.default(%x{last}) in \"\" at \"m.py:6\"\noutput %s\n");
    text.parse().unwrap_or_else(|error| panic!("{error}"))
}

fn named(name: &str, devices: u32) -> (Graph, Analysis, Plan) {
    let graph = layers();
    let analysis = Analysis::new(&graph);
    let plan = sets::named(name, &graph, &analysis, devices).unwrap_or_else(|error| panic!("{error}"));
    (graph, analysis, plan)
}

#[test]
fn layers_that_are_alike_are_one_line_and_dims_have_their_names() {
    let (graph, analysis, plan) = named("data:2 x megatron:2", 4);
    let expect = "\
shardwright-plan 1
name \"data:2 x megatron:2\"
devices 4
# dims of the model: batch x0.0, inner x0.1
op \"h.*.mlp\" aten.linear.default[0]: split b 2, split n 2 on 0..4  # batch, inner, 3 alike
op \"h.*.mlp\" aten.relu.default: split a 2, split b 2 on 0..4  # batch, inner, 3 alike
op \"h.*.mlp\" aten.linear.default[1]: split b 2, split k 2 on 0..4  # batch, inner, 3 alike
op \"h.*\" aten.add.Tensor[0]: split a 2, replicate 2 on 0..4  # batch, 3 alike
op \"h.*\" aten.add.Tensor[1]: split a 2, replicate 2 on 0..4  # batch, 3 alike
op \"\" aten.sum.default: split a 2, replicate 2 on 0..4  # batch
";
    assert_eq!(print_folded(&plan, &graph, &analysis), expect);
}

#[test]
fn what_one_layer_does_otherwise_has_a_line_of_its_own() {
    let (graph, analysis, _) = named("data", 2);
    let file = "shardwright-plan 1\ndevices 2\nuse \"data\"\nop \"h.1\" aten.add.Tensor[1]: single on 1\n";
    let plan = text::parse(file, &graph, &analysis, None).unwrap_or_else(|error| panic!("{error}"));
    let folded = print_folded(&plan, &graph, &analysis);
    assert!(
        folded.contains("op \"h.*\" aten.add.Tensor[1]: split a 2 on 0..2  # batch, 2 alike\n"),
        "{folded}"
    );
    assert!(folded.contains("op \"h.1\" aten.add.Tensor[1]: single on 1\n"), "{folded}");
    assert_eq!(text::parse(&folded, &graph, &analysis, None).ok(), Some(plan));
}

#[test]
fn what_is_folded_is_a_plan_file_of_the_same_plan() {
    let graph = layers();
    let analysis = Analysis::new(&graph);
    for seed in 0..50 {
        let plan = random::plan(&graph, &analysis, 5, seed);
        let folded = print_folded(&plan, &graph, &analysis);
        assert_eq!(text::parse(&folded, &graph, &analysis, None).ok(), Some(plan), "{folded}");
    }
}

#[test]
fn layers_of_a_stage_are_a_range() {
    let graph = tower(&[32; 12]);
    let analysis = Analysis::new(&graph);
    let file = "\
shardwright-plan 1
name \"staged\"
devices 4
use \"data\"
op \"h.{0-9}*\": split x0.0 2 on 0..2
op \"h.{10-11}*\": single on 2
op \"\": single on 2
param \"h.{0-2}.up\": over 2
param \"h.{3-9}.up\": over (0 1)
recompute \"h.{2-8}.mlp\"
offload state \"h.{8-10}.down\"
";
    let plan = text::parse(file, &graph, &analysis, None).unwrap_or_else(|error| panic!("{error}"));
    let folded = print_folded(&plan, &graph, &analysis);
    for line in [
        "op \"h.{0-9}.mlp\" aten.linear.default[0]: split b 2 on 0..2  # batch, 10 alike\n",
        "op \"h.{10-11}.mlp\" aten.linear.default[0]: single on 2  # 2 alike\n",
        "param \"h.{0-2}.up\": over 2, gather pass, reduce each\n",
        "param \"h.{3-9}.up\": over (0..2), gather pass, reduce each\n",
        "recompute \"h.{2-8}.mlp\"\n",
        "offload state \"h.{8-10}.down\"\n",
    ] {
        assert!(folded.contains(line), "{line}{folded}");
    }
    assert_eq!(folded.lines().count(), 19, "{folded}");
    assert_eq!(text::parse(&folded, &graph, &analysis, None).ok(), Some(plan));
}
