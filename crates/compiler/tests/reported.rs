//! What a proof tells besides: the memory, the communication and the work of each rank, turn by turn, under plans of
//! all kinds. `reported.txt` holds it; `UPDATE=1` writes it.

use std::collections::BTreeMap;
use std::fmt::Write;

use check::{Folding, InstrCost, Masters, Memory, Proof, Purpose, RankTrace};
use graph::{Dtype, Graph, Source};
use plan::sets;
use program::{Boundary, Inputs, Output, Program};
use rules::Analysis;

const MLP: &str = "tests/python/golden/mlp";
const ALIKE: &str = "crates/compiler/tests/alike";
const ATTENTION: &str = "crates/reference/tests/graphs/attention";
const EXPERTS: &str = "crates/reference/tests/graphs/experts";
const TWICE: &str = "crates/search/tests/graphs/twice";
const IMAGES: &str = "crates/reference/tests/graphs/images";

/// A model, a plan and how many devices.
const PROGRAMS: &[(&str, &str, u32)] = &[
    (MLP, "data", 2),
    (ATTENTION, "data:2 x megatron:2", 4),
    (ATTENTION, "sequence", 2),
    (ATTENTION, "zigzag", 2),
    (ATTENTION, "ulysses", 2),
    (IMAGES, "image", 2),
    (IMAGES, "data x recompute", 2),
    (MLP, "coshard:2", 1),
    (EXPERTS, "expert", 2),
    (EXPERTS, "expert:2 x data:2", 4),
    (ALIKE, "data:6 x megatron:2", 12),
    (MLP, "zero1", 2),
    (ATTENTION, "zero2", 2),
    (MLP, "zero3 x whole-updates", 2),
    (ATTENTION, "data:2 x zero3:2 x recompute", 4),
    (ATTENTION, "megatron:2 x recompute:selective", 2),
    (ATTENTION, "data x offload:activations", 2),
    (MLP, "data x offload:state", 2),
    (MLP, "data x offload:parameters", 2),
    (ATTENTION, "zero3:2 x offload", 2),
    (MLP, "stages:2 x data:2", 4),
    (ALIKE, "stages:3 x gpipe", 3),
    (MLP, "stages:2 x 1f1b x zero1:2", 4),
    (ATTENTION, "stages:2 x zero3:2 x zb-h1 x recompute", 4),
    (MLP, "stages:2 x zb-v", 2),
    (ATTENTION, "stages:2 x interleaved:2", 2),
    (MLP, "stages:2 x bidirectional", 2),
    (ALIKE, "stages:2 x interlaced", 2),
    (TWICE, "stages:2 x kf1b:2", 2),
    (ATTENTION, "stages:2 x tokens:2", 2),
    (ALIKE, "stages:2 x 2bw", 2),
    (MLP, "stages:2 x data:2 x 2bw", 4),
];

/// Micro-batches of the steps that are told of.
const BATCHES: u32 = 3;

fn graph(model: &str, plan: &str) -> Graph {
    let file = format!("{}/../../{model}.graph", env!("CARGO_MANIFEST_DIR"));
    let mut graph: Graph = std::fs::read_to_string(file).expect("a graph").parse().expect("it parses");
    for tensor in &mut graph.tensors {
        if let Source::Input { grad, .. } = &mut tensor.source {
            *grad = tensor.dtype.is_float() && !plan.contains("stages");
        }
    }
    graph
}

fn compiled(graph: &Graph, plan: &str, devices: u32) -> diag::Result<Program> {
    let first = |number: usize| if number == 0 { Output::Whole } else { Output::None };
    let outputs = (0..graph.outputs.len()).map(first).collect();
    let analysis = Analysis::new(graph);
    let plan = sets::named(plan, graph, &analysis, devices)?;
    let boundary = Boundary { inputs: Inputs::Global, outputs };
    Ok(compiler::compile(graph, &analysis, &plan, &boundary)?.program)
}

/// Every second parameter is held in a wider type than it is read in.
fn masters(graph: &Graph) -> Masters {
    let names = graph.tensors.iter().filter_map(|tensor| match &tensor.source {
        Source::Param { names, .. } => Some(names[0].clone()),
        _ => None,
    });
    names.step_by(2).map(|name| (name, Dtype::F64)).collect()
}

fn by_purpose(bytes: &[u64; Purpose::COUNT]) -> String {
    let some = Purpose::ALL.iter().zip(bytes).filter(|(_, bytes)| **bytes > 0);
    some.map(|(purpose, bytes)| format!("{} {bytes}", purpose.name())).collect::<Vec<_>>().join(", ")
}

fn memory(text: &mut String, memory: &Memory) {
    let at = memory.at.as_ref().map_or_else(|| "never".into(), ToString::to_string);
    let lines = [
        format!("peak {}: {at}", by_purpose(&memory.peak)),
        format!("most {}; on the host {}", by_purpose(&memory.most), memory.offloaded),
        format!("end {}", by_purpose(&memory.end)),
        format!("trained {:?} {:?} {:?}", memory.trained, memory.trained_from_host, memory.trained_on_host),
    ];
    lines.iter().for_each(|line| writeln!(text, "  {line}").expect("a string"));
}

/// What all instructions take, and a number for what each of them does.
fn instr_costs(text: &mut String, rank_trace: &RankTrace) {
    let sum = |of: &dyn Fn(&InstrCost) -> u64| rank_trace.instr_costs.iter().map(of).sum::<u64>();
    writeln!(
        text,
        "  {} instructions: {} operations, {} bytes, {} moved, {} sent, {} to or from the host, {} added, {} there; {:x}",
        rank_trace.instr_costs.len(),
        sum(&|instr_cost| instr_cost.work.iter().map(|work| work.operations).sum()),
        sum(&|instr_cost| instr_cost.work.iter().map(|work| work.bytes).sum()),
        sum(&|instr_cost| instr_cost.moved),
        rank_trace.sent.values().flat_map(|sent| sent.iter()).map(|(_, bytes)| bytes).sum::<u64>(),
        sum(&|instr_cost| instr_cost.to_host),
        sum(&|instr_cost| instr_cost.added),
        sum(&|instr_cost| instr_cost.added_on_host),
        fingerprint(&format!("{:?} {:?}", rank_trace.instr_costs, rank_trace.sent)),
    )
    .expect("a string");
    let turn =
        |turn: &check::Phase| format!("{} {}.{}: {}", turn.pass.name(), turn.block, turn.batch, turn.most);
    let iterations: Vec<String> = rank_trace.held.iter().map(turn).collect();
    writeln!(text, "  turns {}", iterations.join(", ")).expect("a string");
}

/// FNV-1a: the same wherever it is computed.
fn fingerprint(text: &str) -> u64 {
    text.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |all, byte| (all ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// A paragraph for ranks of which the same is told.
fn told(proof: &Proof, rank_traces: &[RankTrace]) -> String {
    let mut symmetric: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (rank, (had, traffic)) in proof.memory.iter().zip(&proof.traffic).enumerate() {
        let mut text = String::new();
        memory(&mut text, had);
        for ((pass, kind), issued) in traffic {
            writeln!(text, "  {kind} in {pass}: {issued:?}").expect("a string");
        }
        let computed = proof.computed[rank];
        writeln!(text, "  computes {}, of it again {}", computed.all, computed.recomputed).expect("a string");
        let rank_trace = rank_traces.iter().find(|rank_trace| rank_trace.rank.0 as usize == rank);
        rank_trace.into_iter().for_each(|rank_trace| instr_costs(&mut text, rank_trace));
        symmetric.entry(text).or_default().push(rank);
    }
    let mut all: Vec<(Vec<usize>, String)> =
        symmetric.into_iter().map(|(text, ranks)| (ranks, text)).collect();
    all.sort();
    all.into_iter().map(|(ranks, text)| format!("ranks {ranks:?}\n{text}")).collect()
}

#[test]
fn what_a_proof_tells_of_each_rank_is_what_it_was() {
    let (mut report, mut missing) = (String::new(), vec![]);
    for (number, (model, plan, devices)) in PROGRAMS.iter().enumerate() {
        let graph = graph(model, plan);
        let program = match compiled(&graph, plan, *devices) {
            Ok(program) => program,
            Err(error) => {
                missing.push(format!("{model}, {plan}: {error}"));
                continue;
            }
        };
        let masters = if number % 3 == 2 { masters(&graph) } else { Masters::new() };
        let folding = Folding { least: 5, ..Folding::LONG };
        let (proof, rank_traces) = check::courses_over(&graph, &program, &masters, folding, BATCHES)
            .expect("what is compiled is right");
        let model = model.rsplit('/').next().unwrap_or_default();
        let held = if masters.is_empty() { "" } else { ", half of it held wider" };
        write!(
            report,
            "== {model}, {plan} on {devices}{held}\n{} operators, {} local ones, folded: {:?}; {:?}\n{}",
            proof.operators,
            proof.local_operators,
            proof.folded,
            proof.communications,
            told(&proof, &rank_traces)
        )
        .expect("a string");
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/reported.txt");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(path, &report).expect("it is written");
    }
    let expected = std::fs::read_to_string(path).unwrap_or_default();
    let differs = report.lines().zip(expected.lines()).find(|(found, expected)| found != expected);
    assert!(report == expected, "run with UPDATE=1 to accept: found and expected are {differs:?}");
}
