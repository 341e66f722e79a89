//! A step of any number of micro-batches, from what is proved for one.
//!
//! Everything else here is about one micro-batch whose backward communicates gradients. A step is
//! that many times the same, and gradients are linear in what backward starts from; so with the scale s they
//! add up to those of s times the sum of all losses, if
//! - each micro-batch runs each code once, backward after forward, whose values it reads;
//! - each backward starts from the scale, once;
//! - gradients are communicated when all contributions have arrived, and by all ranks in the same micro-batch.
//!   In the others all of a group leave the same meeting out, so whoever is waited for still comes.

use program::{Body, Instr, Kind, Pass, Role, Task, When};

use crate::fault::{Fault, Place};

/// What is wrong with the timetable of a role, if anything.
pub(crate) fn timetable(index: usize, role: &Role) -> Vec<Fault> {
    let body = &role.body;
    let mut found = vec![];
    found.extend(turns(body));
    for task in &body.timetable.each {
        if let Task::Backward { scaled, settles } = *task {
            found.extend(scale(scaled));
            found.extend(settled(settles));
        }
    }
    let mut found: Vec<Fault> = found.into_iter().map(|fault| fault.at(role.ranks[0], None)).collect();
    found.extend(early(index, role));
    found
}

/// Each code once, in the order of passes.
fn turns(body: &Body) -> Option<Fault> {
    let names =
        |passes: &mut dyn Iterator<Item = Pass>| passes.map(Pass::name).collect::<Vec<_>>().join(", ");
    let begins = body.timetable.begins.then_some(Pass::Begin);
    let expected = names(&mut body.codes.iter().map(|code| code.pass));
    let found = names(&mut begins.into_iter().chain(body.timetable.each.iter().map(Task::pass)));
    (expected != found).then(|| {
        let what = "the timetable does not run each code of a micro-batch once, backward after forward";
        Fault::new("SW0517", what).why(format!("expected {expected}, found {}", or_nothing(&found)))
    })
}

fn scale(scaled: u32) -> Option<Fault> {
    (scaled != 1).then(|| {
        let what = "backward does not start from the scale of the step, once";
        Fault::new("SW0518", what).why(format!("expected one factor, found {scaled}"))
    })
}

fn settled(settles: When) -> Option<Fault> {
    let found = match settles {
        When::Last => return None,
        When::Never => "in none",
        When::Each => "in each, so that what earlier ones left counts again",
        When::First => "in the first, before those of the others have arrived",
    };
    let what = "gradients are not communicated in the last micro-batch of a step";
    Some(Fault::new("SW0519", what).why(format!("expected in the last, found {found}")))
}

/// Nothing is settled before backward.
fn early(index: usize, role: &Role) -> Option<Fault> {
    let forward = role.body.code(Pass::Forward)?;
    let at = forward.instrs.iter().position(Instr::settles)?;
    let kind: Kind = forward.instrs[at].kind();
    let place = Place { role: index, pass: Pass::Forward, index: at, op: None };
    let what = format!("{} stands in forward, where there are no gradients yet", kind.name());
    Some(Fault::new("SW0519", what).at(role.ranks[0], Some(place)))
}

fn or_nothing(text: &str) -> &str {
    if text.is_empty() { "nothing" } else { text }
}
