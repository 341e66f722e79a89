//! Faults planted into the timetable of a program that is right: what makes a step of several micro-batches
//! another one than the sum of theirs.

mod support;

use program::{Instr, Pass};
use support::{faults, graph, program, proof};

const MLP: &str = include_str!("programs/mlp.graph");
const DATA: &str = include_str!("programs/data.txt");
const MEGATRON: &str = include_str!("programs/megatron.txt");

const USUAL: &str = "task forward\ntask backward 1 last\n";

fn refused(name: &str, tasks: &str, code: &str) {
    for text in [DATA, MEGATRON] {
        let found = faults(&graph(MLP), &format!("{text}\n{tasks}"));
        let codes: Vec<&str> = found.iter().map(|fault| fault.code).collect();
        assert_eq!(codes, [code], "{name}");
    }
}

#[test]
fn the_usual_one_is_proved() {
    assert!(proof(&graph(MLP), &format!("{DATA}\n{USUAL}")).backward);
}

#[test]
fn a_scale_that_is_missing_or_doubled_is_found() {
    refused("missing", "task forward\ntask backward 0 last", "SW0518");
    refused("doubled", "task forward\ntask backward 2 last", "SW0518");
}

#[test]
fn gradients_that_are_communicated_at_another_time_are_found() {
    for when in ["never", "each", "first"] {
        refused(when, &format!("task forward\ntask backward 1 {when}"), "SW0519");
    }
}

#[test]
fn every_task_runs_once_and_in_order() {
    refused("no backward", "task forward", "SW0517");
    refused("no forward", "task backward 1 last", "SW0517");
    refused("backward first", "task backward 1 last\ntask forward", "SW0517");
    refused("forward twice", &format!("task forward\n{USUAL}"), "SW0517");
    refused("backward twice", &format!("{USUAL}task backward 1 last"), "SW0517");
}

#[test]
fn gradients_are_not_communicated_in_forward() {
    let mut program = program(&graph(MLP), DATA);
    for role in &mut program.roles {
        let backward = role.body.code_mut(0, Pass::Backward);
        let at = backward.instrs.iter().position(Instr::settles).unwrap();
        let moved: Instr = backward.instrs.remove(at);
        role.body.code_mut(0, Pass::Forward).instrs.push(moved);
    }
    let found = check::check(&graph(MLP), &program).unwrap_err();
    assert!(found.iter().any(|fault| fault.code == "SW0519"), "{found:?}");
}
