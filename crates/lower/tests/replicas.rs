//! What later blocks compute once more instead of being sent it, and what they are sent all the same.

use std::fmt::Write;

use graph::Graph;
use lower::{loss, lower};
use plan::{Plan, sets};
use program::{Code, Instr, Pass, Program};
use rules::Analysis;

/// The operators that make `cos` and `sin`.
const TABLES: [&str; 3] = ["aten.cos.default", "aten.sin.default", "aten.split.Tensor"];

const ROTARY: &str = include_str!("../../reference/tests/graphs/rotary.graph");

fn lowered(text: &str, plan: impl Fn(&Graph, &Analysis) -> Plan) -> (Graph, Program) {
    let graph: Graph = text.parse().expect("it parses");
    let analysis = Analysis::new(&graph);
    let plan = plan(&graph, &analysis);
    let boundary = loss(&graph, program::Inputs::Global);
    let program = lower(&graph, &analysis, &plan, &boundary).expect("it lowers");
    (graph, program)
}

/// What a code is sent, and what it has of `cos` and `sin`: by an operator of its own, or kept by another code.
fn words(graph: &Graph, program: &Program, code: &Code, role: &program::Role) -> String {
    let name = |buf: &program::BufId| graph.tensor(role.body.buf(*buf).tensor).name.clone();
    let mut words = vec![];
    for instr in &code.instrs {
        match instr {
            Instr::Receive { exchange, .. } => {
                let tensor = program.exchanges[exchange.index()].tensor;
                words.push(format!("receives {}", graph.tensor(tensor).name));
            }
            Instr::Take { to, .. } => words.extend(to.iter().map(|buf| format!("takes {}", name(buf)))),
            Instr::Call(call) => {
                let made = call.ops.iter().filter(|op| TABLES.contains(&&op.target[..]));
                words.extend(
                    made.flat_map(|op| op.outputs.iter().flatten()).map(|buf| format!("makes {}", name(buf))),
                );
            }
            _ => {}
        }
    }
    words.join(", ")
}

fn found((graph, program): &(Graph, Program)) -> String {
    let mut text = String::new();
    for role in &program.roles {
        let ranks: Vec<String> = role.ranks.iter().map(|rank| rank.0.to_string()).collect();
        for code in role.body.codes_of(Pass::Forward) {
            writeln!(text, "{} block {}: {}", ranks.join(" "), code.block, words(graph, program, code, role))
                .expect("a string");
        }
    }
    text
}

fn check(text: &str, plan: &str, devices: u32, expect: &str) {
    let named =
        |graph: &Graph, analysis: &Analysis| sets::named(plan, graph, analysis, devices).expect("a plan");
    let found = found(&lowered(text, named));
    assert_eq!(found.trim(), expect.trim(), "{plan}\n{found}");
}

/// Under a plan of these lines.
fn under(text: &str, devices: u32, lines: &str) -> String {
    let plan = |graph: &Graph, analysis: &Analysis| {
        let text = format!("shardwright-plan 1\ndevices {devices}\n{lines}");
        plan::text::parse(&text, graph, analysis, None).expect("a plan")
    };
    found(&lowered(text, plan))
}

#[test]
fn a_stage_computes_what_is_made_of_constants_and_receives_the_rest() {
    check(
        ROTARY,
        "stages:2",
        2,
        "
0 block 0: makes cos, makes sin
1 block 1: receives add_1, makes cos, makes sin",
    );
}

#[test]
fn a_device_with_several_blocks_computes_it_once() {
    check(
        ROTARY,
        "stages:2 x interleaved:2",
        2,
        "
0 block 0: makes cos, makes sin
0 block 2: takes cos, takes sin, receives add_1
1 block 1: receives add_0, makes cos, makes sin
1 block 3: takes cos, takes sin, receives add_2",
    );
}

#[test]
fn copies_of_a_stage_compute_it_each() {
    check(
        ROTARY,
        "stages:2 x data:2",
        4,
        "
0 1 block 0: makes cos, makes sin
2 3 block 1: receives add_1, makes cos, makes sin",
    );
}

/// What is the same but for `cos` and `sin`, which the second stage receives.
const RECEIVED: &str = "
0 block 0: makes cos, makes sin
1 block 1: receives add_1, receives cos, receives sin";

/// A gradient goes back through what depends on a parameter that is trained. A frozen one is no constant either: it may
/// be another one in the next step.
#[test]
fn what_depends_on_more_than_constants_is_received() {
    let buffer = r#"buffer %b_rates f64[8] "rope.rates" transient"#;
    let arange = "aten.arange.default(8, dtype=f64)";
    let column = "aten.unsqueeze.default(%positions, 1)";
    let update = "output %loss\nupdate \"rope.rates\" %angles_row";
    let row =
        "op %angles_row f64[8] = aten.mul.Tensor(%b_rates, 0.5) in \"rope\" at \"rotary.py:9\"\nop %linear_0";
    for text in [
        ROTARY.replace(buffer, r#"param %b_rates f64[8] "rope.rates" frozen"#),
        ROTARY.replace(buffer, r#"param %b_rates f64[8] "rope.rates""#),
        ROTARY.replace(buffer, "input %b_rates f64[8] 2"),
        ROTARY.replace("op %linear_0", row).replace("output %loss", update),
        ROTARY.replace(arange, "aten.rand.default([8], dtype=f64)"),
        ROTARY.replace(column, "aten.dropout.default(%positions_1, 0.5, True)").replace(
            "op %column",
            "op %positions_1 f64[8,1] = aten.unsqueeze.default(%positions, 1) in \"rope\" at \"rotary.py:9\"\nop %column",
        ),
        ROTARY.replace(column, "lab.column.default(%positions)"),
    ] {
        assert_ne!(text, ROTARY);
        check(&text, "stages:2", 2, RECEIVED);
    }
}

/// The rates are a row of a larger buffer.
fn row_of(rows: u32) -> String {
    let buffer = format!("buffer %b_all f64[{rows},8] \"rope.all\" transient");
    let row =
        "op %b_rates f64[8] = aten.select.int(%b_all, 0, 3) in \"rope\" at \"rotary.py:8\"\nop %positions";
    let text = ROTARY.replace(r#"buffer %b_rates f64[8] "rope.rates" transient"#, &buffer);
    text.replace("op %positions", row)
}

/// A message counts as 64 KiB and what is in it. What is worth it holds, reads and writes 32 times as much at most.
#[test]
fn what_needs_more_than_its_message_is_received() {
    let computed = "
0 block 0: makes cos, makes sin
1 block 1: receives add_1, makes cos, makes sin";
    check(&row_of(33_000), "stages:2", 2, computed);
    check(&row_of(33_300), "stages:2", 2, RECEIVED);
    let sum =
        "op %rows f64[60000,8] = aten.full.default([60000, 8], 1.0, dtype=f64) in \"rope\" at \"rotary.py:9\"
op %positions f64[8] = aten.sum.dim_IntList(%rows, [0])";
    let long = ROTARY.replace("op %positions f64[8] = aten.arange.default(8, dtype=f64)", sum);
    let lines = "op \"*\": replicate 1 on 1\nop %rows: replicate 1 on 0\nop %positions: replicate 1 on 0
block %rows..%positions\nblock %column..%loss";
    let found = under(&long, 2, lines);
    assert_eq!(found, "0 block 0: \n1 block 1: receives positions, makes cos, makes sin\n");
}

/// Each of its results is there for whoever reads it.
#[test]
fn an_operator_with_several_results_is_computed_with_all_of_them() {
    let (cos, sin) = (
        "op %cos f64[8,16] = aten.cos.default(%cat) in \"rope\" at \"rotary.py:9\"\n",
        "op %sin f64[8,16] = aten.sin.default(%cat) in \"rope\" at \"rotary.py:9\"\n",
    );
    let both = "op %table f64[8,32] = aten.cat.default([%cat, %cat], 1) in \"rope\" at \"rotary.py:9\"
op %cos f64[8,16], %sin f64[8,16] = aten.split.Tensor(%table, 16, 1) in \"rope\" at \"rotary.py:9\"\n";
    let text = ROTARY.replace(cos, both).replace(sin, "");
    let made = "
0 block 0: makes cos, makes sin
1 block 1: receives add_1, makes cos, makes sin";
    check(&text, "stages:2", 2, made);
    // The last two layers read the second one only.
    let text =
        text.replace("%linear_2, %cos", "%linear_2, %sin").replace("%linear_3, %cos", "%linear_3, %sin");
    check(&text, "stages:2", 2, made);
}

/// Then it may be there already, and no message be saved.
#[test]
fn what_a_device_with_both_blocks_makes_is_received_by_the_others() {
    let found = under(
        ROTARY,
        4,
        "use \"stages:2 x data:2\"\nop %cos: replicate 2 on 1 2\nop %sin: replicate 2 on 1 2",
    );
    assert!(found.contains("3 block 1: receives add_1, receives cos, receives sin"), "{found}");
}

#[test]
fn what_devices_have_parts_of_is_received() {
    let found = under(ROTARY, 4, "use \"stages:2 x data:2\"\nop %cos: split a 2\nop %sin: split a 2");
    assert!(found.contains("receives cos") && found.contains("receives sin"), "{found}");
}
