//! Steps that follow each other without a pause: which parameters each micro-batch is computed with, and which gradients
//! each update takes.
//!
//! Before each step but the first an optimizer may have written new values, with the gradients that the step before has left;
//! so step `t` finds version `t` of the parameters. It is proved that, of so few micro-batches as the runtime lets
//! through and of more,
//! - all micro-batches of a step read its version, forward and backward; a backward in the step after reads it from what the
//!   rank has kept of it, which is there for one step;
//! - of each step all gradients have arisen, and were communicated after the last, when the next step ends, which gives them to the
//!   optimizer; and none after that.
//!
//! Three steps are followed, and the end after them. All others are as the second: what a step does depends on the one
//! before it only.

use std::collections::BTreeMap;

use graph::{Graph, TensorId};
use program::{CodeKey, Instr, Pass, Program, Role, Run, Timetable};

use crate::fault::Fault;

const STEPS: u32 = 3;

/// The first thing that is wrong, if steps of the program go on.
pub(crate) fn versions(graph: &Graph, program: &Program) -> Option<Fault> {
    let timetables = || program.roles.iter().map(|role| &role.body.timetable);
    if !timetables().any(Timetable::goes_on) {
        return None;
    }
    let blocks = program.roles.iter().flat_map(|role| &role.body.codes).map(|code| code.block + 1).max();
    let busy = program.roles.iter().filter(|role| !role.body.codes.is_empty());
    { busy }.find_map(|role| {
        of_role(graph, program, role, blocks.unwrap_or(1)).map(|fault| fault.at(role.ranks[0], None))
    })
}

fn of_role(graph: &Graph, program: &Program, role: &Role, blocks: u32) -> Option<Fault> {
    let timetable = &role.body.timetable;
    let one = matches!(&timetable.loops[..], [it] if it.every == 1 && it.iterations.is_none());
    if !timetable.goes_on() {
        return Some(wrong("some ranks run steps without a pipeline flush, and others with one"));
    }
    if !one || timetable.begins {
        return Some(wrong("a step without a pipeline flush is not one loop over its micro-batches"));
    }
    if !role.table.copies.is_empty() || !program.held_on_host.is_empty() {
        return Some(wrong("parameters are gathered, but only their newest version exists"));
    }
    if let Some(tensor) = written_by_forward(graph, role) {
        let name = &graph.tensor(tensor).name;
        return Some(wrong(format!("%{name} is written by forwards, and no older version of it is kept")));
    }
    (blocks..blocks + STEPS).find_map(|batches| Followed::new(role, batches).all().err())
}

/// A parameter of which each forward makes a version.
fn written_by_forward(graph: &Graph, role: &Role) -> Option<TensorId> {
    let instrs = role.body.codes.iter().flat_map(|code| &code.instrs);
    let updates = instrs.filter(|instr| matches!(instr, Instr::Update { .. })).flat_map(Instr::shards);
    let written = updates.filter_map(|shard| role.table.shards.get(*shard)).map(|shard| shard.tensor);
    { written }.find(|tensor| graph.is_parameter(*tensor))
}

fn wrong(what: impl Into<String>) -> Fault {
    Fault::new("SW0531", what)
}

/// A rank, in steps of so many micro-batches.
struct Followed<'r> {
    role: &'r Role,
    batches: u32,
    /// The step of which a version is kept.
    kept: Option<u32>,
    /// Of each step and code, how often it has run, and whether gradients were communicated in it the last time.
    has_run: BTreeMap<(u32, CodeKey), (u32, bool)>,
}

impl<'r> Followed<'r> {
    fn new(role: &'r Role, batches: u32) -> Self {
        Self { role, batches, kept: None, has_run: BTreeMap::new() }
    }

    fn all(mut self) -> Result<(), Fault> {
        let timetable = &self.role.body.timetable;
        for step in 0..=STEPS {
            for run in timetable.no_flush(step, self.batches, step == STEPS) {
                self.run(step, &run)?;
            }
            if let Some(before) = step.checked_sub(1) {
                self.takes(before)?;
            }
            self.kept = timetable.stashes().then_some(step);
        }
        Ok(())
    }

    fn run(&mut self, step: u32, run: &Run<'_>) -> Result<(), Fault> {
        // The first update has no gradients; it may be thought of as one that changes nothing.
        let version = if run.of == step || run.task.pass() == Pass::Forward { Some(step) } else { self.kept };
        if version != Some(run.of) {
            let what = "a micro-batch is computed with the parameters of another step";
            let version = version.unwrap_or(step);
            return Err(wrong(what).why(format!(
                "{} of a micro-batch of step {} runs in step {step}, and reads version {version}",
                self.named(run),
                run.of
            )));
        }
        let key = (run.of, run.task.code());
        let (count, settled) = self.has_run.entry(key).or_default();
        (*count, *settled) = (*count + 1, run.task.settles().is(run.batch, self.batches));
        Ok(())
    }

    /// The optimizer gets the gradients of a step.
    fn takes(&mut self, step: u32) -> Result<(), Fault> {
        for code in self.role.body.codes_of_batches() {
            let runs = self.has_run.remove(&(step, code.key()));
            if runs.is_none_or(|(count, settled)| count != self.batches || code.pass.settles() && !settled) {
                let what =
                    "gradients are not complete at the end of the next step, when the optimizer gets them";
                let (count, batches) = (runs.map_or(0, |(count, _)| count), self.batches);
                let pass = code.pass.name();
                return Err(
                    wrong(what).why(format!("{count} of {batches} micro-batches have run {pass} by then"))
                );
            }
        }
        Ok(())
    }

    fn named(&self, run: &Run<'_>) -> String {
        let pass = run.task.pass().name();
        if run.task.block == 0 { pass.into() } else { format!("{pass}_{}", run.task.block) }
    }
}
