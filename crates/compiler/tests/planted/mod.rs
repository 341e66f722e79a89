//! Pipelines, spoilt.

use graph::Graph;
use plan::sets;
use program::{PerRank, Program};
use rules::Analysis;

pub fn graph() -> Graph {
    include_str!("../alike.graph").parse().expect("it parses")
}

pub fn made(graph: &Graph, plan: &str, devices: u32) -> Program {
    let analysis = Analysis::new(graph);
    let plan = sets::named(plan, graph, &analysis, devices).expect("a plan");
    let boundary = lower::loss(graph, program::Inputs::Global);
    compiler::compile(graph, &analysis, &plan, &boundary).expect("it compiles").program
}

/// The codes of the faults that are found.
pub fn found(graph: &Graph, program: &Program) -> Vec<&'static str> {
    match check::check(graph, program) {
        Ok(_) => vec![],
        Err(faults) => faults.into_iter().map(|fault| fault.code).collect(),
    }
}

/// Every way to spoil a program that is in `spoil`, role by role: each must be refused with one of these codes.
pub fn refused_of(plans: &[(&str, u32)], codes: &[&str], spoil: impl Fn(&mut Program, usize) -> bool) {
    let graph = graph();
    let mut planted = 0;
    for &(plan, devices) in plans {
        let right = made(&graph, plan, devices);
        assert_eq!(found(&graph, &right), [] as [&str; 0], "{plan}");
        for role in 0..right.roles.len() {
            let mut wrong = right.clone();
            if !spoil(&mut wrong, role) {
                continue;
            }
            planted += 1;
            let found = found(&graph, &wrong);
            assert!(found.iter().any(|code| codes.contains(code)), "{plan}, role {role}: {found:?}");
        }
    }
    assert!(planted > plans.len() / 2, "{planted}");
}

/// The last rank of a role in a role of its own.
pub fn apart(program: &mut Program, role: usize) -> usize {
    let mut last = program.roles[role].clone();
    let at = last.ranks.len() - 1;
    last.ranks = vec![program.roles[role].ranks.pop().expect("a rank")];
    let first = program.roles[role].ranks.len();
    assert_eq!(first, 1, "of two");
    for (at, role) in [(0, &mut program.roles[role]), (at, &mut last)] {
        let table = &mut role.table;
        table.constants.iter_mut().for_each(|column| *column = PerRank::Same(*column.get(at)));
        let shards = table.shards.iter_mut().map(|shard| &mut shard.region);
        let leaves = table.leaves.iter_mut().map(|leaf| &mut leaf.1);
        let random = table.random.iter_mut().flat_map(|(_, slots)| slots);
        let ends = table.inputs.iter_mut().chain(table.outputs.iter_mut().flatten());
        let all = shards.chain(leaves).chain(random).chain(ends);
        all.for_each(|column| *column = PerRank::Same(column.get(at).clone()));
    }
    program.roles.push(last);
    program.roles.len() - 1
}
