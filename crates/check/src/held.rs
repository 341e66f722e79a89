//! What buffers hold, and what is known where a local operator stands.

use graph::OpId;
use program::{BufId, LocalOp, Own};

use crate::facts::Facts;
use crate::share::{EMPTY, ListId, Quantity, ShareId};

/// What a buffer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) of: Quantity,
    pub(crate) region: ListId,
    pub(crate) share: ShareId,
}

/// The part of an operator that a local operator was found to be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LocalPart {
    pub(crate) op: OpId,
    /// The intervals of its loops.
    pub(crate) at: ListId,
    /// Which buffers are which operands: a number in the finder's list.
    pub(crate) binding: u32,
    /// What it executes: a number of the finder's.
    pub(crate) executes: usize,
    /// The `linear` clause by which it is applied to partial operands.
    pub(crate) clause: Option<u32>,
}

/// A local operator with everything that is known where it stands.
pub(crate) struct Scene<'s> {
    pub(crate) facts: &'s Facts<'s>,
    pub(crate) local: &'s LocalOp,
    /// The number of the local operator among all roles'.
    pub(crate) site: u32,
    pub(crate) role: usize,
    pub(crate) bufs: &'s [Option<Held>],
    /// What its operands hold, in order.
    pub(crate) inputs: &'s [Held],
    pub(crate) own: Own<'s>,
}

/// The gradients of buffers inside one call, while its backward is followed.
#[derive(Debug, Default)]
pub(crate) struct Sums {
    of: Vec<Option<(ListId, ShareId)>>,
    touched: Vec<BufId>,
}

impl Sums {
    pub(crate) fn clear(&mut self, bufs: usize) {
        self.of.resize(self.of.len().max(bufs), None);
        for buf in self.touched.drain(..) {
            self.of[buf.index()] = None;
        }
    }

    pub(crate) fn get(&self, buf: BufId) -> Option<(ListId, ShareId)> {
        self.of[buf.index()].filter(|(_, share)| *share != EMPTY)
    }

    pub(crate) fn set(&mut self, buf: BufId, region: ListId, share: ShareId) {
        self.of[buf.index()] = Some((region, share));
        self.touched.push(buf);
    }
}
