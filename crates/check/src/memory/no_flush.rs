//! Steps that follow each other without a pause: what is there of two of them.

use std::collections::{BTreeMap, BTreeSet};

use program::{Of, Pass};

use crate::purpose::{Memory, Purpose};

use super::ledger::MemoryBlock;
use super::pending::OffloadedBytes;
use super::walk::{BatchMemory, Walk, batches};

/// Gradients of a step that add up: of leaves, and of shards.
pub(super) struct AddUp {
    gradients: Vec<Option<MemoryBlock>>,
    arrived: Vec<Option<MemoryBlock>>,
}

impl Walk<'_, '_> {
    /// A step and the next one, which has all that any has: the gradients of the first one are whole at its end, and those
    /// of its own add up beside them.
    pub(super) fn steps(mut self) -> (Memory, OffloadedBytes) {
        self.begin();
        self.make_older();
        let (body, leaves) = (self.rank.body, self.values.clone());
        let batches = batches(self.cx.program, body, 1);
        let mut lanes: BTreeMap<(u32, u32), BatchMemory> = BTreeMap::new();
        let mut others =
            AddUp { gradients: vec![None; self.gradients.len()], arrived: vec![None; self.arrived.len()] };
        for step in 0..2 {
            for run in body.timetable.no_flush(step, batches, false) {
                let lane = lanes.remove(&(run.of, run.batch)).unwrap_or_else(|| self.lane(&leaves));
                self.enter(lane);
                self.swap(&mut others, run.of < step);
                self.run_code(run.task.block, run.task.pass(), run.task.settles().is(run.batch, batches));
                self.swap(&mut others, run.of < step);
                lanes.insert((run.of, run.batch), self.leave());
            }
            self.swap(&mut others, true);
        }
        self.values = leaves;
        self.run_code(0, Pass::End, true);
        self.take_gradients();
        self.report()
    }

    fn run_code(&mut self, block: u32, pass: Pass, settles: bool) {
        if let Some(at) = self.rank.body.position(block, pass) {
            self.run(at, settles);
        }
    }

    fn swap(&mut self, others: &mut AddUp, wanted: bool) {
        if wanted {
            std::mem::swap(&mut self.gradients, &mut others.gradients);
            std::mem::swap(&mut self.arrived, &mut others.arrived);
        }
    }

    /// What micro-batches of the step before read: what is kept of shards, and leaves that have memory of their own.
    fn make_older(&mut self) {
        let mut seen = BTreeSet::new();
        for (number, leaf) in self.rank.body.leaves.iter().enumerate() {
            let (Of::Shard(shard), region) = self.rank.own.leaf(number) else { continue };
            if !self.is_part_of_shard(leaf.tensor, shard, region) {
                self.ledger.make(self.bytes_of(leaf.tensor, &region.0), Purpose::Parameters);
            } else if self.rank.body.timetable.stashes() && self.is_trained(leaf.tensor) && seen.insert(shard)
            {
                self.ledger.make(self.bytes_of_shard(shard), Purpose::Parameters);
            }
        }
    }
}
