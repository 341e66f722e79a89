//! What `megatron` splits where channels run from one convolution to the next.

use graph::Graph;
use plan::{On, sets};
use rules::Analysis;

/// Into how many parts, and along which dim, each operator is split.
fn split(name: &str, devices: u32, text: &str) -> String {
    let graph: Graph = text.parse().unwrap_or_else(|error| panic!("{error}"));
    let analysis = Analysis::new(&graph);
    let plan = sets::named(name, &graph, &analysis, devices).unwrap_or_else(|error| panic!("{error}"));
    let of = |op| {
        let output = graph.op(op).outputs.iter().flatten().next().map(|t| &graph.tensor(*t).name[..]);
        let splits = plan.op(op).splits.iter().map(|split| match split.on {
            On::Loop(index) => format!("{}:{}", analysis.op(op).loops[index].name, split.parts),
            On::Value => "value".into(),
            On::Exchange { .. } => "exchange".into(),
            On::Copies => "whole".into(),
        });
        format!("{} {}", output.unwrap_or("_"), splits.collect::<Vec<_>>().join(" "))
    };
    graph.op_ids().map(of).collect::<Vec<_>>().join("; ")
}

fn model(lines: &[&str]) -> String {
    format!("shardwright-graph 1\nmodel \"Net\"\ninput %x f32[2,8,4,4] 0\n{}\noutput %z\n", lines.join("\n"))
}

fn param(name: &str, shape: &str) -> String {
    format!("param %{name} f32[{shape}] \"{name}\"")
}

fn op(made: &str, call: &str) -> String {
    format!("op %{made} = aten.{call} in \"\" at \"m.py:1\"")
}

const CONV: &str = "None, [1, 1], [1, 1]";

#[test]
fn groups_of_a_norm_are_whole_in_each_part() {
    let net = |groups: u32| {
        let lines = [
            param("a", "12,8,3,3"),
            param("w", "12"),
            param("b", "12"),
            param("c", "8,12,3,3"),
            op("h f32[2,12,4,4]", &format!("conv2d.default(%x, %a, {CONV})")),
            op("n f32[2,12,4,4]", &format!("group_norm.default(%h, {groups}, %w, %b)")),
            op("s f32[2,12,4,4]", "silu.default(%n)"),
            op("z f32[2,8,4,4]", &format!("conv2d.default(%s, %c, {CONV})")),
        ];
        model(&lines.iter().map(String::as_str).collect::<Vec<_>>())
    };
    assert_eq!(split("megatron", 2, &net(4)), "h o.0:2; n b:2; s b.0:2; z i.0:2");
    assert_eq!(split("megatron", 3, &net(4)), "h o.0:3; n b:3; s b.0:3; z i.0:3");
    let graph: Graph = net(1).parse().expect("it parses");
    let refused = sets::named("megatron", &graph, &Analysis::new(&graph), 2).expect_err("one group");
    assert_eq!(refused.code, "SW0309");
}

/// The second convolution is split with the first; the third, of which the channels that it reads are what the second
/// writes, along these.
#[test]
fn a_contraction_that_is_left_shares_the_channels_of_one_that_is_split() {
    let lines = [
        param("a", "8,8,3,3"),
        param("b", "8,8,3,3"),
        param("c", "8,8,3,3"),
        op("h f32[2,8,4,4]", &format!("conv2d.default(%x, %a, {CONV})")),
        op("r f32[2,8,4,4]", "relu.default(%h)"),
        op("k f32[2,8,4,4]", &format!("conv2d.default(%r, %b, {CONV})")),
        op("s f32[2,8,4,4]", "relu.default(%k)"),
        op("z f32[2,8,4,4]", &format!("conv2d.default(%s, %c, {CONV})")),
    ];
    let text = model(&lines.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(split("megatron", 2, &text), "h o:2; r b:2; k i:2; s b:2; z i:2");
    assert_eq!(split("coshard:2", 1, &text), "h o:2; r b:2; k i:2; s ; z ");
}

/// A mean over channels would have to be summed apart, as in the norms of a transformer.
#[test]
fn channels_that_something_else_sums_are_not_shared() {
    let lines = [
        param("a", "8,8,3,3"),
        param("b", "8,8,3,3"),
        param("c", "8,8,3,3"),
        op("h f32[2,8,4,4]", &format!("conv2d.default(%x, %a, {CONV})")),
        op("k f32[2,8,4,4]", &format!("conv2d.default(%h, %b, {CONV})")),
        op("m f32[2,1,4,4]", "mean.dim(%k, [1], True)"),
        op("s f32[2,8,4,4]", "mul.Tensor(%k, %m)"),
        op("z f32[2,8,4,4]", &format!("conv2d.default(%s, %c, {CONV})")),
    ];
    let text = model(&lines.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(split("megatron", 2, &text), "h o:2; k i:2; m whole; s whole; z whole");
}
