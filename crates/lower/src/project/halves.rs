//! A backward becomes two codes: one in which gradients of values arise, which others wait for, and one for gradients
//! of parameters, which can be later.

use std::collections::HashMap;

use program::{Body, BufId, Call, CallId, Code, Grad, Instr, Pass, Which};

/// `learns` says of a leaf whether it needs a gradient.
pub(super) fn split(body: &mut Body, learns: impl Fn(&BufId) -> bool) {
    let reads = |call: &Call| call.inputs.iter().any(&learns);
    let waiting: HashMap<CallId, bool> = body.calls().map(|call| (call.id, reads(call))).collect();
    let codes = std::mem::take(&mut body.codes);
    body.codes = codes.into_iter().flat_map(|code| halves(code, &waiting)).collect();
    body.codes.sort_by_key(Code::place);
}

fn halves(code: Code, waiting: &HashMap<CallId, bool>) -> Vec<Code> {
    if code.pass != Pass::Backward {
        return vec![code];
    }
    let (mut first, mut second) = (vec![], vec![]);
    for instr in code.instrs {
        match instr {
            Instr::Grad(grad) if waiting[&grad.call] => {
                second.push(Instr::Grad(Grad {
                    call: grad.call,
                    which: Which::Weights,
                    from: vec![],
                    to: vec![],
                    again: vec![],
                }));
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

/// Whether it is about gradients that leaves and shards have.
fn is_of_leaves(instr: &Instr) -> bool {
    !instr.leaves().is_empty() || matches!(instr, Instr::ReduceShards { .. })
}
