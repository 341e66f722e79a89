//! What each rank runs in one step, or in several that follow each other.

use graph::Source;
use program::{Pass, Program, RankId, Role, Task};

use crate::machine::{Machine, Trouble};
use crate::sources::When;
use crate::state::{Does, Job, Rank};

/// So many steps are run where they follow each other without a pause.
pub const STEPS: u32 = 3;

/// How many steps a program is run for.
pub fn steps(program: &Program) -> u32 {
    if goes_on(program) { STEPS } else { 1 }
}

fn goes_on(program: &Program) -> bool {
    program.roles.iter().any(|role| role.body.timetable.goes_on())
}

/// Where steps go on they must be as long as that.
pub fn least_batches(program: &Program) -> u32 {
    let tables = program.roles.iter().map(|role| &role.body.timetable);
    tables.filter(|it| it.goes_on()).map(|it| it.behind() + 1).max().unwrap_or(1)
}

/// All ranks, before the first step.
pub fn ranks<'a>(machine: &Machine<'a>, batches: u32) -> Result<Vec<Rank<'a>>, Trouble> {
    let program = machine.program;
    (0..program.world as usize)
        .map(|number| {
            let Some((role, at)) = program.role_of(RankId::new(number)) else {
                return Err(Trouble::fault(format!("rank {number} has no role")));
            };
            let mut shards = vec![];
            for shard in &role.table.shards {
                let tensor = machine.graph.tensor(shard.tensor);
                let value = machine.sources.value(tensor, When { step: 0, batch: 0 });
                shards.push(machine.part(&value, shard.tensor.index(), shard.region.get(at))?);
            }
            Ok(Rank {
                number,
                role,
                at,
                copies: vec![None; role.table.copies.len()],
                shards,
                gradients: Default::default(),
                runs: Default::default(),
                jobs: jobs(role, batches, goes_on(program)),
                job: 0,
                instr: 0,
                bufs: Default::default(),
                in_flight: None,
                waits: false,
                met: Default::default(),
                outputs: Default::default(),
                of_inputs: Default::default(),
            })
        })
        .collect()
}

fn jobs(role: &Role, batches: u32, goes_on: bool) -> Vec<Job> {
    let table = &role.body.timetable;
    let mut jobs = vec![];
    if !goes_on {
        jobs.extend(once(role, Pass::Begin, 0, table.begins));
        jobs.extend(table.tasks(batches).filter_map(|(task, batch)| job(role, task, 0, 0, batch, batches)));
        jobs.extend(once(role, Pass::End, 0, table.ends));
        jobs.push(event(Does::Finish, 0));
        return jobs;
    }
    for step in 0..=STEPS {
        let last = step == STEPS;
        if !last {
            jobs.extend(once(role, Pass::Begin, step, table.begins));
        }
        let runs = table.no_flush(step, batches, last);
        jobs.extend(runs.iter().filter_map(|run| job(role, run.task, step, run.of, run.batch, batches)));
        if step > 0 {
            jobs.extend(once(role, Pass::End, step - 1, table.ends));
            jobs.push(event(Does::Finish, step - 1));
        }
        jobs.push(event(Does::Change, step + 1));
    }
    jobs
}

fn event(does: Does, step: u32) -> Job {
    Job { code: 0, when: When { step, batch: 0 }, step, settles: true, scaled: 0, does }
}

fn once(role: &Role, pass: Pass, step: u32, runs: bool) -> Option<Job> {
    let code = role.body.codes.iter().position(|code| code.pass == pass).filter(|_| runs)?;
    Some(Job { code, does: Does::Code, ..event(Does::Code, step) })
}

fn job(role: &Role, task: &Task, step: u32, batch_step: u32, batch: u32, batches: u32) -> Option<Job> {
    let code = role.body.position(task.block, task.pass())?;
    let scaled = match task.does {
        program::Does::Backward { scaled, .. } | program::Does::Inputs { scaled } => scaled,
        _ => 0,
    };
    let settles = task.settles().is(batch, batches);
    Some(Job { code, when: When { step: batch_step, batch }, step, settles, scaled, does: Does::Code })
}

/// Whether a shard is of a parameter that is trained.
pub fn is_trained(machine: &Machine<'_>, tensor: graph::TensorId) -> bool {
    let tensor = machine.graph.tensor(tensor);
    matches!(tensor.source, Source::Param { .. }) && tensor.wants_grad()
}
