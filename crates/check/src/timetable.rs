//! A step of any number of micro-batches, from what is proved for one.
//!
//! Everything else here is about one micro-batch whose backward communicates gradients. A step is
//! that many times the same, and gradients are linear in what backward starts from; so with the scale s they
//! add up to those of s times the sum of all losses, if
//! - each micro-batch runs each code once, forward before backward, whose values it reads;
//! - each backward starts from the scale, once;
//! - gradients are communicated when all contributions have arrived: in the last micro-batch for which their
//!   block runs backward.
//!
//! That is looked at for every number of micro-batches up to one from which on every loop only grows by turns
//! like those before. That ranks come to their ends together, whatever the number, is for [`crate::net`].

use std::collections::BTreeMap;

use program::{Bound, Does, Instr, Kind, Pass, Role, Timetable};

use crate::fault::{Fault, Place};

/// A first or last part of a step that is longer is a mistake.
const MOST: u32 = 1 << 10;

/// What is wrong with the timetable of a role, if anything.
pub(crate) fn timetable(index: usize, role: &Role) -> Vec<Fault> {
    let found = once(role).or_else(|| {
        let most = enough(&role.body.timetable).ok_or_else(too_long);
        most.map_or_else(Some, |most| (1..=most).find_map(|batches| turns(role, batches)))
    });
    let mut found: Vec<Fault> = found.into_iter().map(|fault| fault.at(role.ranks[0], None)).collect();
    found.extend(early(index, role));
    found
}

/// A number of micro-batches beyond which loops only become longer.
pub(crate) fn enough(timetable: &Timetable) -> Option<u32> {
    let bound = |bound: Bound| match bound {
        Bound::First(count) | Bound::Last(count) => count,
    };
    let ahead = |it: &program::Loop| it.tasks.iter().map(|task| task.ahead).max().unwrap_or(0);
    let longest = timetable.loops.iter().map(|it| bound(it.from).max(bound(it.to)).max(ahead(it))).max();
    let longest = longest.unwrap_or(0);
    (longest <= MOST).then_some(2 * longest + 2)
}

fn too_long() -> Fault {
    let what = format!("the timetable treats more than {MOST} micro-batches apart from others");
    Fault::new("SW0517", what)
}

/// Codes that run once a step.
fn once(role: &Role) -> Option<Fault> {
    let (timetable, there) = (&role.body.timetable, |pass| role.body.codes_of(pass).next().is_some());
    let fits = timetable.begins == there(Pass::Begin) && timetable.ends == there(Pass::End);
    let what = "the timetable does not run what there is to run once a step, or runs what there is not";
    (!fits).then(|| Fault::new("SW0517", what))
}

/// Each code once for each micro-batch, forward before backward.
fn turns(role: &Role, batches: u32) -> Option<Fault> {
    let mut runs: BTreeMap<(u32, Pass), Vec<u32>> = BTreeMap::new();
    for code in role.body.codes.iter().filter(|code| !matches!(code.pass, Pass::Begin | Pass::End)) {
        runs.insert((code.block, code.pass), vec![]);
    }
    let mut settled: BTreeMap<u32, Vec<bool>> = BTreeMap::new();
    for (task, batch) in role.body.timetable.tasks(batches) {
        let Some(run) = runs.get_mut(&(task.block, task.pass())) else {
            return Some(not_once(batches, &named(task.block, task.pass()), "which is not there"));
        };
        if run.contains(&batch) || batch >= batches {
            let why = format!("for micro-batch {batch}, which is over or does not come");
            return Some(not_once(batches, &named(task.block, task.pass()), &why));
        }
        run.push(batch);
        if let Some(before) = needs(task.pass()) {
            if runs.get(&(task.block, before)).is_some_and(|before| !before.contains(&batch)) {
                let why = format!("for micro-batch {batch}, whose {} has not run", before.name());
                return Some(not_once(batches, &named(task.block, task.pass()), &why));
            }
        }
        if let Does::Backward { scaled, .. } | Does::Inputs { scaled } = task.does {
            if scaled != 1 {
                return Some(scale(scaled));
            }
        }
        if task.pass().settles() {
            settled.entry(task.block).or_default().push(task.settles().is(batch, batches));
        }
    }
    let short = runs.iter().find(|(_, run)| run.len() != batches as usize);
    if let Some(((block, pass), run)) = short {
        let why = format!("{} times only", run.len());
        return Some(not_once(batches, &named(*block, *pass), &why));
    }
    let updates = |block: u32| {
        let code = role.body.code(block, Pass::Forward);
        code.is_some_and(|code| code.instrs.iter().any(|instr| matches!(instr, Instr::Update { .. })))
    };
    let late = runs
        .iter()
        .find(|((block, pass), run)| *pass == Pass::Forward && updates(*block) && !run.is_sorted());
    if let Some(((block, pass), _)) = late {
        return Some(not_once(
            batches,
            &named(*block, *pass),
            "in another order than that of the buffers' values",
        ));
    }
    settled.values().find_map(|settled| settles_last(settled))
}

/// Which code of its block must have run before, for the same micro-batch.
fn needs(pass: Pass) -> Option<Pass> {
    match pass {
        Pass::Backward | Pass::Inputs => Some(Pass::Forward),
        Pass::Weights => Some(Pass::Inputs),
        Pass::Begin | Pass::Forward | Pass::End => None,
    }
}

fn named(block: u32, pass: Pass) -> String {
    if block == 0 { pass.name().into() } else { format!("{}_{block}", pass.name()) }
}

fn not_once(batches: u32, code: &str, why: &str) -> Fault {
    let what = "the timetable does not run each code of a micro-batch once, backward after forward";
    Fault::new("SW0517", what).why(format!("in a step of {batches} it runs {code} {why}"))
}

fn scale(scaled: u32) -> Fault {
    let what = "backward does not start from the scale of the step, once";
    Fault::new("SW0518", what).why(format!("expected one factor, found {scaled}"))
}

/// Of the micro-batches of a block, in their order, whether gradients are communicated with each.
fn settles_last(settled: &[bool]) -> Option<Fault> {
    let count = settled.iter().filter(|settled| **settled).count();
    let found = match (count, settled.last()) {
        (1, Some(true)) => return None,
        (0, _) => "in none",
        (1, _) => "before those of the others have arrived",
        _ => "in several, so that what earlier ones left counts again",
    };
    let what = "gradients are not communicated in the last micro-batch of a step";
    Some(Fault::new("SW0519", what).why(format!("expected in the last, found {found}")))
}

/// Nothing is settled before gradients of leaves have arisen.
fn early(index: usize, role: &Role) -> Option<Fault> {
    let before = role.body.codes.iter().filter(|code| matches!(code.pass, Pass::Forward | Pass::Inputs));
    before.into_iter().find_map(|code| {
        let at = code.instrs.iter().position(Instr::settles)?;
        let kind: Kind = code.instrs[at].kind();
        let place = Place { role: index, block: code.block, pass: code.pass, index: at, op: None };
        let what =
            format!("{} stands in {}, where there are no gradients yet", kind.name(), code.pass.name());
        Some(Fault::new("SW0519", what).at(role.ranks[0], Some(place)))
    })
}
