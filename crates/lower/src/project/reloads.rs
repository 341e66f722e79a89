//! What forward sent to the host comes back: each call's from when the backward of the one before it begins that came from
//! there, too. So there is as much time for it as lies between, and no more than the next one is here before its time.

use std::collections::HashSet;

use program::{Body, Call, CallId, Code, Instr, Offloaded, Pass, Saves, Which};

pub(super) fn fetch(body: &mut Body) {
    keep_what_has_no_backward(body);
    let sent: HashSet<Offloaded> = body.instrs().filter_map(sent).collect();
    if sent.is_empty() {
        return;
    }
    for code in body.codes.iter_mut().filter(|code| code.pass.gives_back()) {
        fetched(code, &sent);
    }
}

fn fetched(code: &mut Code, sent: &HashSet<Offloaded>) {
    let mut before: Vec<Vec<Instr>> = code.instrs.iter().map(|_| vec![]).collect();
    let (mut posted, mut comes) = (0, false);
    for (at, instr) in code.instrs.iter().enumerate() {
        if let Some(what) = needed(instr).filter(|what| sent.contains(what)) {
            before[posted].push(Instr::Fetch { what });
            comes = true;
        }
        if comes && matches!(instr, Instr::Grad(_)) {
            (posted, comes) = (at, false);
        }
    }
    let both = before.into_iter().zip(std::mem::take(&mut code.instrs));
    code.instrs = both.flat_map(|(before, instr)| before.into_iter().chain([instr])).collect();
}

fn keep_what_has_no_backward(body: &mut Body) {
    let graded = |instr: &Instr| if let Instr::Grad(grad) = instr { Some(grad.call) } else { None };
    let graded: HashSet<CallId> = body.instrs().filter_map(graded).collect();
    let forwards = body.codes.iter_mut().filter(|code| code.pass == Pass::Forward);
    for instr in forwards.flat_map(|code| &mut code.instrs) {
        if let Instr::Call(Call { id, saves: Saves::Made { offloaded } | Saves::All { offloaded }, .. }) =
            instr
        {
            *offloaded &= graded.contains(id);
        }
    }
}

fn sent(instr: &Instr) -> Option<Offloaded> {
    match instr {
        Instr::Call(call) => call.saves.is_offloaded().then_some(Offloaded::Call(call.id)),
        Instr::Keep { id, offloads, .. } => offloads.then_some(Offloaded::Kept(*id)),
        _ => None,
    }
}

/// What must be back for it.
fn needed(instr: &Instr) -> Option<Offloaded> {
    match instr {
        Instr::Grad(grad) if grad.which != Which::Weights => Some(Offloaded::Call(grad.call)),
        Instr::Take { id, .. } => Some(Offloaded::Kept(*id)),
        _ => None,
    }
}
