//! What later blocks compute once more instead of being sent it, and what they are sent all the same.

use std::fmt::Write;

use graph::Graph;
use lower::{loss, lower};
use plan::{Plan, sets};
use program::{Code, Instr, Pass, Program};
use rules::Analysis;

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
                let made = call
                    .ops
                    .iter()
                    .filter(|op| ["aten.cos.default", "aten.sin.default"].contains(&&op.target[..]));
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

#[test]
fn what_depends_on_more_than_constants_is_received() {
    let buffer = r#"buffer %b_rates f64[8] "rope.rates" transient"#;
    let update = "output %loss\nupdate \"rope.rates\" %angles_row";
    let row =
        "op %angles_row f64[8] = aten.mul.Tensor(%b_rates, 0.5) in \"rope\" at \"rotary.py:9\"\nop %linear_0";
    for text in [
        ROTARY.replace(buffer, r#"param %b_rates f64[8] "rope.rates" frozen"#),
        ROTARY.replace(buffer, "input %b_rates f64[8] 2"),
        ROTARY.replace("op %linear_0", row).replace("output %loss", update),
        ROTARY.replace("aten.arange.default(8, dtype=f64)", "aten.rand.default([8], dtype=f64)"),
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
    check(&long, "stages:2", 2, "0 block 0: \n1 block 1: receives positions, makes cos, makes sin");
}

#[test]
fn what_devices_have_parts_of_is_received() {
    let split = |graph: &Graph, analysis: &Analysis| {
        let text = "shardwright-plan 1\ndevices 4\nuse \"stages:2 x data:2\"\nop %cos: split a 2\nop %sin: split a 2";
        plan::text::parse(text, graph, analysis, None).expect("a plan")
    };
    let found = found(&lowered(ROTARY, split));
    assert!(found.contains("receives cos") && found.contains("receives sin"), "{found}");
}
