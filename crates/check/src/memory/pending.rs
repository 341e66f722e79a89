//! What was begun and is not over yet: messages on their way, what is left of a backward, what is on the host.

use std::collections::BTreeMap;

use program::{BufId, Offloaded};

use super::ledger::MemoryBlock;

/// Copies on their way.
pub(super) struct Gathering {
    pub(super) copies: Vec<usize>,
    pub(super) sent: Vec<MemoryBlock>,
    pub(super) received: Vec<MemoryBlock>,
}

/// Gradients on their way: what is sent, and for each shard its part of what arrives.
#[derive(Default)]
pub(super) struct Scattering {
    pub(super) sent: Vec<MemoryBlock>,
    pub(super) received: Vec<(usize, MemoryBlock)>,
}

/// What is left of the backward of a call.
#[derive(Default)]
pub(super) struct Left {
    /// Gradients that leaves are going to have.
    pub(super) leaves: Vec<(usize, MemoryBlock)>,
    /// Operators whose backward is left, or some of it, the last one first.
    pub(super) ops: Vec<Later>,
    /// What the call was given again.
    pub(super) recomputed: Vec<MemoryBlock>,
}

pub(super) struct Later {
    pub(super) offset: usize,
    pub(super) given: Vec<Option<MemoryBlock>>,
    pub(super) saved: Vec<MemoryBlock>,
    /// Whose gradients are left.
    pub(super) bufs: Vec<BufId>,
}

/// Bytes that a call or a number sends to the host for each micro-batch.
pub(crate) type OffloadedBytes = BTreeMap<Offloaded, u64>;

/// Blocks that were sent, each once, with the bytes of each.
pub(super) type Sent = Vec<(MemoryBlock, u64)>;
