//! The backward of a call in two halves: gradients of values, which others wait for, and those of parameters, which can
//! be later. They become two codes, or the second half runs beside the message that follows the first.

use std::collections::HashMap;

use program::{Body, BufId, CallId, Code, Grad, Instr, Pass, Which};

/// `learns` says of a leaf whether it needs a gradient.
pub(super) fn split(body: &mut Body, learns: impl Fn(&BufId) -> bool) {
    let waiting = waiting(body, learns);
    let codes = std::mem::take(&mut body.codes);
    body.codes = codes.into_iter().flat_map(|code| split_backward(code, &waiting)).collect();
    body.codes.sort_by_key(Code::place);
}

fn split_backward(code: Code, waiting: &HashMap<CallId, bool>) -> Vec<Code> {
    if code.pass != Pass::Backward {
        return vec![code];
    }
    let (mut first, mut second) = (vec![], vec![]);
    for instr in code.instrs {
        match instr {
            Instr::Grad(grad) if waiting[&grad.call] => {
                second.push(Instr::Grad(weights(grad.call)));
                first.push(Instr::Grad(Grad { which: Which::Inputs, ..grad }));
            }
            instr if is_of_leaves(&instr) => second.push(instr),
            instr => first.push(instr),
        }
    }
    vec![
        Code { pass: Pass::Inputs, instrs: first, ..code },
        Code { instrs: second, ..Code::new(code.block, Pass::Weights) },
    ]
}

/// Where a large message follows a backward, that has two halves, and the second runs beside the message.
pub(super) fn overlap(body: &mut Body, learns: impl Fn(&BufId) -> bool) {
    let waiting = waiting(body, learns);
    for code in &mut body.codes {
        let mut instrs: Vec<Instr> = Vec::with_capacity(code.instrs.len());
        for mut instr in std::mem::take(&mut code.instrs) {
            let second = match &mut instr {
                Instr::Collective(message) if message.overlaps => {
                    let halved = first_half(&mut instrs, &waiting);
                    message.overlaps = halved.is_some();
                    halved
                }
                _ => None,
            };
            instrs.push(instr);
            instrs.extend(second.map(|call| Instr::Grad(weights(call))));
        }
        code.instrs = instrs;
    }
}

/// Leaves of the backward before a message the first half, and says whose it was.
fn first_half(instrs: &mut [Instr], waiting: &HashMap<CallId, bool>) -> Option<CallId> {
    let is_local =
        |instr: &&mut Instr| matches!(instr, Instr::Add { .. } | Instr::Slice(_) | Instr::Fetch { .. });
    match instrs.iter_mut().rev().find(|instr| !is_local(instr))? {
        Instr::Grad(grad) if grad.which == Which::Both && waiting[&grad.call] => {
            grad.which = Which::Inputs;
            Some(grad.call)
        }
        _ => None,
    }
}

/// Of each call whether it reads what learns.
fn waiting(body: &Body, learns: impl Fn(&BufId) -> bool) -> HashMap<CallId, bool> {
    body.calls().map(|call| (call.id, call.inputs.iter().any(&learns))).collect()
}

fn weights(call: CallId) -> Grad {
    Grad { call, which: Which::Weights, from: vec![], to: vec![], recomputed: vec![] }
}

/// Whether it is about gradients that leaves and shards have.
fn is_of_leaves(instr: &Instr) -> bool {
    !instr.leaves().is_empty() || matches!(instr, Instr::ReduceShards { .. })
}
