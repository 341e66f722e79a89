//! Plan files, the primitives and named plans, on a model with a fused projection.

use graph::Graph;
use plan::{Draft, On, Plan, sets, text};
use rules::Analysis;

const MODEL: &str = include_str!("attention.graph");

fn model() -> (Graph, Analysis) {
    let graph: Graph = MODEL.parse().expect("it parses");
    let analysis = Analysis::new(&graph);
    (graph, analysis)
}

fn read(lines: &str) -> Result<Plan, String> {
    let (graph, analysis) = model();
    let all = format!("shardwright-plan 1\ndevices 2\n{lines}");
    text::parse(&all, &graph, &analysis, None).map_err(|e| e.to_string())
}

fn refused(lines: &str, expect: &str) {
    assert_eq!(read(lines).expect_err("it is refused").trim(), expect.trim());
}

#[test]
fn a_fused_projection_is_a_product_of_factors() {
    let (graph, analysis) = model();
    let qkv = graph.find("qkv").expect("a tensor");
    assert_eq!(analysis.factors[qkv.index()], [vec![4], vec![6], vec![3, 4, 6]]);
    let names: Vec<&str> = analysis.ops[0].loops.iter().map(|l| &l.name[..]).collect();
    assert!(names.contains(&"n.1"), "{names:?}");
}

#[test]
fn what_prints_parses() {
    let (graph, analysis) = model();
    for name in [
        "replicate",
        "data",
        "megatron",
        "data:2 x megatron:2",
        "data:2 x coshard:2",
        "zigzag",
        "ulysses",
        "megatron-sp",
    ] {
        let devices = if name.contains("megatron:2") { 4 } else { 2 };
        let plan = sets::named(name, &graph, &analysis, devices).expect("a plan");
        let printed = text::print(&plan, &graph, &analysis);
        assert_eq!(text::parse(&printed, &graph, &analysis, None).expect("it parses"), plan);
    }
}

#[test]
fn later_lines_win() {
    let plan = read("op \"*\": replicate 2\nop \"attn*\" aten.linear*: split b 2 on 1 0").expect("a plan");
    assert_eq!(plan.ops[0].devices[..], [1, 0]);
    assert_eq!(plan.ops[1].splits[0].on, On::Copies);
}

#[test]
fn the_primitives_nest() {
    let (graph, analysis) = model();
    let mut draft = Draft::new(&graph, &analysis, "mine", 2);
    for op in graph.op_ids() {
        draft.trans(op, "replicate", 2).expect("copies");
        draft.place(op, [0, 1]).expect("two devices");
    }
    let first = graph.op_ids().next().expect("an operator");
    draft.clear(first);
    draft.trans(first, "b", 2).expect("the batch");
    let parts = draft.trans(first, "n.1", 2).expect("the heads");
    assert_eq!(parts.len(), 4);
    for (part, device) in parts.into_iter().zip([1, 1, 0, 0]) {
        draft.assign(part, device).expect("a device");
    }
    assert_eq!(draft.finish().expect("a plan").ops[0].devices[..], [1, 1, 0, 0]);
}

#[test]
fn an_x_needs_no_spaces_behind_a_number() {
    let (graph, analysis) = model();
    let expect = sets::named("data:2 x megatron:2", &graph, &analysis, 4).expect("a plan").ops;
    for name in ["data:2x megatron:2", "data:2xmegatron:2", "data : 2 x megatron: 2", "data x megatron"] {
        assert_eq!(
            sets::named(name, &graph, &analysis, 4).map(|plan| plan.ops),
            Ok(expect.clone()),
            "{name}"
        );
    }
}

#[test]
fn names_that_are_not_understood() {
    let (graph, analysis) = model();
    let known: Vec<String> = sets::ALL.iter().map(|set| format!("`{}`", set.name)).collect();
    let unknown = format!(
        "did you mean `megatron`? Else use one of {}, a product such as `data:2 x megatron:2`, or a plan file",
        known.join(", ")
    );
    for (name, devices, what, fix) in [
        (
            "coshard:2",
            4,
            "the 2 parts of `coshard:2` do not fit 4 devices",
            "write `coshard:8` for two parts on each device, or say what the devices share: `data:4 x coshard:2`",
        ),
        (
            "data:2 megatron:2",
            4,
            "`2 megatron:2` is not a size of `data` in the plan `data:2 megatron:2`",
            "write `data:2 x megatron:2`",
        ),
        (
            "data:2*megatron:2",
            4,
            "`2*megatron:2` is not a size of `data` in the plan `data:2*megatron:2`",
            "write `data:2 x megatron:2`",
        ),
        (
            "data x recompute:some",
            2,
            "there is no `recompute:some`",
            "write `recompute` or `recompute:selective` or `recompute:attention` or `recompute:none`",
        ),
        (
            "data x recompute:2",
            2,
            "`recompute` has no size",
            "write `recompute` or `recompute:selective` or `recompute:attention` or `recompute:none`",
        ),
        ("data:two", 2, "`two` is not a size of `data` in the plan `data:two`", "write for example `data:2`"),
        ("megatorn", 2, "there is no plan named `megatorn`", &unknown[..]),
    ] {
        let error = sets::named(name, &graph, &analysis, devices).expect_err("it is refused");
        assert_eq!((&error.what[..], error.fix.as_deref()), (what, Some(fix)));
    }
}

#[test]
fn a_name_may_say_for_how_many_devices_it_is() {
    for (name, expect) in [
        ("data:2 x megatron:4", Some(8)),
        ("data:2 x coshard:4", Some(2)),
        ("data:2 x megatron", None),
        ("coshard:4", None),
        ("data", None),
    ] {
        assert_eq!(sets::devices_of(name), Ok(expect), "{name}");
    }
}

#[test]
fn what_is_misspelt_is_found() {
    for (line, expect) in [
        ("op \"attn.porj\": single", "there is \"attn.proj\""),
        (
            "op \"nothing.like.it\": single",
            "the model has, among others, \"attn\", \"attn.qkv\", \"attn.proj\"",
        ),
        ("op \"attn.proj\" aten.liner.default: single", "at \"attn.proj\" there is aten.linear.default"),
        ("op %lsos: single", "there is %loss"),
        ("op %elsewhere: single", "no operator gives a result of this name"),
    ] {
        let message = read(&format!("op \"*\": replicate 2\n{line}")).expect_err("it is refused");
        assert!(message.contains(&format!("why: {expect}\n")), "{message}");
    }
}

#[test]
fn refusals() {
    refused(
        "op \"*\": replicate 2\nop \"attn.qvk\": split b 2",
        "
error[SW0302]: no operator is named \"attn.qvk\"
  at: line 4 of the plan
  why: there is \"attn.qkv\"
  help: paths are those of the model's modules; `*` stands for any text",
    );
    refused(
        "op \"*\": replicate 2\nop \"attn.qkv\": split t 2",
        "
error[SW0303]: aten.linear.default of attn.qkv has no dim `t`
  at: line 4 of the plan, for the operator at model.py:1
  why: its rule is `b s k+, n k+ -> b s n ; linear 0 ; linear 1`
  help: split one of `b` (4), `s` (6), `k` (24), `n.0` (3), `n.1` (4), `n.2` (6)",
    );
    refused(
        "op \"*\": replicate 2\nop \"attn.qkv\": split b 5",
        "
error[SW0305]: `b` of aten.linear.default of attn.qkv cannot be split into 5 parts
  at: line 4 of the plan, for the operator at model.py:1
  why: it has 4 elements here
  help: split it into at most 4, or split another dim",
    );
    refused(
        "op \"*\": replicate 2\nop \"attn.qkv\": split b 2 on 0 2",
        "
error[SW0306]: there is no device 2
  at: line 4 of the plan, for the operator at model.py:1
  why: the plan is for 2 devices, numbered from 0 to 1
  help: use another device, or plan for more of them",
    );
    refused(
        "op \"attn*\": replicate 2",
        "
error[SW0308]: the plan is not complete: aten.mean.default %loss in \"\" at model.py:7
  at: model.py:7
  why: the plan does not mention it
  help: say how it is split and where it runs; `op \"*\": replicate N` covers all others",
    );
    refused(
        "op \"*\": divide b 2",
        "
error[SW0301]: `divide b 2` does not say how to split an operator
  at: line 3 of the plan
  help: write `split DIM PARTS`, `split value PARTS`, `exchange DIM PARTS`, `replicate PARTS` or `single`",
    );
}

#[test]
fn an_order_that_goes_round_is_refused_with_the_circle() {
    refused(
        "op \"*\": replicate 2\norder %y < %q",
        "
error[SW0401]: the plan's order cannot be kept: aten.linear.default %y in \"attn.proj\" at model.py:6
  at: model.py:6
  why: the plan puts %y before %q; %y needs %q by way of %qh, %qt, %a, %at and 1 more
  help: remove one of the `order` lines",
    );
    refused(
        "op \"*\": replicate 2\norder %k < %q\norder %v < %k\norder %q < %v",
        "
error[SW0401]: the plan's order cannot be kept: aten.split.Tensor %q in \"attn\" at model.py:2
  at: model.py:2
  why: the plan puts %q before %q
  help: remove one of the `order` lines",
    );
    refused(
        "op \"*\": replicate 2\norder %qh < %vh\norder %kh < %qh\norder %vt < %kh",
        "
error[SW0401]: the plan's order cannot be kept: aten.reshape.default %qh in \"attn\" at model.py:3
  at: model.py:3
  why: the plan puts %qh before %vh; %vt needs %vh; the plan puts %vt before %kh; the plan puts %kh before %qh
  help: remove one of the `order` lines",
    );
}

const NODES: &str = r#"shardwright-graph 1
input %edges i64[2,20] 0
input %x f64[6,8] 1
param %w f64[8,8] "w"
param %v f64[8,8] "v"
op %h f64[6,8] = aten.linear.default(%x, %w) in "" at "m.py:1"
op %from i64[20] = aten.select.int(%edges, 0, 0) in "" at "m.py:2"
op %to i64[20] = aten.select.int(%edges, 0, 1) in "" at "m.py:3"
op %m f64[20,8] = aten.index_select.default(%h, 0, %from) in "" at "m.py:4"
op %z f64[6,8] = aten.zeros.default([6, 8], dtype=f64) in "" at "m.py:5"
op %a f64[6,8] = aten.index_add.default(%z, 0, %to, %m) in "" at "m.py:6"
op %o f64[6,8] = aten.linear.default(%a, %v) in "" at "m.py:7"
op %s f64[] = aten.sum.default(%o) in "" at "m.py:8"
output %s
"#;

/// What `data` splits of a model on two devices, by the names of tensors.
fn split_by_data(graph: &str) -> Vec<String> {
    let graph: Graph = graph.parse().expect("it parses");
    let analysis = Analysis::new(&graph);
    let plan = sets::named("data", &graph, &analysis, 2).expect("a plan");
    let split = |op: &graph::OpId| plan.op(*op).splits.iter().any(|split| matches!(split.on, On::Loop(_)));
    let name = |op| graph.op(op).outputs[0].map(|id| graph.tensor(id).name.to_string());
    graph.op_ids().filter(split).filter_map(name).collect()
}

#[test]
fn data_splits_rows_beside_the_batch_if_they_have_the_work() {
    // Nodes, also where messages were summed; edges have no products.
    assert_eq!(split_by_data(NODES), ["h", "o", "s"]);
    // Beside a batch of work, little work along other rows stays whole.
    let images = "input %patches f64[6,8] 1\nparam %p f64[8,8] \"p\"\n";
    let made = "op %i f64[6,8] = aten.linear.default(%patches, %p) in \"\" at \"m.py:1\"\n";
    let with = |batch: i64| {
        format!(
            "shardwright-graph 1\ninput %x f64[{batch},8] 0\n{images}param %w f64[8,8] \"w\"\n{made}\
             op %h f64[{batch},8] = aten.linear.default(%x, %w) in \"\" at \"m.py:2\"\n\
             op %s f64[] = aten.sum.default(%h) in \"\" at \"m.py:3\"\n\
             op %t f64[] = aten.sum.default(%i) in \"\" at \"m.py:4\"\n\
             op %l f64[] = aten.add.Tensor(%s, %t) in \"\" at \"m.py:5\"\noutput %l\n"
        )
    };
    assert_eq!(split_by_data(&with(8)), ["i", "h", "s", "t"]);
    assert_eq!(split_by_data(&with(200)), ["h", "s"]);
}

#[test]
fn data_splits_rows_that_the_model_makes_if_they_have_the_work() {
    let edges = |before: &str, x: &str| {
        format!(
            "shardwright-graph 1\ninput %edges i64[2,20] 0\ninput %x f64[6,8] 1\nparam %w f64[8,8] \"w\"\n{before}\
             op %from i64[20] = aten.select.int(%edges, 0, 0) in \"\" at \"m.py:2\"\n\
             op %m f64[20,8] = aten.index_select.default({x}, 0, %from) in \"\" at \"m.py:3\"\n\
             op %e f64[20,8] = aten.linear.default(%m, %w) in \"\" at \"m.py:4\"\n\
             op %s f64[] = aten.sum.default(%e) in \"\" at \"m.py:5\"\noutput %s\n"
        )
    };
    // What edges look up, alone and beside nodes.
    assert_eq!(split_by_data(&edges("", "%x")), ["from", "m", "e", "s"]);
    let nodes = "op %h f64[6,8] = aten.linear.default(%x, %w) in \"\" at \"m.py:1\"\n";
    assert_eq!(split_by_data(&edges(nodes, "%h")), ["h", "from", "m", "e", "s"]);
    // Behind a dim of one element rows are divided beside a batch.
    let patches = |x: i64| {
        format!(
            "shardwright-graph 1\ninput %x f64[{x},8] 0\ninput %p f64[1,6,8] 1\nparam %w f64[8,8] \"w\"\n\
             op %h f64[{x},8] = aten.linear.default(%x, %w) in \"\" at \"m.py:1\"\n\
             op %i f64[1,6,8] = aten.linear.default(%p, %w) in \"\" at \"m.py:2\"\n\
             op %s f64[] = aten.sum.default(%h) in \"\" at \"m.py:3\"\n\
             op %t f64[] = aten.sum.default(%i) in \"\" at \"m.py:4\"\n\
             op %l f64[] = aten.add.Tensor(%s, %t) in \"\" at \"m.py:5\"\noutput %l\n"
        )
    };
    assert_eq!(split_by_data(&patches(4)), ["h", "i", "s", "t"]);
}

/// In a small model they would be the cheapest place to cut at: position ids.
#[test]
fn no_block_has_nothing_but_constants() {
    let graph: Graph = include_str!("../../../tests/python/golden/gpt.graph").parse().expect("it parses");
    let analysis = Analysis::new(&graph);
    let constant = rules::of_constants(&graph, &analysis);
    assert!(constant.contains(&true));
    for (name, devices) in [("stages:3 x zb-v", 3), ("stages:3 x interleaved:3", 3), ("stages:8", 8)] {
        let plan = sets::named(name, &graph, &analysis, devices).expect("a plan");
        for block in 0..plan.block_count() {
            let ops: Vec<_> = graph.op_ids().filter(|op| plan.block(*op) == block).collect();
            assert!(ops.iter().any(|op| !constant[op.index()]), "{name}: block {block} of {ops:?}");
        }
    }
}
