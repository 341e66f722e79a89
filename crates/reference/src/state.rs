//! What a rank has: shards, what is gathered, gradients, and of each micro-batch what it keeps.

use std::collections::HashMap;

use program::{BufId, CallId, KeepId, Own, Role};

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
    pub runs: HashMap<When, MicroBatchState>,
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
pub struct MicroBatchState {
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
    pub fn table(&self) -> Own<'a> {
        self.role.own(self.at)
    }

    pub fn gradients(&mut self, step: u32) -> &mut Gradients {
        let (leaves, shards) = (self.role.body.leaves.len(), self.shards.len());
        self.gradients
            .entry(step)
            .or_insert_with(|| Gradients { leaves: vec![None; leaves], arrived: vec![None; shards] })
    }
}
