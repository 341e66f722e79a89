//! When names of emitted code are gone: after their last use, in a code and inside of a call.

use program::{Body, BufId, Call, Code, Instr};

/// For each instruction of a role, over all codes, what no later one of its code reads.
pub(super) struct Lives {
    pub(super) done: Vec<Vec<BufId>>,
}

impl Lives {
    pub(super) fn new(body: &Body) -> Self {
        let mut fixed = vec![false; body.bufs.len()];
        body.leaves.iter().for_each(|leaf| fixed[leaf.buf.index()] = true);
        let mut done = vec![];
        for code in &body.codes {
            done.extend(of_code(code, &mut fixed.clone()));
        }
        Self { done }
    }
}

/// `seen` are those that are read later, or never die.
fn of_code(code: &Code, seen: &mut [bool]) -> Vec<Vec<BufId>> {
    code.gives.iter().flatten().for_each(|buf| seen[buf.index()] = true);
    // The caller holds what it gives.
    code.takes.iter().for_each(|buf| seen[buf.index()] = true);
    let mut done: Vec<Vec<BufId>> = vec![vec![]; code.instrs.len()];
    for (at, instr) in code.instrs.iter().enumerate().rev() {
        // A message that runs beside the next instruction reads until that is over.
        let ends = at + usize::from(overlaps(instr) && at + 1 < done.len());
        done[ends].extend(fresh(instr.reads().chain(instr.writes()), seen));
    }
    done
}

fn overlaps(instr: &Instr) -> bool {
    matches!(instr, Instr::Collective(message) if message.overlaps)
}

/// For each operator of a call what no later one reads; the caller holds inputs, and results leave.
pub(super) fn inside(call: &Call, seen: &mut [bool]) -> Vec<Vec<BufId>> {
    let outer = || call.inputs.iter().chain(&call.outputs);
    outer().for_each(|buf| seen[buf.index()] = true);
    let mut done: Vec<Vec<BufId>> = (call.ops.iter().rev())
        .map(|op| fresh(op.inputs().chain(op.outputs.iter().flatten().copied()), seen))
        .collect();
    done.reverse();
    outer().for_each(|buf| seen[buf.index()] = false);
    done.iter().flatten().for_each(|buf| seen[buf.index()] = false);
    done
}

fn fresh(bufs: impl Iterator<Item = BufId>, seen: &mut [bool]) -> Vec<BufId> {
    bufs.filter(|buf| !std::mem::replace(&mut seen[buf.index()], true)).collect()
}
