//! A step of any number of micro-batches, from what is proved for one.
//!
//! Everything else here is about one micro-batch whose backward communicates gradients. A step is
//! that many times the same, and gradients are linear in what backward starts from; so with the scale s they
//! add up to those of s times the sum of all losses, if
//! - each micro-batch runs each code once, forward before backward, whose values it reads;
//! - each backward starts from the scale, once;
//! - gradients are communicated when all contributions have arrived: in the last micro-batch, which is the last
//!   one for which their block runs backward.
//!
//! A loop says the same of every turn. So all of this is seen from its tasks, for steps of any number of
//! micro-batches. Loops that have only so many turns stand before the others and take something out of them: each code
//! has its task for each micro-batch in the others, and of those that may have run before, each is looked at. What
//! runs when does not depend on how many micro-batches follow. That ranks come to their ends together, whatever the
//! number, is for [`crate::net`].

use std::collections::{BTreeMap, BTreeSet};

use graph::TensorId;
use program::{BufId, Code, CodeKey, Does, Instr, Kind, Loop, Pass, Role, Timetable, When};

use crate::fault::{Fault, Place};
use crate::runs::{Early, Runs};

/// Tasks further than that from the micro-batch that a turn is about are a mistake.
const MOST: u32 = 1 << 10;

/// What is wrong with the timetable of a role, if anything.
pub(crate) fn timetable(index: usize, role: &Role) -> Vec<Fault> {
    let first = once(role).or_else(|| strange(&role.body.timetable)).or_else(|| iterations(role));
    let mut faults: Vec<Fault> = first.into_iter().map(|fault| fault.at(role.ranks[0], None)).collect();
    faults.extend(early(index, role));
    faults
}

/// A number of micro-batches beyond which there are only more of the same turns; none if it is a mistake.
pub(crate) fn enough(timetable: &Timetable) -> Option<u32> {
    let longest = |it: &Loop| {
        let at = it.tasks.iter().map(|task| task.at.unsigned_abs()).max();
        let end = it.every.saturating_mul(it.iterations.unwrap_or(0));
        at.unwrap_or(0).saturating_add(end).max(it.every.saturating_sub(1))
    };
    let longest = timetable.loops.iter().map(longest).max().unwrap_or(0);
    (longest <= MOST).then(|| 2 * longest + 2)
}

fn strange(timetable: &Timetable) -> Option<Fault> {
    let what = if timetable.loops.iter().any(|it| it.every == 0) {
        "a loop of the timetable advances by no micro-batches".into()
    } else if enough(timetable).is_none() {
        format!("the timetable has more than {MOST} micro-batches in flight")
    } else if !timetable.loops.is_sorted_by_key(|it| it.iterations.is_none()) {
        "a loop for the first micro-batches comes after one for all".into()
    } else {
        return None;
    };
    Some(Fault::new("SW0517", what))
}

/// Codes that run once a step.
fn once(role: &Role) -> Option<Fault> {
    let (timetable, there) = (&role.body.timetable, |pass| role.body.codes_of(pass).next().is_some());
    let fits = timetable.begins == there(Pass::Begin) && timetable.ends == there(Pass::End);
    let what = "the timetable lacks what runs once a step, or runs something that does not exist";
    (!fits).then(|| Fault::new("SW0517", what))
}

/// Each code once for each micro-batch, forward before backward.
fn iterations(role: &Role) -> Option<Fault> {
    let (body, mut runs, mut before) = (&role.body, BTreeMap::new(), BTreeMap::new());
    for (number, it) in body.timetable.loops.iter().enumerate() {
        for (at, task) in it.tasks.iter().enumerate() {
            let code = task.code();
            if body.code(code.block, code.pass).is_none() {
                return Some(not_once(code, "it does not exist"));
            }
            if it.iterations.is_some() {
                before.entry(code).or_insert_with(Vec::new).push(Early { number, it, place: at });
                continue;
            }
            let mut early = || before.remove(&code).unwrap_or_default();
            let run = runs.entry(code).or_insert_with(|| Runs { number, it, tasks: vec![], early: early() });
            if run.number != number {
                return Some(not_once(code, "it runs in several loops"));
            }
            run.tasks.push(at);
        }
    }
    if let Some(code) = before.keys().next() {
        return Some(not_once(*code, "no later loop runs it for all micro-batches"));
    }
    let missing = body.codes_of_batches().map(Code::key).find(|code| !runs.contains_key(code));
    let missing = missing.map(|code| not_once(code, "it runs for no micro-batch"));
    let missing = missing.or_else(|| runs.iter().find_map(|(code, run)| of_code(role, *code, run, &runs)));
    let missing = missing
        .or_else(|| body.handed_on().into_iter().find_map(|(first, then)| not_there(first, then, &runs)));
    missing
        .or_else(|| written_by_others(role).into_iter().find_map(|(first, then)| stale(first, then, &runs)))
}

fn of_code(role: &Role, code: CodeKey, run: &Runs<'_>, runs: &BTreeMap<CodeKey, Runs<'_>>) -> Option<Fault> {
    if let Some(why) = run.covers() {
        return Some(not_once(code, why));
    }
    let has = |is: fn(&Instr) -> bool| {
        let code = role.body.code(code.block, code.pass);
        code.is_some_and(|code| code.instrs.iter().any(is))
    };
    let updates = || has(|instr| matches!(instr, Instr::Update { .. }));
    let talks = || has(|instr| matches!(instr, Instr::Send { .. } | Instr::Receive { .. }));
    if updates() && !run.in_order() {
        return Some(not_once(code, "it runs in an order in which buffers would get other values"));
    }
    // Messages of one table come to their receiver as they were sent: NCCL knows them by nothing else.
    if talks() && !run.in_order() {
        return Some(not_once(code, "it does not run in the order of the messages of its block"));
    }
    let before = needs(code.pass).filter(|before| {
        let before = runs.get(&CodeKey { pass: *before, ..code });
        before.is_some_and(|before| !before.is_before(run))
    });
    let early = before.map(|before| format!("it runs for a micro-batch whose {} has not run", before.name()));
    let early = early.map(|why| not_once(code, &why));
    early.or_else(|| scales(run)).or_else(|| settles(run).filter(|_| code.pass.settles()))
}

/// Codes of which one updates a buffer that the other one reads or updates, in the order of a micro-batch.
fn written_by_others(role: &Role) -> BTreeSet<(CodeKey, CodeKey)> {
    let leaf_of: BTreeMap<BufId, TensorId> = role.body.leaves.iter().map(|it| (it.buf, it.tensor)).collect();
    let tensor = |shard: usize| role.table.shards.get(shard).map(|shard| shard.tensor);
    let updates = |code: &Code| -> BTreeSet<TensorId> {
        let updated = code.instrs.iter().filter(|instr| matches!(instr, Instr::Update { .. }));
        updated.flat_map(Instr::shards).filter_map(|shard| tensor(*shard)).collect()
    };
    let touches = |code: &Code, tensors: &BTreeSet<TensorId>| {
        let reads = code.instrs.iter().flat_map(Instr::reads);
        let mut all = reads.filter_map(|buf| leaf_of.get(&buf).copied()).chain(updates(code));
        all.any(|tensor| tensors.contains(&tensor))
    };
    let mut pairs = BTreeSet::new();
    for code in &role.body.codes {
        let updated = updates(code);
        for other in role.body.codes.iter().filter(|other| other.place() != code.place()) {
            if !updated.is_empty() && touches(other, &updated) {
                let (first, then) = if code.place() < other.place() { (code, other) } else { (other, code) };
                pairs.insert((first.key(), then.key()));
            }
        }
    }
    pairs
}

fn stale(first: CodeKey, then: CodeKey, runs: &BTreeMap<CodeKey, Runs<'_>>) -> Option<Fault> {
    let (Some(before), Some(run)) = (runs.get(&first), runs.get(&then)) else { return None };
    let fits = before.is_before(run) && run.is_before_next(before, 1);
    let why = || format!("a buffer does not have the value that {} gives it or reads", named(first));
    (!fits).then(|| not_once(then, &why()))
}

fn not_there(first: CodeKey, then: CodeKey, runs: &BTreeMap<CodeKey, Runs<'_>>) -> Option<Fault> {
    let (Some(before), Some(run)) = (runs.get(&first), runs.get(&then)) else { return None };
    let why = || {
        format!("it runs for a micro-batch whose {}, which keeps something for it, has not run", named(first))
    };
    (!before.is_before(run)).then(|| not_once(then, &why()))
}

/// Which code of its block must have run before, for the same micro-batch.
fn needs(pass: Pass) -> Option<Pass> {
    match pass {
        Pass::Backward | Pass::Inputs => Some(Pass::Forward),
        Pass::Weights => Some(Pass::Inputs),
        Pass::Begin | Pass::Forward | Pass::End => None,
    }
}

fn scales(run: &Runs<'_>) -> Option<Fault> {
    let scaled = |task: &program::Task| match task.does {
        Does::Backward { scaled, .. } | Does::Inputs { scaled } => Some(scaled),
        Does::Forward | Does::Weights { .. } => None,
    };
    run.all_tasks().filter_map(scaled).find(|scaled| *scaled != 1).map(scale)
}

fn settles(run: &Runs<'_>) -> Option<Fault> {
    let wrong = run.all_tasks().map(program::Task::settles).find(|when| *when != When::Last);
    let when = match wrong {
        None if run.in_order() => return None,
        Some(When::Never) => "in none",
        Some(When::Each) => "in several, so that earlier gradients are summed again",
        _ => "before the gradients of the other micro-batches are there",
    };
    let what = "gradients are not communicated in the last micro-batch of a step";
    Some(Fault::new("SW0519", what).why(format!("expected in the last, found {when}")))
}

fn named(code: CodeKey) -> String {
    let name = code.pass.name();
    if code.block == 0 { name.into() } else { format!("{name}_{}", code.block) }
}

fn not_once(code: CodeKey, why: &str) -> Fault {
    let what = "the timetable does not run each function once for a micro-batch, backward after forward";
    Fault::new("SW0517", what).why(format!("`{}`: {why}", named(code)))
}

fn scale(scaled: u32) -> Fault {
    let what = "backward does not start from the scale of the step, applied once";
    Fault::new("SW0518", what).why(format!("expected one factor, found {scaled}"))
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

#[cfg(test)]
mod tests {
    use program::{Loop, Task, Timetable};

    use super::{MOST, enough};

    #[test]
    fn so_many_micro_batches_are_in_flight_and_no_more() {
        let ahead = |at: i32| {
            let loops = vec![Loop::over_all(vec![Task { at, ..Task::forward(0) }])];
            enough(&Timetable { loops, ..Timetable::default() })
        };
        let most = i32::try_from(MOST).expect("it is small");
        assert_eq!((ahead(0), ahead(-1), ahead(most)), (Some(2), Some(4), Some(2 * MOST + 2)));
        assert_eq!((ahead(most + 1), ahead(-most - 1)), (None, None));
        let none = Timetable { loops: vec![Loop::over_all(vec![])], ..Timetable::default() };
        assert_eq!((enough(&none), enough(&Timetable::default())), (Some(2), Some(2)));
    }
}
