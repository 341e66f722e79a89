//! Leaves: what codes read of shards, and gradients on their way to them.

use graph::Source;
use program::{BufId, Leaf, Of, Role};

use crate::machine::{Machine, Trouble};
use crate::number::Num;
use crate::regions;
use crate::state::{Job, Rank};
use crate::tape::Value;

impl<'a> Machine<'a> {
    pub fn leaf_of(&self, role: &'a Role, buf: BufId) -> Option<(usize, &'a Leaf)> {
        role.body.leaves.iter().enumerate().find(|(_, leaf)| leaf.buf == buf)
    }

    /// A leaf as a code reads it.
    pub fn leaf(&self, rank: &Rank<'a>, number: usize, job: &Job) -> Result<Value, Trouble> {
        let (origin, region) = rank.table().leaf(number);
        let tensor = rank.role.body.leaves[number].tensor;
        let factors = &self.program.factors[tensor.index()];
        let (value, frame) = match origin {
            Of::Shard(shard) => (self.shard(rank, shard, job), rank.table().shard(shard)),
            Of::Copy(copy) => match &rank.copies[copy] {
                Some(value) => (value.clone(), rank.table().copy(copy)),
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
        let (_, region) = rank.table().leaf(leaf);
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
        let mut sums: Vec<Value> =
            rank.shards.iter().map(|shard| Value::zeros(shard.shape.clone())).collect();
        let gradients = rank.gradients.remove(&step).unwrap_or_default();
        for (number, gradient) in gradients.leaves.into_iter().enumerate() {
            let Some(gradient) = gradient else { continue };
            let (_, region) = rank.table().leaf(number);
            let shard = rank.table().shard_of(number);
            let mut data = sums[shard].data.to_vec();
            regions::join(&mut data, rank.table().shard(shard), &gradient.data, region, Num::plus)
                .ok_or_else(|| Trouble::fault("a gradient of a leaf that is no part of its shard"))?;
            sums[shard].data = data.into();
        }
        for (place, arrived) in sums.iter_mut().zip(gradients.arrived) {
            if let Some(arrived) = arrived {
                *place = place.zip(&arrived, Num::plus);
            }
        }
        Ok(sums)
    }
}
