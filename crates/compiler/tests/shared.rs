//! A parameter that several stages read: its gradients are summed in each stage, and go to the other stage once.

use graph::Graph;
use program::{Instr, Pass, Program};

use crate::planted::{found, made};

/// The first and the last layer are one parameter.
const TIED: &str = "shardwright-graph 1\nmodel \"Tied\"\nin_spec \"\"\nout_spec \"\"\nmodule \"\" \"Tied\"\n\
    module \"h.0\" \"Layer\"\nmodule \"h.1\" \"Layer\"\n\
    input %x f32[8,16] 0\nparam %w f32[16,16] \"w\"\nparam %u f32[16,16] \"u\"\n\
    op %a f32[8,16] = aten.mm.default(%x, %w) in \"h.0\" at \"m.py:1\"\n\
    op %b f32[8,16] = aten.tanh.default(%a) in \"h.0\" at \"m.py:2\"\n\
    op %c f32[8,16] = aten.mm.default(%b, %u) in \"h.1\" at \"m.py:3\"\n\
    op %d f32[8,16] = aten.tanh.default(%c) in \"h.1\" at \"m.py:4\"\n\
    op %e f32[8,16] = aten.mm.default(%d, %w) in \"h.1\" at \"m.py:5\"\n\
    op %s f32[] = aten.sum.default(%e) in \"\" at \"m.py:6\"\noutput %s\n";

fn tied(plan: &str, devices: u32) -> (Graph, Program) {
    let graph: Graph = TIED.parse().expect("it parses");
    let program = made(&graph, plan, devices);
    (graph, program)
}

/// What each role does with gradients once the last micro-batch is over.
fn at_the_end(program: &Program) -> Vec<Vec<&'static str>> {
    let ends = program.roles.iter().map(|role| role.body.codes.iter().filter(|code| code.pass == Pass::End));
    ends.map(|codes| codes.flat_map(|code| &code.instrs).map(|instr| instr.kind().name()).collect()).collect()
}

#[test]
fn copies_of_a_stage_sum_before_they_send() {
    let (_, program) = tied("stages:2 x data:4", 8);
    for role in at_the_end(&program) {
        let exchanges: Vec<usize> = (0..role.len()).filter(|at| role[*at] == "exchange_gradients").collect();
        assert_eq!(exchanges.len(), 2, "{role:?}");
        assert!(role.contains(&"reduce_gradients"), "{role:?}");
    }
    // A rank of the other stage gets it from one, and not from all.
    let gradients = program.exchanges.iter().filter(|it| it.targets.len() == 8);
    let mut exchanges = 0;
    for exchange in gradients {
        for to in 0..exchange.targets.len() {
            assert_eq!(exchange.pieces.iter().filter(|piece| piece.to == to).count(), 1);
        }
        exchanges += 1;
    }
    assert_eq!(exchanges, 2);
}

#[test]
fn without_copies_there_is_nothing_to_sum() {
    let (_, program) = tied("stages:2", 2);
    assert!(at_the_end(&program).iter().flatten().all(|name| *name != "reduce_gradients"));
}

fn is_sum(instr: &Instr) -> bool {
    matches!(instr, Instr::ReduceGradients { .. })
}

/// Every role of which the sums are spoilt is refused.
fn refused(codes: &[&str], spoil: impl Fn(&mut Vec<Instr>, usize)) {
    let (graph, right) = tied("stages:2 x data:4", 8);
    assert_eq!(found(&graph, &right), [] as [&str; 0]);
    let mut planted = 0;
    for role in 0..right.roles.len() {
        let mut wrong = right.clone();
        for code in wrong.roles[role].body.codes.iter_mut().filter(|code| code.pass == Pass::End) {
            if let Some(at) = code.instrs.iter().position(is_sum) {
                spoil(&mut code.instrs, at);
                planted += 1;
            }
        }
        let found = found(&graph, &wrong);
        assert!(wrong.roles == right.roles || found.iter().any(|code| codes.contains(code)), "{found:?}");
    }
    assert_eq!(planted, 2);
}

#[test]
fn a_sum_that_is_left_out_is_found() {
    refused(&["SW0511"], |instrs, at| drop(instrs.remove(at)));
}

#[test]
fn a_sum_that_is_made_twice_is_found() {
    refused(&["SW0508", "SW0510"], |instrs, at| instrs.insert(at, instrs[at].clone()));
}

#[test]
fn a_sum_after_it_was_sent_is_found() {
    refused(&["SW0508", "SW0510", "SW0511"], |instrs, at| {
        let sum = instrs.remove(at);
        instrs.push(sum);
    });
}
