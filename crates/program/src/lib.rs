//! What each rank executes: instructions, forward and backward, and the tables behind them.
//!
//! Ranks that run the same code share a [`Role`]; where they differ only in numbers, the code has
//! holes ([`Arg::Hole`]) and each rank's [`Table`] has their values. The text form of a program is the
//! Python that is emitted, and `program.json` beside it: see `docs/emitted-program.md`.
//!
//! A program knows nothing of how it was made: no plans, no search, no PyTorch.
//!
//! Invariants, all verified by the `check` crate:
//! - a buffer is written once and before it is read;
//! - steps are numbered in one global order, and every rank that takes part in a step lists it once,
//!   in that order, forward then backward;
//! - `Grad` instructions mirror `Call` instructions, in reverse order.

use std::collections::BTreeMap;

use graph::{Dtype, OpId, TensorId};
use rules::{Reduction, Region};

graph::id!(
    /// A device's process.
    RankId
);
graph::id!(
    /// A local value of a role: an index into [`Body::bufs`].
    BufId
);
graph::id!(
    /// A partition of ranks into groups: an index into [`Program::groupings`].
    GroupingId
);
graph::id!(
    /// An entry of [`Body::leaves`].
    LeafId
);
graph::id!(
    /// A place in the one global order of everything that communicates, and the number of a call.
    StepId
);

/// A partition of some of the ranks; each group lists its ranks in the order of their pieces.
pub type Grouping = Vec<Vec<RankId>>;

#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    pub model: String,
    /// [`graph::Graph::digest`] of the graph that the operator numbers below refer to.
    pub digest: String,
    /// The plan's name, for people.
    pub plan: String,
    pub world: u32,
    pub boundary: Boundary,
    /// The factors of every tensor of the graph: tensor, dim, factor (outer to inner).
    pub factors: Vec<Vec<Vec<i64>>>,
    pub groupings: Vec<Grouping>,
    pub exchanges: BTreeMap<StepId, Exchange>,
    pub roles: Vec<Role>,
}

/// What the caller gives to each rank, and what it gets from each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Boundary {
    pub inputs: Inputs,
    /// In the order of the graph's outputs.
    pub outputs: Vec<Output>,
}

impl Boundary {
    /// For each tensor of the graph, whether a gradient flows through it: from the outputs that leave,
    /// since the caller gives no gradient for others.
    pub fn needs_grad(&self, graph: &graph::Graph) -> Vec<bool> {
        graph.needs_grad_of(|number| self.outputs.get(number).is_some_and(|output| *output != Output::None))
    }
}

/// What of the model's inputs is given to a rank, which is also what it gets the gradient of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Inputs {
    /// Every rank is given the whole, and gets the whole gradient.
    #[default]
    Global,
    /// Each rank is given what it needs, and gets the gradient of that.
    Local,
}

/// What of an output leaves the program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Output {
    #[default]
    None,
    /// All of it, on every rank.
    Whole,
    /// On each rank a part of it, complete; together they are all of it.
    Local,
}

/// Ranks that run the same code.
#[derive(Clone, Debug, PartialEq)]
pub struct Role {
    pub ranks: Vec<RankId>,
    /// One per rank, in the same order.
    pub tables: Vec<Table>,
    pub body: Body,
}

/// What one rank has of its own.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    /// The values of the holes, in the order of [`Body::holes`].
    pub constants: Vec<i64>,
    /// What the rank holds of parameters, buffers and constants, between steps.
    pub shards: Vec<Shard>,
    /// For each leaf of the body: which shard it is part of, and its region.
    pub leaves: Vec<(usize, Region)>,
    /// For each input of the body: the part of the caller's tensor.
    pub inputs: Vec<Region>,
    /// For each output of the body: the part that leaves; `None` where none does.
    pub outputs: Vec<Option<Region>>,
    /// For each random operator on this rank, the regions of its slots.
    pub random: Vec<(OpId, Vec<Region>)>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Shard {
    pub tensor: TensorId,
    pub region: Region,
}

/// The code of a role.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Body {
    /// Names of the integers that differ among the ranks of this role.
    pub holes: Vec<String>,
    pub bufs: Vec<Buf>,
    pub inputs: Vec<InputPart>,
    pub leaves: Vec<Leaf>,
    pub forward: Vec<Instr>,
    /// In the order of the graph's outputs; `None` for what does not leave the program.
    pub outputs: Vec<Option<BufId>>,
    /// The gradients that the caller gives: one for each output that leaves and needs a gradient.
    pub seeds: Vec<BufId>,
    pub backward: Vec<Instr>,
    /// The gradients of inputs that backward gives to the caller, in the order of the graph's inputs.
    pub gradients: Vec<InputPart>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Buf {
    /// A hint for the name in the emitted code.
    pub name: String,
    pub tensor: TensorId,
    /// Whether it holds (part of) the gradient of the tensor instead of the tensor.
    pub grad: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputPart {
    pub tensor: TensorId,
    pub buf: BufId,
}

/// A parameter, buffer or constant as the code reads it: all or part of a shard. Uses of one shard
/// whose gradients have different layouts read it through different leaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaf {
    pub tensor: TensorId,
    /// 0 for the first leaf of this tensor on this rank, 1 for the second...
    pub number: u32,
    pub buf: BufId,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Arg {
    None,
    Bool(bool),
    Int(i64),
    /// An integer that differs among the ranks of the role: an index into [`Body::holes`].
    Hole(u32),
    Float(f64),
    Str(String),
    Dtype(Dtype),
    Buf(BufId),
    List(Vec<Arg>),
}

/// One sub-operator: `outputs = target(args, kwargs)`.
#[derive(Clone, Debug, PartialEq)]
pub struct LocalOp {
    /// The operator it is a part of. A hint for printing (its line and module); the checker finds
    /// the operator from target, arguments and inputs.
    pub op: OpId,
    pub target: String,
    pub args: Vec<Arg>,
    pub kwargs: Vec<(String, Arg)>,
    pub outputs: Vec<Option<BufId>>,
    pub no_grad: bool,
}

impl LocalOp {
    pub fn inputs(&self) -> Vec<BufId> {
        let mut found = vec![];
        for arg in self.args.iter().chain(self.kwargs.iter().map(|(_, arg)| arg)) {
            arg.bufs(&mut found);
        }
        found
    }
}

impl Arg {
    pub fn bufs(&self, found: &mut Vec<BufId>) {
        match self {
            Arg::Buf(buf) => found.push(*buf),
            Arg::List(items) => items.iter().for_each(|item| item.bufs(found)),
            _ => {}
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum Instr {
    /// Local, differentiable code between communications.
    Call(Call),
    /// The backward of the call with the same step.
    Grad(Grad),
    /// `to = from[box]`, on this rank.
    Slice(Slice),
    /// `to = sum of from`, on this rank. Gradients of several uses, brought to one layout.
    Add {
        from: Vec<BufId>,
        to: BufId,
    },
    AllReduce {
        step: StepId,
        group: GroupingId,
        reduction: Reduction,
        from: BufId,
        to: BufId,
    },
    AllGather {
        step: StepId,
        group: GroupingId,
        from: BufId,
        to: BufId,
        cut: Cut,
    },
    ReduceScatter {
        step: StepId,
        group: GroupingId,
        from: BufId,
        to: BufId,
        cut: Cut,
    },
    /// `from` is cut along `send`, the pieces received are joined along `receive`.
    AllToAll {
        step: StepId,
        group: GroupingId,
        from: BufId,
        to: BufId,
        send: Cut,
        receive: Cut,
    },
    /// Exact region-by-region transfer, by [`Program::exchanges`]. Also without any other rank.
    Exchange {
        step: StepId,
        from: Vec<BufId>,
        to: Vec<BufId>,
    },
    /// All-reduce (sum) the gradients of these leaves, in one bucket.
    ReduceGradients {
        step: StepId,
        group: GroupingId,
        leaves: Vec<LeafId>,
    },
    /// Exchange gradients of leaves into gradients of shards; sources and targets in the
    /// [`Exchange`] are this rank's `leaves` and `shards` (indices into [`Table::shards`]).
    ExchangeGradients {
        step: StepId,
        leaves: Vec<LeafId>,
        shards: Vec<usize>,
    },
    /// A buffer of the model gets its new value, at the end of forward.
    Update {
        shard: usize,
        from: BufId,
    },
}

#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    pub step: StepId,
    /// Leaves and inputs included: whatever `ops` read and do not write.
    pub inputs: Vec<BufId>,
    pub outputs: Vec<BufId>,
    pub ops: Vec<LocalOp>,
    /// Forget what is inside after forward and compute it again for backward.
    pub recompute: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Grad {
    pub step: StepId,
    /// For each output of the call that needs a gradient: the gradient, if any arises.
    pub from: Vec<Option<BufId>>,
    /// For each input of the call that needs a gradient and is no leaf: its gradient, if anybody
    /// reads it. Gradients of leaves accumulate in the leaves.
    pub to: Vec<Option<BufId>>,
}

/// Factor extents, dim by dim, of the local tensor that is sliced, and an interval per factor.
#[derive(Clone, Debug, PartialEq)]
pub struct Slice {
    pub from: BufId,
    pub to: BufId,
    pub extents: Vec<Vec<Arg>>,
    pub region: Vec<(Arg, Arg)>,
}

/// Where a local tensor is cut or joined: one factor of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Cut {
    /// Factor extents, dim by dim, of the tensor that is whole along the cut.
    pub extents: Vec<Vec<Arg>>,
    /// The position of the factor, counted over all dims.
    pub factor: usize,
    /// The pieces' lengths, in the order of the group.
    pub sizes: Vec<i64>,
}

/// An exact transfer between ranks, region by region.
#[derive(Clone, Debug, PartialEq)]
pub struct Exchange {
    pub tensor: TensorId,
    /// How pieces that overlap in a target are combined; every target starts from nothing.
    pub reduction: Reduction,
    /// What is there: rank, region. A rank's sources are numbered in this order.
    pub sources: Vec<(RankId, Region)>,
    pub targets: Vec<(RankId, Region)>,
    pub pieces: Vec<Piece>,
}

/// `region` of source `from` goes to target `to` (indices into the lists of the exchange).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    pub from: usize,
    pub to: usize,
    pub region: Region,
}

impl Program {
    /// The role of a rank, and the rank's own table.
    pub fn role_of(&self, rank: RankId) -> Option<(&Role, &Table)> {
        self.roles.iter().find_map(|role| {
            let at = role.ranks.iter().position(|&r| r == rank)?;
            Some((role, &role.tables[at]))
        })
    }
}

impl Inputs {
    pub const NAMES: [(Inputs, &'static str); 2] = [(Inputs::Global, "global"), (Inputs::Local, "local")];

    pub fn name(self) -> &'static str {
        name_of(&Self::NAMES, self)
    }

    pub fn parse(name: &str) -> Option<Inputs> {
        parse(&Self::NAMES, name)
    }
}

impl Output {
    pub const NAMES: [(Output, &'static str); 3] =
        [(Output::None, "none"), (Output::Whole, "whole"), (Output::Local, "local")];

    pub fn name(self) -> &'static str {
        name_of(&Self::NAMES, self)
    }

    pub fn parse(name: &str) -> Option<Output> {
        parse(&Self::NAMES, name)
    }
}

fn name_of<T: Copy + PartialEq>(names: &[(T, &'static str)], value: T) -> &'static str {
    names.iter().find(|row| row.0 == value).expect("every value has a name").1
}

fn parse<T: Copy>(names: &[(T, &'static str)], name: &str) -> Option<T> {
    names.iter().find(|row| row.1 == name).map(|row| row.0)
}

impl Body {
    pub fn buf(&self, id: BufId) -> &Buf {
        &self.bufs[id.index()]
    }
}

impl Instr {
    /// The place in the global order, for instructions that communicate.
    pub fn step(&self) -> Option<StepId> {
        match self {
            Instr::AllReduce { step, .. }
            | Instr::AllGather { step, .. }
            | Instr::ReduceScatter { step, .. }
            | Instr::AllToAll { step, .. }
            | Instr::Exchange { step, .. }
            | Instr::ReduceGradients { step, .. }
            | Instr::ExchangeGradients { step, .. } => Some(*step),
            _ => None,
        }
    }
}
