//! How long a step of a program takes on a cluster, who waits for whom, and what is sent when.
//!
//! A watcher of the check: it goes through what ranks were proved to do ([`check::RankTrace`]), in the order of their
//! timetables, and knows of each instruction what it takes. So it is about the program as it was lowered, whoever made
//! it and however.
//!
//! Each rank computes one thing after the other ([`price`] says how long each takes), and has one line on which its
//! collectives go one after the other. A collective begins once all members have come to it and their lines are free. Who
//! reads its result waits for it; what is sent ahead (gathers), and what is only needed at the end of a code
//! (reductions of gradients), goes on meanwhile. Messages between blocks leave one after the other, and arrive by
//! themselves. What is not counted: that messages take bandwidth from each other unless a link is shared, the ranks'
//! agreement on a step, and what Python does.
//!
//! Of ranks that are [`symmetric()`] those are followed that the proof followed.

mod bursts;
mod coming;
mod engine;
mod fused;
mod held;
mod kinds;
mod link;
mod manifest;
mod passes;
mod periods;
mod price;
mod rank;
mod rendezvous;
mod shares;
mod spent;
mod symmetric;
mod table;
mod talk;
mod trace;

use check::RankTrace;
use cluster::Cluster;
use diag::{Error, Result};
use graph::{Dtype, OpId};
use program::{Kind, Pass, Program, RankId};

pub use held::{ByPurpose, HeldMemory, Placing, Stretch};
pub use kinds::Kinds;
pub use link::LinkKind;
pub use manifest::{ModelWork, Scope, manifest};
pub use passes::Lasts;
pub use price::SUM;
pub use shares::{Share, Shares, shares, works_of};
pub use symmetric::symmetric;
pub use trace::{Functions, trace};

/// What is simulated.
#[derive(Clone, Copy)]
pub struct Scene<'s> {
    pub program: &'s Program,
    pub rank_traces: &'s [RankTrace],
    pub cluster: &'s Cluster,
    /// Of the graph that the program's numbers are of.
    pub kinds: &'s Kinds,
    /// Micro-batches of the step.
    pub batches: u32,
    /// For each rank.
    pub updates: &'s [Updates],
}

/// What an optimizer does in a step, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Updates {
    /// It reads and writes on the device.
    pub here: u64,
    /// Of its state come from the host before, and go there after it.
    pub comes: u64,
    /// The host reads and writes, of what lives there.
    pub on_host: u64,
}

/// A step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Simulation {
    /// Seconds, until the last rank has updated its parameters.
    pub seconds: f64,
    /// Micro-batches that were gone through. Others take as long as those do.
    pub gone_through: u32,
    /// Of each rank that was followed, in their order.
    pub ranks: Vec<Lane>,
    /// Of the passes of blocks, what each takes whenever it runs.
    pub passes: Vec<Lasts>,
    /// What ranks do, in the order of their ends on each rank: of the first rank of each role, and of all where these
    /// are few.
    pub spans: Vec<Span>,
    pub messages: Vec<Message>,
    /// Of each rank that was followed what it takes part in, in its order.
    pub parts: Vec<Vec<TakesPart>>,
}

/// What a rank does with its time. All of it is one of these.
#[derive(Clone, Debug, PartialEq)]
pub struct Lane {
    pub rank: RankId,
    pub forward: f64,
    pub backward: f64,
    /// What backward computes a second time.
    pub recomputed: f64,
    /// Slices, sums, what goes to the host, and what the runtime and messages take of the device meanwhile.
    pub copies: f64,
    /// It waits for a communication that goes on.
    pub exposed: f64,
    /// It waits for others.
    pub idle: f64,
    pub update: f64,
    /// All of its communication, hidden or not.
    pub communication: f64,
}

/// A stretch of a rank's time.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    pub rank: RankId,
    pub what: What,
    pub pass: Pass,
    pub block: u32,
    pub batch: u32,
    pub start: f64,
    pub end: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// An instruction, by its number in its code.
    Instr(Kind, usize),
    Wait,
    Update,
}

/// A communication of a group, or a message from one rank to another.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    pub kind: Kind,
    /// All members, also those that were not followed; of a message who sends and who receives.
    pub group: Vec<RankId>,
    pub bytes: u64,
    pub dtype: Option<Dtype>,
    pub start: f64,
    pub end: f64,
    /// What of the slowest link that it crosses it uses while it goes on.
    pub share: f64,
}

impl Message {
    /// Where nobody sends anything by an exchange's table, there is no communication.
    pub fn moves(&self) -> bool {
        self.bytes > 0 || self.kind != Kind::Exchange
    }
}

/// That a rank takes part in a communication.
#[derive(Clone, Debug, PartialEq)]
pub struct TakesPart {
    /// An index into [`Simulation::messages`].
    pub message: usize,
    pub kind: Kind,
    pub block: u32,
    pub pass: Pass,
    pub instr: usize,
    pub batch: u32,
    pub op: Option<OpId>,
    /// Seconds for which the rank waits for it while it goes on.
    pub exposed: f64,
}

impl Lane {
    pub(crate) fn new(rank: RankId) -> Self {
        Self {
            rank,
            forward: 0.0,
            backward: 0.0,
            recomputed: 0.0,
            copies: 0.0,
            exposed: 0.0,
            idle: 0.0,
            update: 0.0,
            communication: 0.0,
        }
    }

    pub(crate) fn fields(&mut self) -> [&mut f64; 8] {
        [
            &mut self.forward,
            &mut self.backward,
            &mut self.recomputed,
            &mut self.copies,
            &mut self.exposed,
            &mut self.idle,
            &mut self.update,
            &mut self.communication,
        ]
    }

    /// By name. Together they are the step.
    pub fn parts(&self) -> [(&'static str, f64); 7] {
        [
            ("forward", self.forward),
            ("backward", self.backward),
            ("again", self.recomputed),
            ("copies", self.copies),
            ("exposed", self.exposed),
            ("idle", self.idle),
            ("update", self.update),
        ]
    }
}

/// Runs a step.
pub fn simulate(scene: &Scene<'_>) -> Result<Simulation> {
    has_room(scene)?;
    engine::Engine::new(scene, true).end()
}

/// The same without noting who does what when: of many micro-batches that would fill the memory. Of these no more are
/// gone through than it takes to know all ([`periods`]).
pub fn simulate_briefly(scene: &Scene<'_>) -> Result<Simulation> {
    has_room(scene)?;
    periods::run(scene)
}

fn has_room(scene: &Scene<'_>) -> Result<()> {
    let (needed, there) = (scene.program.world, scene.cluster.devices());
    if needed > there {
        let what =
            format!("the plan is for {needed} devices, and the cluster {} has {there}", scene.cluster.name);
        return Err(Error::new("SW0910", what)
            .why("each rank runs on a device of its own")
            .fix("make the plan for as many devices, or name a larger cluster"));
    }
    Ok(())
}
