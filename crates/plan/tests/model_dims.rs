//! Splits along the model's own dims, wherever these go.

use graph::Graph;
use plan::{Draft, Plan, sets, text};
use rules::Analysis;

const ATTENTION: &str = include_str!("attention.graph");

fn model() -> (Graph, Analysis) {
    let graph: Graph = ATTENTION.parse().unwrap();
    let analysis = Analysis::new(&graph);
    (graph, analysis)
}

fn read(lines: &str) -> Result<Plan, String> {
    let (graph, analysis) = model();
    let text = format!("shardwright-plan 1\ndevices 2\n{lines}");
    text::parse(&text, &graph, &analysis, None).map_err(|error| error.to_string())
}

#[test]
fn a_batch_that_is_split_wherever_it_goes_is_data_parallelism() {
    let (graph, analysis) = model();
    let data = sets::named("data", &graph, &analysis, 2).unwrap();
    assert_eq!(read("op \"*\": split x.0 2").unwrap().ops, data.ops);
}

#[test]
fn heads_are_a_factor_of_a_weight() {
    let (graph, analysis) = model();
    let megatron = sets::named("megatron", &graph, &analysis, 2).unwrap();
    assert_eq!(read("op \"*\": split attn.qkv.weight.0.1 2").unwrap().ops, megatron.ops);
}

#[test]
fn one_operator_must_have_the_dim() {
    let (graph, analysis) = model();
    let mut draft = Draft::new(&graph, &analysis, "mine", 2);
    let qkv = graph.op_ids().next().unwrap();
    assert_eq!(draft.trans(qkv, "x.0", 2).unwrap().len(), 2);
    let error = draft.trans(qkv, "attn.proj.weight.0", 2).unwrap_err();
    assert_eq!(error.code, "SW0303");
    assert!(
        error.what.starts_with("`attn.proj.weight.0` does not go through aten.linear.default of attn.qkv")
    );
}

#[test]
fn what_goes_nowhere_is_refused() {
    for name in ["x.9", "x.0.7", "x", "nothing.0", "x.0.0.0", "x.-1", "x.", ".0"] {
        let error = read(&format!("op \"*\": split {name} 2")).unwrap_err();
        assert!(error.starts_with("error[SW0303]"), "{name}: {error}");
    }
    // Every line is about something: none of these operators has the dim.
    let error = read("op \"*\": replicate 2\nop \"attn.qkv\": split attn.proj.weight.0 2").unwrap_err();
    assert!(error.starts_with("error[SW0303]"), "{error}");
}
