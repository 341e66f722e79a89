//! What is told of a rank's memory: small programs, of which the bytes are counted by hand. Words besides the numbers
//! say of what: `most working 768` is the most at any time, `end` what is left, `peak` all together.

mod calls;
mod halves;
mod messages;
mod steps;

use std::collections::BTreeMap;

use check::{Folding, Masters, Memory, Purpose};
use graph::{Dtype, Graph};
use program::*;

use crate::support::{graph, program};

fn told(model: &Graph, made: &Program, masters: &Masters) -> Vec<Memory> {
    match check::check_held(model, made, masters) {
        Ok(proof) => proof.memory,
        Err(faults) => {
            let all: Vec<String> = faults.iter().map(ToString::to_string).collect();
            panic!("not proved:\n{}", all.join("\n"))
        }
    }
}

/// Of all ranks. What has two backwards of a call has its two halves.
fn of(model: &str, text: &str) -> Vec<Memory> {
    told(&graph(model), &halved(&graph(model), text), &Masters::new())
}

fn halved(model: &Graph, text: &str) -> Program {
    let mut made = program(model, text);
    for code in made.roles.iter_mut().flat_map(|role| &mut role.body.codes) {
        let mut before: BTreeMap<CallId, usize> = BTreeMap::new();
        for at in 0..code.instrs.len() {
            let Instr::Grad(grad) = &mut code.instrs[at] else { continue };
            let Some(first) = before.insert(grad.call, at) else { continue };
            grad.which = Which::Weights;
            let Instr::Grad(first) = &mut code.instrs[first] else { unreachable!() };
            first.which = Which::Inputs;
        }
    }
    made
}

/// `most working 768, end gradients 0, peak 1552, host 256`.
fn has(memory: &Memory, expected: &str) {
    let number = |by: &[u64; Purpose::COUNT], name: &str| {
        let purpose = Purpose::ALL.into_iter().find(|purpose| purpose.name() == name);
        by[purpose.expect("a purpose") as usize]
    };
    let found = |clause: &str| match clause.split(' ').collect::<Vec<_>>()[..] {
        ["peak", _] => format!("peak {}", memory.total()),
        ["host", _] => format!("host {}", memory.offloaded),
        ["peak", name, _] => format!("peak {name} {}", number(&memory.peak, name)),
        ["most", name, _] => format!("most {name} {}", number(&memory.most, name)),
        ["end", name, _] => format!("end {name} {}", number(&memory.end, name)),
        _ => panic!("{clause}"),
    };
    let all: Vec<String> = expected.split(", ").map(found).collect();
    assert_eq!(all.join(", "), expected, "{memory:?}");
}

fn over(model: &Graph, made: &Program, batches: u32) -> Memory {
    let folding = Folding::LONG;
    check::courses_folding(model, made, &Masters::new(), folding, batches)
        .expect("it is right")
        .0
        .memory
        .remove(0)
}

const ONE: &str = "input %x f64[4,8] 0
param %w f64[8,8] \"w\"
op %h f64[4,8] = aten.linear.default(%x, %w) in \"a\" at \"m.py:1\"
op %s f64[] = aten.sum.default(%h) in \"\" at \"m.py:2\"
output %s
";

const HEADS: &str = "input %x f64[4,8] 0
param %w f64[6,8] \"w\"
op %h f64[4,6] = aten.linear.default(%x, %w) in \"a\" at \"m.py:1\"
op %r f64[4,3,2] = aten.view.default(%h, [4, 3, 2]) in \"a\" at \"m.py:2\"
op %s f64[] = aten.sum.default(%r) in \"\" at \"m.py:3\"
output %s
";

const AGAIN: &str = "input %x f64[4,8] 0
param %w f64[8] \"w\"
param %v f64[8,8] \"v\"
op %y f64[4,8] = aten.mul.Tensor(%x, %w) in \"\" at \"m.py:1\"
op %e f64[4,8] = aten.exp.default(%y) in \"\" at \"m.py:2\"
op %z f64[4,8] = aten.linear.default(%e, %v) in \"b\" at \"m.py:3\"
op %s f64[] = aten.sum.default(%z) in \"\" at \"m.py:4\"
output %s
";

const GIVEN_AGAIN: &str = "ranks 0
shard w %w :
shard v %v :,:
input x %x :,:
keep 0 x
recompute 0 x, w -> y : y = aten.mul.Tensor(x, w)
forget 1 y, v -> s : e = aten.exp.default(y) ; z = aten.linear.default(e, v) ; s = aten.sum.default(z)
output s
seed ds
take 0 -> x2
call 2 x2, w -> y2 : y2 = aten.mul.Tensor(x2, w)
grad 1 ds -> dy : y2
grad 2 dy ->
";
