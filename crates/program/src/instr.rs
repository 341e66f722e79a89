//! What a rank does, one instruction after the other, and what can be asked of any of them.

use graph::{Dtype, OpId};
use rules::Reduction;

use crate::{BufId, CallId, ExchangeId, GroupingId, KeepId, LeafId};

#[derive(Clone, Debug, PartialEq)]
pub enum Instr {
    /// Local, differentiable code between communications.
    Call(Call),
    /// The backward of a call, or a half of it.
    Grad(Grad),
    /// `to = from[box]`, on this rank.
    Slice(Slice),
    /// `to = sum of from`, on this rank. Gradients of several uses, brought to one layout.
    Add { from: Vec<BufId>, to: BufId },
    /// A communication among the ranks of each group of a grouping.
    Collective(Collective),
    /// Exact region-by-region transfer, by [`crate::Program::exchanges`]. Also without any other rank.
    Exchange { exchange: ExchangeId, from: Vec<BufId>, to: Vec<BufId> },
    /// The first half of an exchange: what is there leaves, for the codes that receive it.
    Send { exchange: ExchangeId, from: Vec<BufId> },
    /// The second half, in a later code.
    Receive { exchange: ExchangeId, to: Vec<BufId> },
    /// All-reduce (sum) the gradients of these leaves, in one bucket.
    ReduceGradients { group: GroupingId, leaves: Vec<LeafId> },
    /// Exchange gradients of leaves into gradients of shards; sources and targets in the
    /// [`crate::Exchange`] are this rank's `leaves` and `shards` (indices into [`crate::Table::shards`]).
    ExchangeGradients { exchange: ExchangeId, leaves: Vec<LeafId>, shards: Vec<usize>, when: GradSync },
    /// Gathers copies, from the shards of the group's members, in one message.
    Gather { group: GroupingId, copies: Vec<usize> },
    /// Copies are there no longer.
    Release { copies: Vec<usize> },
    /// The gradients of these leaves, which are copies, summed over the group: every member adds the part that is
    /// its shard's to the shard's gradient, and the leaves have none left. In one message.
    Scatter { group: GroupingId, leaves: Vec<LeafId>, when: GradSync },
    /// Of the gradients of these leaves, which are copies, what is the rank's shard's is added to the shard's
    /// gradient, and the leaves have none left.
    Part { leaves: Vec<LeafId>, when: GradSync },
    /// All-reduce (sum) the gradients of these shards, in one message.
    ReduceShards { group: GroupingId, shards: Vec<usize> },
    /// A buffer of the model gets its new value, at the end of forward.
    Update { shard: usize, from: BufId },
    /// Values that a later code reads: what a code makes is gone at its end, but for these. Some go to the host.
    Keep { id: KeepId, from: Vec<BufId>, offloads: bool },
    /// What was kept, one for each value; it is kept no longer.
    Take { id: KeepId, to: Vec<BufId> },
    /// Brings back from the host what was sent there.
    Fetch { what: Offloaded },
}

#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    pub id: CallId,
    /// Leaves and inputs included: whatever `ops` read and do not write.
    pub inputs: Vec<BufId>,
    pub outputs: Vec<BufId>,
    pub ops: Vec<LocalOp>,
    /// Keep nothing of what is inside: what backward needs of it, another call makes again.
    pub recompute: bool,
    /// Keep nothing of what it reads, leaves apart: its backward is given that again.
    pub forgets: bool,
    /// What it keeps for its backward goes to the host.
    pub offloads: bool,
}

/// What is on the host meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Offloaded {
    /// What a call keeps for its backward.
    Call(CallId),
    /// Values that a later code reads.
    Kept(KeepId),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Grad {
    pub call: CallId,
    pub which: Which,
    /// For each output of the call that needs a gradient: the gradient, if any arises.
    pub from: Vec<Option<BufId>>,
    /// For each input of the call that needs a gradient and is no leaf: its gradient, if anybody
    /// reads it. Gradients of leaves accumulate in the leaves.
    pub to: Vec<Option<BufId>>,
    /// What the call forgot: the same values for its inputs that are no leaves, in their order. Empty where it
    /// forgot none.
    pub recomputed: Vec<BufId>,
}

/// Which gradients of a call arise. The second half reads and writes no buffers: the first one keeps what it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Which {
    Both,
    /// Those of what is no leaf.
    Inputs,
    /// Those of leaves.
    Weights,
}

/// When gradients are communicated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GradSync {
    /// With each micro-batch, so that what adds up is what arrives.
    Each,
    /// Where the timetable says, when they have added up.
    Last,
}

/// Factor extents, dim by dim, of the local tensor that is sliced, and an interval per factor.
#[derive(Clone, Debug, PartialEq)]
pub struct Slice {
    pub from: BufId,
    pub to: BufId,
    pub extents: Vec<Vec<Arg>>,
    pub region: Vec<(Arg, Arg)>,
}

/// One value, or several that are all-reduced together.
#[derive(Clone, Debug, PartialEq)]
pub struct Collective {
    pub how: How,
    pub group: GroupingId,
    pub from: Vec<BufId>,
    /// One for each of `from`.
    pub to: Vec<BufId>,
    /// Runs while the next instruction computes, which is the second half of a backward; `to` is there after that.
    pub overlaps: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub enum How {
    AllReduce(Reduction),
    AllGather(Cut),
    ReduceScatter(Cut),
    /// What is there is cut along `send`, the pieces received are joined along `receive`.
    AllToAll {
        send: Cut,
        receive: Cut,
    },
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

#[derive(Clone, Debug, PartialEq)]
pub enum Arg {
    None,
    Bool(bool),
    Int(i64),
    /// An integer that differs among the ranks of the role: an index into [`crate::Body::holes`].
    Hole(u32),
    Float(f64),
    Str(String),
    Dtype(Dtype),
    Buf(BufId),
    List(Vec<Arg>),
}

/// The kinds of instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Call,
    Grad,
    Slice,
    Add,
    AllReduce,
    AllGather,
    ReduceScatter,
    AllToAll,
    Exchange,
    Send,
    Receive,
    ReduceGradients,
    ExchangeGradients,
    Gather,
    Release,
    Scatter,
    Part,
    ReduceShards,
    Update,
    Keep,
    Take,
    Fetch,
}

impl Kind {
    /// As in emitted code.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Call => "call",
            Kind::Grad => "grad",
            Kind::Slice => "slice",
            Kind::Add => "add",
            Kind::AllReduce => "all_reduce",
            Kind::AllGather => "all_gather",
            Kind::ReduceScatter => "reduce_scatter",
            Kind::AllToAll => "all_to_all",
            Kind::Exchange => "exchange",
            Kind::Send => "send",
            Kind::Receive => "receive",
            Kind::ReduceGradients => "reduce_gradients",
            Kind::ExchangeGradients => "exchange_gradients",
            Kind::Gather => "gather",
            Kind::Release => "release",
            Kind::Scatter => "scatter_gradients",
            Kind::Part => "part_gradients",
            Kind::ReduceShards => "reduce_shards",
            Kind::Update => "update",
            Kind::Keep => "keep",
            Kind::Take => "take",
            Kind::Fetch => "fetch",
        }
    }

    /// Whether other ranks take part in it.
    pub fn communicates(self) -> bool {
        match self {
            Kind::Call
            | Kind::Grad
            | Kind::Slice
            | Kind::Add
            | Kind::Release
            | Kind::Part
            | Kind::Update
            | Kind::Keep
            | Kind::Take
            | Kind::Fetch => false,
            Kind::AllReduce
            | Kind::AllGather
            | Kind::ReduceScatter
            | Kind::AllToAll
            | Kind::Exchange
            | Kind::Send
            | Kind::Receive
            | Kind::ReduceGradients
            | Kind::ExchangeGradients
            | Kind::Gather
            | Kind::Scatter
            | Kind::ReduceShards => true,
        }
    }
}

impl Instr {
    pub fn kind(&self) -> Kind {
        match self {
            Instr::Call(_) => Kind::Call,
            Instr::Grad(_) => Kind::Grad,
            Instr::Slice(_) => Kind::Slice,
            Instr::Add { .. } => Kind::Add,
            Instr::Collective(collective) => match collective.how {
                How::AllReduce(_) => Kind::AllReduce,
                How::AllGather(_) => Kind::AllGather,
                How::ReduceScatter(_) => Kind::ReduceScatter,
                How::AllToAll { .. } => Kind::AllToAll,
            },
            Instr::Exchange { .. } => Kind::Exchange,
            Instr::Send { .. } => Kind::Send,
            Instr::Receive { .. } => Kind::Receive,
            Instr::ReduceGradients { .. } => Kind::ReduceGradients,
            Instr::ExchangeGradients { .. } => Kind::ExchangeGradients,
            Instr::Gather { .. } => Kind::Gather,
            Instr::Release { .. } => Kind::Release,
            Instr::Scatter { .. } => Kind::Scatter,
            Instr::Part { .. } => Kind::Part,
            Instr::ReduceShards { .. } => Kind::ReduceShards,
            Instr::Update { .. } => Kind::Update,
            Instr::Keep { .. } => Kind::Keep,
            Instr::Take { .. } => Kind::Take,
            Instr::Fetch { .. } => Kind::Fetch,
        }
    }

    /// Whose groups communicate.
    pub fn group(&self) -> Option<GroupingId> {
        match self {
            Instr::Collective(Collective { group, .. })
            | Instr::ReduceGradients { group, .. }
            | Instr::Gather { group, .. }
            | Instr::Scatter { group, .. }
            | Instr::ReduceShards { group, .. } => Some(*group),
            _ => None,
        }
    }

    /// The table by which it communicates.
    pub fn exchange(&self) -> Option<ExchangeId> {
        match self {
            Instr::Exchange { exchange, .. }
            | Instr::Send { exchange, .. }
            | Instr::Receive { exchange, .. }
            | Instr::ExchangeGradients { exchange, .. } => Some(*exchange),
            _ => None,
        }
    }

    /// Whether it is about gradients as they have added up over the micro-batches of a step.
    pub fn settles(&self) -> bool {
        match self {
            Instr::ReduceGradients { .. } | Instr::ReduceShards { .. } => true,
            Instr::ExchangeGradients { when, .. }
            | Instr::Scatter { when, .. }
            | Instr::Part { when, .. } => *when == GradSync::Last,
            _ => false,
        }
    }

    /// The copies that it is about: indices into [`crate::Table::copies`].
    pub fn copies(&self) -> &[usize] {
        match self {
            Instr::Gather { copies, .. } | Instr::Release { copies } => copies,
            _ => &[],
        }
    }

    /// The leaves whose gradients it moves.
    pub fn leaves(&self) -> &[LeafId] {
        match self {
            Instr::ReduceGradients { leaves, .. }
            | Instr::ExchangeGradients { leaves, .. }
            | Instr::Scatter { leaves, .. }
            | Instr::Part { leaves, .. } => leaves,
            _ => &[],
        }
    }

    /// The shards that it gives something to: indices into [`crate::Table::shards`].
    pub fn shards(&self) -> &[usize] {
        match self {
            Instr::ExchangeGradients { shards, .. } | Instr::ReduceShards { shards, .. } => shards,
            Instr::Update { shard, .. } => std::slice::from_ref(shard),
            _ => &[],
        }
    }

    /// The buffers that it reads. What is inside of a call is not seen from outside.
    pub fn reads(&self) -> Vec<BufId> {
        match self {
            Instr::Call(call) => call.inputs.clone(),
            Instr::Grad(grad) => grad.from.iter().flatten().chain(&grad.recomputed).copied().collect(),
            Instr::Slice(Slice { from, .. }) | Instr::Update { from, .. } => vec![*from],
            Instr::Collective(Collective { from, .. })
            | Instr::Add { from, .. }
            | Instr::Exchange { from, .. }
            | Instr::Send { from, .. }
            | Instr::Keep { from, .. } => from.clone(),
            Instr::ReduceGradients { .. }
            | Instr::ExchangeGradients { .. }
            | Instr::Gather { .. }
            | Instr::Release { .. }
            | Instr::Scatter { .. }
            | Instr::Part { .. }
            | Instr::ReduceShards { .. }
            | Instr::Receive { .. }
            | Instr::Take { .. }
            | Instr::Fetch { .. } => vec![],
        }
    }

    /// The same to be changed, those inside of a call included.
    pub fn reads_mut(&mut self) -> Vec<&mut BufId> {
        match self {
            Instr::Call(call) => {
                let mut found: Vec<&mut BufId> = call.inputs.iter_mut().collect();
                for op in &mut call.ops {
                    let args = op.args.iter_mut().chain(op.kwargs.iter_mut().map(|(_, arg)| arg));
                    args.for_each(|arg| arg.bufs_mut(&mut found));
                }
                found
            }
            Instr::Grad(grad) => grad.from.iter_mut().flatten().chain(&mut grad.recomputed).collect(),
            Instr::Slice(Slice { from, .. }) | Instr::Update { from, .. } => vec![from],
            Instr::Collective(Collective { from, .. })
            | Instr::Add { from, .. }
            | Instr::Exchange { from, .. }
            | Instr::Send { from, .. }
            | Instr::Keep { from, .. } => from.iter_mut().collect(),
            _ => vec![],
        }
    }

    /// The buffers that it writes, in the order of its results.
    pub fn writes(&self) -> Vec<BufId> {
        match self {
            Instr::Call(call) => call.outputs.clone(),
            Instr::Grad(grad) => grad.to.iter().flatten().copied().collect(),
            Instr::Slice(Slice { to, .. }) | Instr::Add { to, .. } => vec![*to],
            Instr::Collective(Collective { to, .. })
            | Instr::Exchange { to, .. }
            | Instr::Receive { to, .. }
            | Instr::Take { to, .. } => to.clone(),
            Instr::ReduceGradients { .. }
            | Instr::ExchangeGradients { .. }
            | Instr::Gather { .. }
            | Instr::Release { .. }
            | Instr::Scatter { .. }
            | Instr::Part { .. }
            | Instr::ReduceShards { .. }
            | Instr::Update { .. }
            | Instr::Send { .. }
            | Instr::Keep { .. }
            | Instr::Fetch { .. } => vec![],
        }
    }

    /// Every argument in which ranks of one role may differ, and a word for what it is.
    pub fn args(&self) -> Vec<(&Arg, &'static str)> {
        match self {
            Instr::Call(call) => call.ops.iter().flat_map(LocalOp::items).collect(),
            Instr::Slice(slice) => {
                let ends = slice.region.iter().flat_map(|(lo, hi)| [(lo, "lo"), (hi, "hi")]);
                slice.extents.iter().flatten().map(|size| (size, "size")).chain(ends).collect()
            }
            Instr::Collective(collective) => {
                let extents = collective.how.cuts().into_iter().flat_map(|cut| &cut.extents);
                extents.flatten().map(|size| (size, "size")).collect()
            }
            _ => vec![],
        }
    }

    pub fn args_mut(&mut self) -> Vec<(&mut Arg, &'static str)> {
        match self {
            Instr::Call(call) => call.ops.iter_mut().flat_map(LocalOp::items_mut).collect(),
            Instr::Slice(slice) => {
                let ends = slice.region.iter_mut().flat_map(|(lo, hi)| [(lo, "lo"), (hi, "hi")]);
                slice.extents.iter_mut().flatten().map(|size| (size, "size")).chain(ends).collect()
            }
            Instr::Collective(collective) => {
                let extents = collective.how.cuts_mut().into_iter().flat_map(|cut| &mut cut.extents);
                extents.flatten().map(|size| (size, "size")).collect()
            }
            _ => vec![],
        }
    }
}

impl How {
    /// Where it cuts, and where it joins.
    pub fn cuts(&self) -> Vec<&Cut> {
        match self {
            How::AllReduce(_) => vec![],
            How::AllGather(cut) | How::ReduceScatter(cut) => vec![cut],
            How::AllToAll { send, receive } => vec![send, receive],
        }
    }

    fn cuts_mut(&mut self) -> Vec<&mut Cut> {
        match self {
            How::AllReduce(_) => vec![],
            How::AllGather(cut) | How::ReduceScatter(cut) => vec![cut],
            How::AllToAll { send, receive } => vec![send, receive],
        }
    }
}

impl LocalOp {
    pub fn inputs(&self) -> Vec<BufId> {
        let mut found = vec![];
        for arg in self.args.iter().chain(self.kwargs.iter().map(|(_, arg)| arg)) {
            arg.bufs(&mut found);
        }
        found
    }

    fn items(&self) -> Vec<(&Arg, &'static str)> {
        let mut found = vec![];
        let all = self.args.iter().chain(self.kwargs.iter().map(|(_, arg)| arg));
        all.for_each(|arg| arg.items(&mut found));
        found.into_iter().map(|arg| (arg, self.word())).collect()
    }

    fn items_mut(&mut self) -> Vec<(&mut Arg, &'static str)> {
        let word = self.word();
        let mut found = vec![];
        let all = self.args.iter_mut().chain(self.kwargs.iter_mut().map(|(_, arg)| arg));
        all.for_each(|arg| arg.items_mut(&mut found));
        found.into_iter().map(|arg| (arg, word)).collect()
    }

    /// What its numbers are, most of the time.
    fn word(&self) -> &'static str {
        if self.target.starts_with("sw.") { "start" } else { "size" }
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

    fn bufs_mut<'a>(&'a mut self, found: &mut Vec<&'a mut BufId>) {
        match self {
            Arg::Buf(buf) => found.push(buf),
            Arg::List(items) => items.iter_mut().for_each(|item| item.bufs_mut(found)),
            _ => {}
        }
    }

    /// What it is made of: itself, or the items of its lists.
    fn items<'a>(&'a self, found: &mut Vec<&'a Arg>) {
        match self {
            Arg::List(items) => items.iter().for_each(|item| item.items(found)),
            arg => found.push(arg),
        }
    }

    fn items_mut<'a>(&'a mut self, found: &mut Vec<&'a mut Arg>) {
        match self {
            Arg::List(items) => items.iter_mut().for_each(|item| item.items_mut(found)),
            arg => found.push(arg),
        }
    }
}
