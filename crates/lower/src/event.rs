//! What the one global order is made of.

use std::rc::Rc;

use graph::TensorId;
use program::{ExchangeId, GradSync, GroupingId};

use crate::layout::LayoutId;
use crate::moves::Move;
use crate::uses::UseId;

pub enum Event {
    /// The operators of a segment; each rank may need several calls.
    Call {
        segment: usize,
    },
    /// What a use needs is moved to its ports.
    Move {
        id: UseId,
        path: ReshardPath,
    },
    /// Buffers get their new values.
    Update {
        id: UseId,
        number: usize,
    },
    /// What a later block needs of a tensor leaves for it, made complete first.
    Send {
        id: UseId,
        crossing: Crossing,
    },
    Receive {
        id: UseId,
        crossing: Crossing,
    },
    /// The same of the gradient that a use gives back, for an earlier block.
    SendGrad {
        id: UseId,
        crossing: Crossing,
    },
    ReceiveGrad {
        id: UseId,
        crossing: Crossing,
    },
    /// The operators of a segment once more, in backward; `saves` what its own backward needs.
    Recompute {
        segment: usize,
        saves: bool,
    },
    /// What a use needs is moved once more, in backward.
    MoveRecomputed {
        id: UseId,
        path: ReshardPath,
    },
    /// The backward of a segment, whose calls are made again first, one by one, if forward kept nothing of them.
    Grad {
        segment: usize,
        recomputed: bool,
    },
    /// The gradient that a use gives back is moved to the producer's shards. Of an input it becomes
    /// complete where it is.
    MoveGrad {
        id: UseId,
        path: ReshardPath,
    },
    /// What all uses of an input gave back in one layout is moved to the caller's.
    GiveBack {
        id: UseId,
        path: ReshardPath,
    },
    /// Gradients of parameters, one bucket.
    Reduce {
        group: GroupingId,
        uses: Vec<UseId>,
    },
    /// The gradient of one parameter, region by region.
    ReduceExactly {
        id: UseId,
        exchange: ExchangeId,
        plan: Rc<Move>,
        when: GradSync,
    },
    /// What operators read of divided parameters is gathered, or is there no longer.
    Gather {
        group: GroupingId,
        tensors: Vec<TensorId>,
    },
    Release {
        tensors: Vec<TensorId>,
    },
    /// Gradients of divided parameters are summed into the parts; without a group they are whole.
    Scatter {
        group: Option<GroupingId>,
        uses: Vec<UseId>,
        when: GradSync,
    },
    /// What parts have is summed over ranks that hold the same ones.
    ReduceParts {
        group: GroupingId,
        tensors: Vec<TensorId>,
    },
}

/// Moves one after another, and the layouts between which they go.
#[derive(Clone)]
pub struct ReshardPath {
    pub reshard_steps: Vec<ReshardStep>,
    pub from: LayoutId,
    pub to: LayoutId,
}

/// From one block to another: what happens where it is made, and what is sent from there.
#[derive(Clone)]
pub struct Crossing {
    pub inside: ReshardPath,
    pub step: ReshardStep,
}

#[derive(Clone)]
pub struct ReshardStep {
    pub plan: Rc<Move>,
    /// Its table, if it goes region by region.
    pub exchange: Option<ExchangeId>,
    pub to: LayoutId,
}
