//! What a program's files say of rewritings: the model's own graph is enough to read and prove them, and an edit
//! of the list is found.

use std::sync::OnceLock;

use emit::File;
use graph::Graph;
use plan::sets;
use program::Inputs;
use rules::Analysis;

/// A model with three batch norms, a softmax and a loss, and the files of a program for two ranks.
fn made() -> &'static (Graph, Vec<File>) {
    static MADE: OnceLock<(Graph, Vec<File>)> = OnceLock::new();
    MADE.get_or_init(|| {
        let text = std::fs::read_to_string("../../tests/python/golden/resnet.graph").expect("a golden graph");
        let graph: Graph = text.parse().expect("it parses");
        let analysis = Analysis::new(&graph);
        let plan = sets::named("data:2", &graph, &analysis, 2).expect("a plan");
        let boundary = lower::loss(&graph, Inputs::Global);
        let made = compiler::compile(&graph, &analysis, &plan, &boundary);
        let made = made.unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(made.program.digest, graph.digest());
        assert_eq!(made.proof, compiler::verify(&graph, &made.files).expect("it is proved again"));
        (graph, made.files)
    })
}

/// The lines of the list, without the commas between them.
fn listed() -> Vec<String> {
    let text = &made().1.last().expect("the tables").text;
    let (_, rest) = text.split_once("\"rewritings\": [\n").expect("something is rewritten");
    let (list, _) = rest.split_once("\n  ],").expect("the list ends");
    list.lines().map(|line| line.trim().trim_end_matches(',').to_owned()).collect()
}

/// The code with which the program is refused that lists these.
fn refused(lines: &[String]) -> &'static str {
    let (graph, files) = made();
    let mut files = files.clone();
    let text = &mut files.last_mut().expect("the tables").text;
    let (head, rest) = text.split_once("\"rewritings\": [").expect("the list");
    let (_, tail) = rest.split_once("\n  ],").expect("the list ends");
    *text = format!("{head}\"rewritings\": [{}\n  ],{tail}", lines.join(","));
    compiler::verify(graph, &files).expect_err("it is refused").code
}

fn line(op: &str, dims: &str) -> String {
    format!("{{\"op\": {op}, \"dims\": {dims}}}")
}

#[test]
fn a_list_as_it_was_is_proved() {
    let (graph, files) = made();
    let lines = listed();
    assert!(lines.len() > 2, "{lines:?}");
    let proof = compiler::verify(graph, files).expect("it is proved");
    assert!(!proof.rewritings.is_empty());
}

#[test]
fn a_list_that_lacks_one_is_refused() {
    for left_out in 0..listed().len() {
        let mut lines = listed();
        lines.remove(left_out);
        let code = refused(&lines);
        assert!(["SW0501", "SW0504", "SW0602", "SW0607"].contains(&code), "{left_out}: {code}");
    }
}

#[test]
fn a_list_with_one_twice_or_out_of_place_is_refused() {
    let lines = listed();
    let mut twice = lines.clone();
    twice.insert(0, lines[0].clone());
    assert_eq!(refused(&twice), "SW0522");
    let mut turned = lines;
    turned.swap(0, 1);
    assert_eq!(refused(&turned), "SW0522");
}

#[test]
fn a_list_of_what_cannot_be_rewritten_is_refused() {
    let with = |changed: &str| {
        let mut lines = listed();
        lines[0] = changed.to_owned();
        refused(&lines)
    };
    assert_eq!(with(&line("0", "[\"b\"]")), "SW0521");
    assert_eq!(with(&line("4000000000", "[\"a\"]")), "SW0520");
    let first = listed()[0].clone();
    let op = first.split(['{', ':', ',']).nth(2).expect("an operator").trim();
    assert_eq!(with(&line(op, "[]")), "SW0522");
    assert_eq!(with(&line(op, "[\"b\"]")), "SW0521");
    assert_eq!(with(&line(op, "[\"a\", \"a\"]")), "SW0522");
    assert_eq!(with(&line(op, "\"a\"")), "SW0602");
    assert_eq!(with(&line("-1", "[\"a\"]")), "SW0602");
    assert_eq!(with(&format!("{{\"op\": {op}}}")), "SW0602");
    assert_eq!(with("17"), "SW0602");
}
