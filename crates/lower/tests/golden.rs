//! What well-known plans communicate on the reference models: each a line of words, in order.

use std::collections::BTreeSet;
use std::fmt::Write;

use graph::{Graph, Source};
use lower::{loss, lower};
use plan::sets;
use program::{Body, Inputs, Pass, Program, RankId};
use rules::Analysis;

fn graph(model: &str) -> Graph {
    let text =
        std::fs::read_to_string(format!("../../tests/python/golden/{model}.graph")).expect("a golden graph");
    text.parse().expect("it parses")
}

fn lowered(model: &str, plan: &str, devices: u32) -> Program {
    lowered_with(&graph(model), plan, devices, Inputs::Global)
}

fn lowered_with(graph: &Graph, plan: &str, devices: u32, inputs: Inputs) -> Program {
    let analysis = Analysis::new(graph);
    let plan = sets::named(plan, graph, &analysis, devices).expect("a plan");
    lower(graph, &analysis, &plan, &loss(graph, inputs)).expect("it lowers")
}

/// A phase's communications on rank 0, equal neighbours counted.
fn words(body: &Body, pass: Pass) -> String {
    let mut runs: Vec<(&str, usize)> = vec![];
    for instr in body.codes_of(pass).flat_map(|code| &code.instrs) {
        if !instr.kind().communicates() {
            continue;
        }
        let word = instr.kind().name();
        match runs.last_mut() {
            Some((last, count)) if *last == word => *count += 1,
            _ => runs.push((word, 1)),
        }
    }
    runs.iter().map(|(word, count)| format!("{count} {word}")).collect::<Vec<_>>().join(", ")
}

fn check(model: &str, plans: &[(&str, u32)], expect: &str) {
    check_with(&graph(model), Inputs::Global, plans, expect);
}

fn check_with(graph: &Graph, inputs: Inputs, plans: &[(&str, u32)], expect: &str) {
    let mut text = String::new();
    for (plan, devices) in plans {
        let program = lowered_with(graph, plan, *devices, inputs);
        let body = &program.role_of(RankId(0)).expect("rank 0").0.body;
        let (forward, backward) = (words(body, Pass::Forward), words(body, Pass::Backward));
        writeln!(text, "{plan} on {devices}: {forward} | {backward}").expect("a string");
    }
    assert_eq!(text.trim(), expect.trim(), "\n{text}");
}

#[test]
fn mlp() {
    check(
        "mlp",
        &[("replicate", 2), ("data", 4), ("megatron", 2), ("data:2 x megatron:2", 4), ("coshard:2", 1)],
        "
replicate on 2:  | 
data on 4: 1 all_reduce | 1 reduce_gradients
megatron on 2: 2 all_reduce | 1 all_reduce
data:2 x megatron:2 on 4: 3 all_reduce | 1 all_reduce, 1 reduce_gradients
coshard:2 on 1:  | ",
    );
}

#[test]
fn gpt() {
    // Megatron: the embedding, two layers with two each, and three for the loss over a split
    // vocabulary; backward two a layer and one for the projection's input.
    check(
        "gpt",
        &[("data", 4), ("megatron", 4), ("data:2 x megatron:2", 4)],
        "
data on 4: 1 all_reduce | 1 all_reduce, 1 reduce_gradients
megatron on 4: 8 all_reduce | 5 all_reduce
data:2 x megatron:2 on 4: 9 all_reduce | 6 all_reduce, 1 reduce_gradients",
    );
}

#[test]
fn gpt_along_its_sequence() {
    // Of each of two layers keys and values, gathered or with queries by heads, and the loss; backward the same, and
    // gradients of parameters. The table of positions is read alike by all rows. Where heads and inner dims are divided, too, each
    // of two layers has two pairs of gathers and scatters each way, and the projection one.
    check(
        "gpt",
        &[("sequence", 4), ("data:2 x sequence:2", 4), ("zigzag", 2), ("ulysses", 2), ("megatron-sp", 2)],
        "
sequence on 4: 4 all_gather, 1 all_reduce | 4 reduce_scatter, 1 reduce_gradients
data:2 x sequence:2 on 4: 4 all_gather, 1 all_reduce | 4 reduce_scatter, 1 all_reduce, 2 reduce_gradients
zigzag on 2: 4 exchange, 2 all_reduce | 4 exchange, 1 reduce_gradients
ulysses on 2: 8 all_to_all, 1 all_reduce | 8 all_to_all, 1 reduce_gradients
megatron-sp on 2: 1 reduce_scatter, 1 all_gather, 1 reduce_scatter, 1 all_gather, 1 reduce_scatter, 1 all_gather, 1 reduce_scatter, 1 all_gather, 1 reduce_scatter, 1 all_gather, 2 all_reduce, 1 all_gather, 1 all_reduce | 1 reduce_scatter, 1 all_gather, 1 reduce_scatter, 1 all_gather, 1 reduce_scatter, 1 all_gather, 1 reduce_scatter, 1 all_gather, 1 reduce_scatter, 1 all_gather, 1 reduce_gradients",
    );
}

#[test]
fn resnet() {
    // Batch norm over a split batch: its mean and its variance, each way; the loss twice. Channels that share a contraction
    // change places instead of being summed whole.
    check(
        "resnet",
        &[("data", 2), ("megatron", 2)],
        "
data on 2: 13 all_reduce | 12 all_reduce, 1 reduce_gradients
megatron on 2: 1 all_reduce, 1 reduce_scatter, 5 all_reduce | 1 all_reduce, 1 all_gather, 1 all_reduce",
    );
}

#[test]
fn ranks_that_do_the_same_share_a_role() {
    assert_eq!(lowered("gpt", "data", 4).roles.len(), 1);
    // Biases of row-split linears are added to the sums, on all ranks.
    assert_eq!(lowered("gpt", "data:2 x megatron:4", 8).roles.len(), 1);
}

#[test]
fn of_a_layer_that_is_cut_each_stage_gathers_its_own() {
    for (plan, blocks) in [("stages:4 x zero3:2", 1), ("stages:2 x zero3:2 x interleaved:2", 2)] {
        let program = lowered("gpt", plan, if blocks == 1 { 8 } else { 4 });
        for role in &program.roles {
            let own: BTreeSet<u32> = role.body.codes_of_batches().map(|code| code.block).collect();
            assert_eq!(own.len(), blocks, "{plan}: ranks {:?} run {own:?}", role.ranks);
        }
    }
}

#[test]
fn gradients_of_inputs() {
    // Under `data` one more all-gather, under `megatron` one more all-reduce; none where each rank
    // gets the gradient of its own rows. `x` is read twice, and moved once.
    let mut graph = graph("mlp");
    for tensor in &mut graph.tensors {
        if let Source::Input { grad, .. } = &mut tensor.source {
            *grad = tensor.name == "x";
        }
    }
    let plans = [("data", 4), ("megatron", 2), ("data:2 x megatron:2", 4)];
    check_with(
        &graph,
        Inputs::Global,
        &plans,
        "
data on 4: 1 all_reduce | 1 all_gather, 1 reduce_gradients
megatron on 2: 2 all_reduce | 2 all_reduce
data:2 x megatron:2 on 4: 3 all_reduce | 2 all_reduce, 1 all_gather, 1 reduce_gradients",
    );
    check_with(
        &graph,
        Inputs::Local,
        &plans,
        "
data on 4: 1 all_reduce | 1 reduce_gradients
megatron on 2: 2 all_reduce | 2 all_reduce
data:2 x megatron:2 on 4: 3 all_reduce | 2 all_reduce, 1 reduce_gradients",
    );
}

#[test]
fn a_move_takes_several_collectives_where_an_exchange_is_dearer() {
    let mut graph = graph("mlp");
    // Without a bias, which would be added to the whole sum.
    graph.ops[0].args.truncate(2);
    let analysis = Analysis::new(&graph);
    let mut found = String::new();
    for (what, lines) in [
        ("two dims, needed whole", "op %linear: split b 2, split n 2"),
        ("two dims, uneven", "op %linear: split b 3, split n 2\nop %gelu: split b 3, replicate 2"),
        ("two dims, needed by rows", "op %linear: split b 2, split n 2\nop %gelu: split a 4"),
        ("a dim and partial sums, needed whole", "op %linear: split b 2, split k 2"),
        (
            "partial sums, needed by rows and columns",
            "op %linear: split b 2, split k 2\nop %gelu: replicate 2, split b 2",
        ),
        ("two dims the other way round", "op %linear: split b 2, split n 2\nop %gelu: split b 2, split a 2"),
    ] {
        let devices = if lines.contains('3') { 6 } else { 4 };
        let text = format!("shardwright-plan 1\ndevices {devices}\nop \"*\": replicate {devices}\n{lines}");
        let plan = plan::text::parse(&text, &graph, &analysis, None).expect("a plan");
        let program = lower(&graph, &analysis, &plan, &loss(&graph, Inputs::Global)).expect("it lowers");
        let body = &program.role_of(RankId(0)).expect("rank 0").0.body;
        let (forward, backward, exchanges) =
            (words(body, Pass::Forward), words(body, Pass::Backward), program.exchanges.len());
        writeln!(found, "{what}: {forward} | {backward} | {exchanges}").expect("a string");
    }
    // On each side the communications of rank 0, then all exchanges. One message to another rank and
    // none behind it is cheaper than two collectives.
    let expect = "
two dims, needed whole: 2 all_gather | 1 reduce_gradients | 0
two dims, uneven: 1 all_gather, 1 all_to_all, 1 all_gather | 1 all_to_all, 1 reduce_gradients | 0
two dims, needed by rows: 1 all_to_all, 1 all_gather | 1 all_to_all, 1 reduce_gradients | 0
a dim and partial sums, needed whole: 1 all_reduce, 1 all_gather | 1 reduce_gradients | 0
partial sums, needed by rows and columns: 1 reduce_scatter, 2 all_gather | 1 all_gather, 1 reduce_gradients | 0
two dims the other way round: 2 all_gather | 1 reduce_gradients | 2";
    assert_eq!(found.trim(), expect.trim(), "\n{found}");
}

/// An exchange would bring each of the two that want the sum seven shares of it.
#[test]
fn shares_that_few_of_their_ranks_want_summed_are_summed_by_all() {
    let mut graph = graph("mlp");
    graph.ops[0].args.truncate(2);
    let analysis = Analysis::new(&graph);
    let first = |devices: u32| {
        let text = format!(
            "shardwright-plan 1\ndevices {devices}\nop \"*\": replicate {devices}\n\
             op %linear: split k {devices}\nop %gelu: replicate 2 on 0 1"
        );
        let plan = plan::text::parse(&text, &graph, &analysis, None).expect("a plan");
        let program = lower(&graph, &analysis, &plan, &loss(&graph, Inputs::Global)).expect("it lowers");
        let body = &program.role_of(RankId(devices - 1)).expect("the last rank").0.body;
        words(body, Pass::Forward)
    };
    assert_eq!(first(8), "1 all_reduce, 1 exchange");
    assert_eq!(first(4), "2 exchange");
}
