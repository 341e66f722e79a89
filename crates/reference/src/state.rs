//! What a rank has: shards, what is gathered, gradients, and of each micro-batch what it keeps.

use std::collections::HashMap;

use graph::Source;
use program::{BufId, CallId, KeepId, Leaf, Of, Own, Role};

use crate::machine::{Machine, Trouble};
use crate::number::Num;
use crate::regions;
use crate::sources::When;
use crate::tape::Value;

pub struct Rank<'a> {
    pub number: usize,
    pub role: &'a Role,
    /// Its position in the role.
    pub at: usize,
    pub shards: Vec<Value>,
    pub copies: Vec<Option<Value>>,
    /// By step, since several may be under way.
    pub gradients: HashMap<u32, Gradients>,
    pub runs: HashMap<When, Run>,
    pub jobs: Vec<Job>,
    pub job: usize,
    pub instr: usize,
    pub bufs: HashMap<BufId, Value>,
    /// What arrives with the second half of a backward.
    pub in_flight: Option<(&'a [BufId], Vec<Value>)>,
    /// Whether it has handed over what its instruction communicates.
    pub waits: bool,
    /// How often it was at each collective, by the collective's name.
    pub met: HashMap<String, u64>,
    pub outputs: HashMap<(When, usize), Value>,
    pub of_inputs: HashMap<(When, usize), Value>,
}

#[derive(Default)]
pub struct Gradients {
    pub leaves: Vec<Option<Value>>,
    pub arrived: Vec<Option<Value>>,
}

/// What is kept of a micro-batch.
#[derive(Default)]
pub struct Run {
    /// The shards as each block's forward saw them.
    pub seen: HashMap<u32, Vec<Value>>,
    pub saved: HashMap<CallId, Saved>,
    /// The gradients of leaves that the second half of a backward gives.
    pub left: HashMap<CallId, Vec<(usize, Value)>>,
    pub kept: HashMap<KeepId, (Vec<Value>, bool)>,
}

pub struct Saved {
    /// `None` for leaves, and for what was forgotten.
    pub inputs: Vec<Option<Value>>,
    pub offloaded: bool,
}

/// A code that runs.
#[derive(Clone, Copy, Debug)]
pub struct Job {
    pub code: usize,
    pub when: When,
    /// The step in which it runs, which may be later than that of its micro-batch.
    pub step: u32,
    pub settles: bool,
    pub scaled: u32,
    pub does: Does,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Does {
    Code,
    /// Gradients of a step go to the shards, and are compared.
    Finish,
    /// Parameters change.
    Change,
}

impl<'a> Rank<'a> {
    pub fn own(&self) -> Own<'a> {
        self.role.own(self.at)
    }

    pub fn gradients(&mut self, step: u32) -> &mut Gradients {
        let (leaves, shards) = (self.role.body.leaves.len(), self.shards.len());
        self.gradients
            .entry(step)
            .or_insert_with(|| Gradients { leaves: vec![None; leaves], arrived: vec![None; shards] })
    }
}

impl<'a> Machine<'a> {
    pub fn leaf_of(&self, role: &'a Role, buf: BufId) -> Option<(usize, &'a Leaf)> {
        role.body.leaves.iter().enumerate().find(|(_, leaf)| leaf.buf == buf)
    }

    /// A leaf as a code reads it.
    pub fn leaf(&self, rank: &Rank<'a>, number: usize, job: &Job) -> Result<Value, Trouble> {
        let (of, region) = rank.own().leaf(number);
        let tensor = rank.role.body.leaves[number].tensor;
        let factors = &self.program.factors[tensor.index()];
        let (value, frame) = match of {
            Of::Shard(shard) => (self.shard(rank, shard, job), rank.own().shard(shard)),
            Of::Copy(copy) => match &rank.copies[copy] {
                Some(value) => (value.clone(), rank.own().copy(copy)),
                None => return Err(Trouble::fault("reads what is not gathered")),
            },
        };
        regions::cut(&value, frame, region, factors)
            .ok_or_else(|| Trouble::fault("reads a leaf that is no part of its shard"))
    }

    /// What a shard is for a micro-batch: of its step where that is kept, or as it has become.
    fn shard(&self, rank: &Rank<'a>, shard: usize, job: &Job) -> Value {
        let block = rank.role.body.codes[job.code].block;
        let seen = rank.runs.get(&job.when).and_then(|run| run.seen.get(&block));
        let is_param =
            matches!(self.graph.tensor(rank.role.table.shards[shard].tensor).source, Source::Param { .. });
        let moved_on = job.step > job.when.step && !rank.role.body.timetable.stashes();
        match seen {
            Some(seen) if !(is_param && moved_on) => seen[shard].clone(),
            _ => rank.shards[shard].clone(),
        }
    }

    /// Adds the gradient of a leaf.
    pub fn accumulate(&self, rank: &mut Rank<'a>, step: u32, leaf: usize, gradient: Value) {
        if !self.graph.tensor(rank.role.body.leaves[leaf].tensor).wants_grad() {
            return;
        }
        let place = &mut rank.gradients(step).leaves[leaf];
        *place = Some(match place.take() {
            Some(before) => before.zip(&gradient, Num::plus),
            None => gradient,
        });
    }

    /// A leaf's gradient, which it gives up; zeros if there is none.
    pub fn gradient_of(&self, rank: &mut Rank<'a>, step: u32, leaf: usize) -> Value {
        let taken = rank.gradients(step).leaves[leaf].take();
        let (_, region) = rank.own().leaf(leaf);
        let tensor = rank.role.body.leaves[leaf].tensor;
        taken.unwrap_or_else(|| Value::zeros(regions::shape(region, &self.program.factors[tensor.index()])))
    }

    pub fn arrives(
        &self,
        rank: &mut Rank<'a>,
        step: u32,
        shard: usize,
        gradient: Value,
    ) -> Result<(), Trouble> {
        if gradient.data.len() != rank.shards[shard].data.len() {
            return Err(Trouble::fault("a gradient that is not as long as its shard"));
        }
        let place = &mut rank.gradients(step).arrived[shard];
        *place = Some(match place.take() {
            Some(before) => before.zip(&gradient, Num::plus),
            None => gradient,
        });
        Ok(())
    }

    /// The gradients of a rank's shards at the end of a step.
    pub fn finished(&self, rank: &mut Rank<'a>, step: u32) -> Result<Vec<Value>, Trouble> {
        let mut found: Vec<Value> =
            rank.shards.iter().map(|shard| Value::zeros(shard.shape.clone())).collect();
        let gradients = rank.gradients.remove(&step).unwrap_or_default();
        for (number, gradient) in gradients.leaves.into_iter().enumerate() {
            let Some(gradient) = gradient else { continue };
            let (_, region) = rank.own().leaf(number);
            let shard = rank.own().shard_of(number);
            let mut data = found[shard].data.to_vec();
            regions::join(&mut data, rank.own().shard(shard), &gradient.data, region, Num::plus)
                .ok_or_else(|| Trouble::fault("a gradient of a leaf that is no part of its shard"))?;
            found[shard].data = data.into();
        }
        for (place, arrived) in found.iter_mut().zip(gradients.arrived) {
            if let Some(arrived) = arrived {
                *place = place.zip(&arrived, Num::plus);
            }
        }
        Ok(found)
    }
}
