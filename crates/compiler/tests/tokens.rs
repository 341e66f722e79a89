//! Faults planted into models whose sequence is in slices: slices out of order, keys that are missing, masks that are
//! off, other slices than those that the code has.

use graph::Graph;
use program::{Arg, Body, Instr, LocalOp, Program, Task};
use rules::Slices;

use crate::planted::{found, made};

const PLANS: &[(&str, u32)] = &[
    ("stages:2 x tokens:2", 2),
    ("stages:2 x tokens:4", 2),
    ("stages:2 x tokens:3 x data:2", 4),
    ("stages:2 x tokens:2 x megatron:2 x gpipe", 4),
    ("stages:2 x tokens:2 x recompute x zb-h1", 2),
];

fn gpt() -> Graph {
    include_str!("../../../tests/python/golden/gpt.graph").parse().expect("it parses")
}

/// Each way to spoil a program, which must be refused with one of these codes.
fn refused(codes: &[&str], spoil: impl Fn(&mut Program) -> bool) {
    let graph = gpt();
    for (plan, devices) in PLANS {
        let mut program = made(&graph, plan, *devices);
        assert_eq!(found(&graph, &program), [] as [&str; 0], "{plan}");
        assert!(spoil(&mut program), "{plan} has nothing to spoil");
        let found = found(&graph, &program);
        assert!(found.iter().any(|code| codes.contains(code)), "{plan}: {found:?}");
    }
}

/// The first operator of all that fits, in every code that has it: with recomputation there are two.
fn every(
    program: &mut Program,
    fits: impl Fn(&LocalOp) -> bool,
    mut spoil: impl FnMut(&mut LocalOp),
) -> bool {
    let mut op = None;
    for body in program.roles.iter_mut().map(|role| &mut role.body) {
        for own in local(body).filter(|own| fits(own)) {
            if *op.get_or_insert(own.op) == own.op {
                spoil(own);
            }
        }
    }
    op.is_some()
}

fn local(body: &mut Body) -> impl Iterator<Item = &mut LocalOp> {
    let instrs = body.codes.iter_mut().flat_map(|code| &mut code.instrs);
    let calls = instrs.filter_map(|instr| if let Instr::Call(call) = instr { Some(call) } else { None });
    calls.flat_map(|call| &mut call.ops)
}

fn joins(op: &LocalOp) -> bool {
    op.target == "aten.cat.default"
}

/// Keys and values up to a slice, one of which is given twice or not at all.
fn joined(op: &mut LocalOp) -> &mut Vec<Arg> {
    match &mut op.args[0] {
        Arg::List(parts) => parts,
        other => panic!("{other:?} is no list"),
    }
}

/// Swaps two tasks of the timetable of every role that has both.
fn swapped(program: &mut Program, first: impl Fn(&Task) -> bool, then: impl Fn(&Task) -> bool) -> bool {
    let mut any = false;
    for it in program.roles.iter_mut().flat_map(|role| &mut role.body.timetable.loops) {
        let at = (it.tasks.iter().position(&first), it.tasks.iter().position(&then));
        if let (Some(a), Some(b)) = at {
            // Where they stand, and not for which micro-batch.
            it.tasks.swap(a, b);
            any = true;
        }
    }
    any
}

#[test]
fn a_slice_that_runs_before_an_earlier_one_is_found() {
    let forward =
        |block: u32| move |task: &Task| (task.block, task.pass()) == (block, program::Pass::Forward);
    refused(&["SW0517"], |program| swapped(program, forward(0), forward(1)));
    let passes = [program::Pass::Backward, program::Pass::Inputs];
    let back = |block: u32| move |task: &Task| task.block == block && passes.contains(&task.pass());
    refused(&["SW0517"], |program| swapped(program, back(0), back(1)));
}

#[test]
fn a_slice_that_is_sent_in_the_place_of_another_is_found() {
    refused(&["SW0502", "SW0503", "SW0504", "SW0505", "SW0506", "SW0507", "SW0517"], |program| {
        let sends =
            program.roles[0].body.codes.iter_mut().flat_map(|code| &mut code.instrs).filter_map(|instr| {
                if let Instr::Send { exchange, .. } = instr { Some(exchange) } else { None }
            });
        let mut sends: Vec<_> = sends.collect();
        let (first, then) = (*sends[0], *sends[1]);
        (*sends[0], *sends[1]) = (then, first);
        first != then
    });
}

#[test]
fn keys_of_slices_out_of_order_are_found() {
    refused(&["SW0504"], |program| every(program, joins, |op| joined(op).reverse()));
}

#[test]
fn keys_of_an_earlier_slice_that_are_missing_are_found() {
    refused(&["SW0504"], |program| {
        every(program, joins, |op| {
            let last = joined(op).last().cloned().expect("two");
            joined(op)[0] = last;
        })
    });
    refused(&["SW0502", "SW0503", "SW0504", "SW0505"], |program| {
        every(program, joins, |op| joined(op).truncate(1))
    });
}

#[test]
fn a_mask_that_is_off_by_one_is_found() {
    for by in [-1, 1] {
        refused(&["SW0504"], |program| {
            every(
                program,
                |op| op.target == "aten.tril.default",
                |op| {
                    let Arg::Int(offset) = &mut op.args[1] else { panic!("{op:?}") };
                    *offset += by;
                },
            )
        });
    }
}

#[test]
fn a_slice_that_attends_without_its_mask_is_found() {
    let masked =
        |op: &LocalOp| op.target.contains("attention") && op.args.len() > 3 && op.args[3] != Arg::None;
    refused(&["SW0504"], |program| every(program, masked, |op| op.args[3] = Arg::None));
    // A mask that `is_causal` makes has its corner at the first key.
    refused(&["SW0504"], |program| {
        every(program, masked, |op| (op.args[3], op.args[5]) = (Arg::None, Arg::Bool(true)))
    });
}

#[test]
fn other_tokens_than_those_of_the_slice_are_found() {
    refused(&["SW0502", "SW0504"], |program| {
        every(
            program,
            |op| op.target == "aten.slice.Tensor",
            |op| {
                for at in [2, 3] {
                    let Arg::Int(place) = &mut op.args[at] else { panic!("{op:?}") };
                    *place += 1;
                }
            },
        )
    });
}

#[test]
fn other_slices_than_those_of_the_code_are_found() {
    let graph = gpt();
    for (plan, devices) in PLANS {
        let right = made(&graph, plan, *devices);
        let own = right.slices.clone().expect("it has slices");
        let with = |slices: Option<Slices>| found(&graph, &Program { slices, ..right.clone() });
        assert_eq!(with(Some(own.clone())), [] as [&str; 0], "{plan}");
        let tokens = *own.ends.last().expect("a slice");
        let moved: Vec<i64> =
            own.ends.iter().map(|end| if *end < tokens { end - 1 } else { tokens }).collect();
        for slices in [
            None,
            Some(Slices { ends: moved, ..own.clone() }),
            Some(Slices { ends: vec![tokens], ..own.clone() }),
            Some(Slices { ends: (1..=tokens).collect(), ..own.clone() }),
            Some(Slices { ends: vec![tokens / 2, tokens + 1], ..own.clone() }),
            Some(Slices { input: 9, ..own.clone() }),
            Some(Slices { dim: 0, ends: vec![2, 4], ..own.clone() }),
        ] {
            assert!(!with(slices.clone()).is_empty(), "{plan}: {slices:?}");
        }
        // Another input of the same sequence says the same.
        assert_eq!(with(Some(Slices { input: 1, ..own })), [] as [&str; 0], "{plan}");
    }
}
