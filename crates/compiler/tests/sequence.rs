//! Faults planted into programs whose sequence is divided: queries that are taken for others, keys that are missing.

use graph::Graph;
use program::{Arg, Instr, LocalOp, PerRank, Program};

use crate::planted::{found, made};

const PLANS: &[(&str, u32)] = &[
    ("sequence", 2),
    ("sequence", 3),
    ("zigzag", 2),
    ("data:2 x sequence:2", 4),
    ("sequence:2 x megatron:2", 4),
    ("sequence:2 x recompute", 2),
];
const PLACED: &str = "sw.causal_attention";
const START: usize = 5;

fn gpt() -> Graph {
    include_str!("../../../tests/python/golden/gpt.graph").parse().expect("it parses")
}

fn attention(program: &mut Program) -> impl Iterator<Item = &mut LocalOp> {
    let codes = program.roles.iter_mut().flat_map(|role| &mut role.body.codes);
    let calls = codes.flat_map(|code| &mut code.instrs);
    let calls = calls.filter_map(|instr| if let Instr::Call(call) = instr { Some(call) } else { None });
    calls.flat_map(|call| &mut call.ops).filter(|op| op.target == PLACED)
}

/// Each way to spoil the first attention of a program, which must be refused.
fn refused(spoil: impl Fn(&mut LocalOp)) {
    let graph = gpt();
    for (plan, devices) in PLANS {
        let mut program = made(&graph, plan, *devices);
        assert_eq!(found(&graph, &program), [] as [&str; 0], "{plan}");
        let mut op = None;
        for own in attention(&mut program) {
            if *op.get_or_insert(own.op) == own.op {
                spoil(own);
            }
        }
        assert!(op.is_some(), "{plan} has no attention of a part");
        let found = found(&graph, &program);
        assert!(found.contains(&"SW0504"), "{plan}: {found:?}");
    }
}

#[test]
fn queries_at_another_place_are_found() {
    for place in [0, 1, 5, -1] {
        refused(|op| op.args[START] = Arg::Int(place));
    }
}

#[test]
fn places_of_which_one_rank_has_another_are_found() {
    let graph = gpt();
    let mut planted = 0;
    for (plan, devices) in PLANS {
        let right = made(&graph, plan, *devices);
        for role in 0..right.roles.len() {
            let mut places = vec![];
            for op in attention(&mut right.clone()) {
                if let Arg::Hole(hole) = op.args[START] {
                    places.push(hole);
                }
            }
            for hole in places {
                let mut wrong = right.clone();
                let ranks = wrong.roles[role].ranks.len();
                let column = &mut wrong.roles[role].table.constants[hole as usize];
                let moved = (0..ranks).map(|at| column.get(at) + i64::from(at + 1 == ranks)).collect();
                *column = PerRank::from_values(moved);
                assert!(found(&graph, &wrong).contains(&"SW0504"), "{plan}");
                planted += 1;
            }
        }
    }
    assert!(planted >= PLANS.len(), "{planted}");
}

#[test]
fn attention_that_forgets_where_its_queries_are_is_found() {
    refused(|op| {
        op.target = "aten.scaled_dot_product_attention.default".into();
        let rest = [Arg::None, Arg::Float(0.0), Arg::Bool(true)];
        op.args.truncate(3);
        op.args.extend(rest);
    });
}

#[test]
fn keys_in_the_place_of_values_are_found() {
    refused(|op| op.args.swap(1, 2));
}
