//! What is sent to the host: it comes back before it is needed, all of it and once.

use std::collections::BTreeMap;

use program::{Body, Instr, Offloaded, Pass, Which};

use crate::copies::Wrong;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Where {
    Host,
    /// Brought back, and not yet read.
    Back,
}

/// Forward sends, and backward brings back. What is there of a call is that call's, so what comes back is what
/// was sent, and nothing but its backward reads it; of values, nothing but what takes them.
pub(crate) fn in_time(body: &Body) -> Option<Wrong> {
    let mut sent: BTreeMap<Offloaded, (Where, usize)> = BTreeMap::new();
    for (at, instr) in body.instrs().enumerate() {
        let pass = body.pass_at(at);
        let wrong = match instr {
            Instr::Call(call) if call.saves.is_offloaded() => {
                send(&mut sent, Offloaded::Call(call.id), at, pass)
            }
            Instr::Keep { id, offloads: true, .. } => send(&mut sent, Offloaded::Kept(*id), at, pass),
            Instr::Fetch { what } => match sent.get_mut(what) {
                _ if !pass.gives_back() => Some("stands outside backward".into()),
                Some((place @ Where::Host, _)) => {
                    *place = Where::Back;
                    None
                }
                Some(_) => Some(format!("brings {} back a second time", named(*what))),
                None => Some(format!("brings {} back, which is not offloaded", named(*what))),
            },
            Instr::Grad(grad) if grad.which != Which::Weights => read(&mut sent, Offloaded::Call(grad.call)),
            Instr::Take { id, .. } => read(&mut sent, Offloaded::Kept(*id)),
            _ => None,
        };
        if let Some(wrong) = wrong {
            return Some((at, format!("{} {wrong}", instr.kind().name())));
        }
    }
    let (what, (place, at)) = sent.into_iter().next()?;
    let missing = if place == Where::Host { "brought back" } else { "read after it is brought back" };
    Some((at, format!("{} is offloaded, but not {missing}", named(what))))
}

fn send(
    sent: &mut BTreeMap<Offloaded, (Where, usize)>,
    what: Offloaded,
    at: usize,
    pass: Pass,
) -> Option<String> {
    sent.insert(what, (Where::Host, at));
    (pass != Pass::Forward).then(|| "offloads something outside forward".into())
}

fn read(sent: &mut BTreeMap<Offloaded, (Where, usize)>, what: Offloaded) -> Option<String> {
    let (place, _) = sent.remove(&what)?;
    (place == Where::Host).then(|| format!("needs {}, which is still offloaded", named(what)))
}

fn named(what: Offloaded) -> String {
    match what {
        Offloaded::Call(call) => format!("what call {} saves", call.0),
        Offloaded::Kept(kept) => format!("what is kept as {}", kept.0),
    }
}
