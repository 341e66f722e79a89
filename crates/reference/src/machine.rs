//! All ranks together: each runs its codes up to where it waits for others, and nobody may wait for ever.

use std::collections::HashMap;

use graph::Graph;
use program::{GroupingId, Instr, Pass, Program, RankId};

use crate::ops::{Env, Stop};
use crate::sources::{Sources, When};
use crate::state::{Does, Job, MicroBatchState, Rank};
use crate::tape::Value;

/// Why a program does not run to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// What a rank does that PyTorch or the runtime would refuse, and where.
    Fault {
        what: String,
        place: String,
    },
    TooLarge,
    Unknown(String),
}

impl Trouble {
    pub fn fault(what: impl Into<String>) -> Self {
        Self::Fault { what: what.into(), place: String::new() }
    }
}

impl From<Stop> for Trouble {
    fn from(stop: Stop) -> Self {
        match stop {
            Stop::Wrong(what) => Self::fault(what),
            Stop::TooLarge => Self::TooLarge,
            Stop::Unknown(target) => Self::Unknown(target),
        }
    }
}

pub struct Machine<'a> {
    pub graph: &'a Graph,
    pub program: &'a Program,
    pub sources: &'a Sources,
    /// Which tensors of the graph have a gradient.
    pub needs: Vec<bool>,
    pub env: Env<'a>,
    /// What the members of groups have handed over, by group and how often they met.
    pub open: HashMap<(GroupingId, usize, u64), Awaited>,
    /// Pieces on their way, by table, occasion, sender and receiver.
    pub messages: HashMap<(u32, u64, usize, usize), Vec<Value>>,
}

#[derive(Default)]
pub struct Awaited {
    pub what: String,
    pub given: Vec<Option<Vec<Value>>>,
}

/// Whether a rank has come any further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    Ran,
    Waits,
    Done,
}

/// What all members of a group gave, and which of them this one is.
pub type Met = (Vec<Vec<Value>>, usize);

/// What happens when the gradients of a step are whole.
pub type Finished<'f> = &'f mut dyn FnMut(&Rank<'_>, u32, Vec<Value>) -> Result<(), Trouble>;

impl<'a> Machine<'a> {
    /// Runs all jobs of all ranks.
    pub fn run(&mut self, ranks: &mut [Rank<'a>], finished: Finished<'_>) -> Result<(), Trouble> {
        loop {
            let (mut moved, mut done) = (false, true);
            for rank in ranks.iter_mut() {
                loop {
                    let progress = self.next(rank, finished).map_err(|trouble| placed(trouble, rank))?;
                    moved |= progress == Progress::Ran;
                    done &= progress != Progress::Waits;
                    if progress != Progress::Ran {
                        break;
                    }
                }
            }
            if done {
                return Ok(());
            }
            if !moved {
                let waiting = ranks.iter().find(|rank| rank.waits).unwrap_or(&ranks[0]);
                return Err(placed(Trouble::fault("waits for ever"), waiting));
            }
        }
    }

    fn next(&mut self, rank: &mut Rank<'a>, finished: Finished<'_>) -> Result<Progress, Trouble> {
        let Some(job) = rank.jobs.get(rank.job).copied() else { return Ok(Progress::Done) };
        match job.does {
            Does::Code => {}
            Does::Finish => {
                let gradients = self.finished(rank, job.when.step)?;
                finished(rank, job.when.step, gradients)?;
                rank.job += 1;
                return Ok(Progress::Ran);
            }
            Does::Change => {
                self.change(rank, job.when);
                rank.job += 1;
                return Ok(Progress::Ran);
            }
        }
        let code = &rank.role.body.codes[job.code];
        if rank.instr == 0 && !rank.waits {
            self.begin(rank, &job)?;
        }
        let Some(instr) = code.instrs.get(rank.instr) else {
            self.end(rank, &job)?;
            rank.job += 1;
            rank.instr = 0;
            return Ok(Progress::Ran);
        };
        let once = code.pass.is_once();
        if instr.settles() && !job.settles && !once {
            rank.instr += 1;
            return Ok(Progress::Ran);
        }
        if self.execute(rank, &job, instr)? {
            rank.instr += 1;
            rank.waits = false;
            Ok(Progress::Ran)
        } else {
            rank.waits = true;
            Ok(Progress::Waits)
        }
    }

    /// What a code is given.
    fn begin(&mut self, rank: &mut Rank<'a>, job: &Job) -> Result<(), Trouble> {
        rank.bufs.clear();
        let code = &rank.role.body.codes[job.code];
        let shards = rank.shards.clone();
        let run: &mut MicroBatchState = rank.runs.entry(job.when).or_default();
        match code.pass {
            Pass::Forward => {
                run.seen.insert(code.block, shards);
                let forwards = rank.role.body.codes_of(Pass::Forward);
                let before: usize =
                    forwards.take_while(|other| other.block != code.block).map(|it| it.takes.len()).sum();
                for (at, buf) in code.takes.iter().enumerate() {
                    let number = before + at;
                    let tensor = rank.role.body.inputs.get(number).copied();
                    let region = rank.role.table.inputs.get(number).map(|column| column.get(rank.at));
                    let (Some(tensor), Some(region)) = (tensor, region) else {
                        return Err(Trouble::fault("takes an input that is in no table"));
                    };
                    let value = self.sources.value(self.graph.tensor(tensor), job.when);
                    rank.bufs.insert(*buf, self.part(&value, tensor.index(), region)?);
                }
            }
            Pass::Backward | Pass::Inputs => {
                let seeds = self.seeds(rank, code.block);
                if seeds.len() != code.takes.len() {
                    return Err(Trouble::fault(format!(
                        "takes {} gradients of {}",
                        code.takes.len(),
                        seeds.len()
                    )));
                }
                let scale = self.sources.scale(job.when.step).power(u64::from(job.scaled));
                for (number, buf) in seeds.into_iter().zip(&code.takes) {
                    let Some(tensor) = self.graph.outputs[number] else { continue };
                    let seed = self
                        .sources
                        .seed(number, self.graph.tensor(tensor), job.when)
                        .map(|x| x.times(scale));
                    let Some(region) = rank.table().output(number) else { continue };
                    let region = region.clone();
                    rank.bufs.insert(*buf, self.part(&seed, tensor.index(), &region)?);
                }
            }
            Pass::Weights | Pass::Begin | Pass::End => {}
        }
        Ok(())
    }

    /// The outputs that leave a block and need a gradient.
    fn seeds(&self, rank: &Rank<'a>, block: u32) -> Vec<usize> {
        let Some(forward) = rank.role.body.code(block, Pass::Forward) else { return vec![] };
        let seeded = |(number, given): (usize, &Option<program::BufId>)| {
            let needs =
                self.graph.outputs.get(number).copied().flatten().is_some_and(|id| self.needs[id.index()]);
            let leaves = rank.role.table.outputs.get(number).is_some_and(Option::is_some);
            (given.is_some() && needs && leaves).then_some(number)
        };
        forward.gives.iter().enumerate().filter_map(seeded).collect()
    }

    /// What a code gives.
    fn end(&mut self, rank: &mut Rank<'a>, job: &Job) -> Result<(), Trouble> {
        let body = &rank.role.body;
        let code = &body.codes[job.code];
        let before: usize = match code.pass {
            Pass::Backward | Pass::Inputs => {
                body.back().take_while(|other| other.block != code.block).map(|other| other.gives.len()).sum()
            }
            _ => 0,
        };
        for (at, buf) in code.gives.iter().enumerate() {
            let Some(buf) = buf else { continue };
            let value = self.read(rank, *buf, job)?;
            match code.pass {
                Pass::Forward => rank.outputs.insert((job.when, at), value),
                _ => rank.of_inputs.insert((job.when, before + at), value),
            };
        }
        rank.bufs.clear();
        match rank.in_flight {
            None => Ok(()),
            Some(_) => Err(Trouble::fault("begins a message that nobody waits for")),
        }
    }

    pub fn part(&self, value: &Value, tensor: usize, region: &rules::Region) -> Result<Value, Trouble> {
        let factors = &self.program.factors[tensor];
        crate::regions::cut(value, &crate::regions::whole(&factors.concat()), region, factors)
            .ok_or_else(|| Trouble::fault("a region that is not in its tensor"))
    }

    /// Optimizers write all parameters.
    fn change(&mut self, rank: &mut Rank<'a>, when: When) {
        for (at, shard) in rank.role.table.shards.iter().enumerate() {
            let tensor = self.graph.tensor(shard.tensor);
            if matches!(tensor.source, graph::Source::Param { .. }) {
                let value = self.sources.value(tensor, when);
                if let Ok(part) = self.part(&value, shard.tensor.index(), shard.region.get(rank.at)) {
                    rank.shards[at] = part;
                }
            }
        }
    }

    /// The members of a rank's group.
    pub fn group(
        &self,
        grouping: GroupingId,
        rank: &Rank<'_>,
    ) -> Result<(usize, &'a [RankId], usize), Trouble> {
        let program = self.program;
        let groups = program.groupings.get(grouping.index()).into_iter().flatten().enumerate();
        for (number, group) in groups {
            if let Some(place) = group.iter().position(|other| other.index() == rank.number) {
                return Ok((number, group, place));
            }
        }
        Err(Trouble::fault("communicates in a group that it is not in"))
    }

    /// Hands over what a rank gives, and, once all have come, gets what all gave. What they do must be the same.
    pub fn meet(
        &mut self,
        rank: &mut Rank<'a>,
        grouping: GroupingId,
        what: &str,
        give: impl FnOnce(&mut Self, &mut Rank<'a>) -> Result<Vec<Value>, Trouble>,
    ) -> Result<Option<Met>, Trouble> {
        let (number, group, place) = self.group(grouping, rank)?;
        let name = format!("{}", grouping.0);
        let key = (grouping, number, rank.met.get(&name).copied().unwrap_or(0));
        if !rank.waits {
            let given = give(self, rank)?;
            let rendezvous = self.open.entry(key).or_default();
            if rendezvous.given.is_empty() {
                rendezvous.given = vec![None; group.len()];
                what.clone_into(&mut rendezvous.what);
            }
            if rendezvous.what != what {
                return Err(Trouble::fault(format!(
                    "does {what} where another one does {}",
                    rendezvous.what
                )));
            }
            rendezvous.given[place] = Some(given);
        }
        let Some(rendezvous) = self.open.get(&key) else { return Ok(None) };
        let all: Option<Vec<Vec<Value>>> = rendezvous.given.iter().cloned().collect();
        let Some(all) = all else { return Ok(None) };
        *rank.met.entry(name).or_default() += 1;
        let equal = all.iter().all(|given| given.len() == all[0].len());
        if equal {
            Ok(Some((all, place)))
        } else {
            Err(Trouble::fault("gives another number of values than others"))
        }
    }
}

/// Where that is.
fn placed(trouble: Trouble, rank: &Rank<'_>) -> Trouble {
    let Trouble::Fault { what, place } = trouble else { return trouble };
    if !place.is_empty() {
        return Trouble::Fault { what, place };
    }
    let place = match rank.jobs.get(rank.job) {
        Some(job) if job.does == Does::Code => {
            let code = &rank.role.body.codes[job.code];
            let instr = code.instrs.get(rank.instr).map_or("end", |instr: &Instr| instr.kind().name());
            let pass = code.pass.name();
            format!(
                "rank {}, {pass} of block {}, instruction {} ({instr}), micro-batch {}",
                rank.number, code.block, rank.instr, job.when.batch
            )
        }
        _ => format!("rank {}, at the end of a step", rank.number),
    };
    Trouble::Fault { what, place }
}
