//! What each rank executes: instructions, forward and backward, and the tables behind them.
//!
//! Ranks that run the same code share a [`Role`]; where they differ only in numbers, the code has
//! holes ([`Arg::Hole`]), and their [`Table`] has a [`PerRank`] of values for each. The text form of a program is the
//! Python that is emitted, and `program.json` beside it: see `docs/reference/emitted-program.md`.
//!
//! A program knows nothing of how it was made: no plans, no search, no PyTorch.
//!
//! [`Instr`] is what a rank does; whoever only wants to know what an instruction reads, writes, or where it
//! communicates asks it, and does not have to know all of them.
//!
//! Invariants, all verified by the `check` crate:
//! - a buffer is written once and before it is read;
//! - all members of a group meet its communications in the same order, and nobody waits for ever;
//! - each `Grad` follows the `Call` that it is the backward of, and there is one for a call at most, or one for the
//!   gradients of its inputs and a later one for those of leaves; what the call forgot it is given again, the same values;
//! - a code reads what it is given, what it makes, leaves, and what it takes of what was kept;
//! - a copy is there from where it is gathered to where it is released, and what a micro-batch gathers it releases;
//! - who computes the update of a whole parameter holds a part of it, and all parts together are the whole;
//! - what forward sends to the host backward brings back, once, before it is read;
//! - what lives on the host is read through copies only, which are brought from there;
//! - in a step every micro-batch runs every code once, and gradients are communicated once all have arisen;
//! - what a code sends another one receives, of the same micro-batch, and nobody waits for ever;
//! - where steps follow each other without a pause, a micro-batch reads the parameters of its step, forward and backward, and
//!   updates get gradients when all of their step have arisen.

mod code;
mod instr;
mod per_rank;

use std::sync::Arc;

use diag::Result;
use graph::{Graph, OpId, TensorId};
use rules::slicing::derive;
use rules::{Reduction, Region, Rewriting, Rewritten, Slices};

pub use code::{Code, CodeKey, Does, Loop, OrderKey, Pass, Run, Steps, Task, Timetable, When};
pub use instr::{
    Arg, COPIES_IN_FLIGHT, Call, Collective, Cut, Field, FieldKind, FieldMut, Grad, GradSync, How, Instr,
    Kind, LocalOp, Offloaded, Saves, Slice, Which,
};
pub use per_rank::{Own, PerRank};

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
    /// A call of a role's code, which its backward names.
    CallId
);
graph::id!(
    /// Values that one code keeps for a later one.
    KeepId
);
graph::id!(
    /// The table of an exchange: an index into [`Program::exchanges`].
    ExchangeId
);

/// A partition of some of the ranks; each group lists its ranks in the order of their pieces.
pub type Grouping = Vec<Vec<RankId>>;

#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    pub model: String,
    /// [`graph::Graph::digest`] of the model's graph.
    pub digest: String,
    /// Where the model's sequence is cut into slices, if it is.
    pub slices: Option<Slices>,
    /// The operators that are rewritten: of the model, or of the model in slices. The numbers of operators and tensors
    /// below are those of the graph that [`rules::slicing::derive`] makes of the model's and these.
    pub rewritings: Vec<Rewriting>,
    /// The plan's name, for people.
    pub plan: String,
    pub world: u32,
    pub boundary: Boundary,
    /// The factors of every tensor of the rewritten graph: tensor, dim, factor (outer to inner).
    pub factors: Vec<Vec<Vec<i64>>>,
    /// The parameters of which the optimizer's state is on the host between steps, in their order.
    pub state_on_host: Vec<TensorId>,
    /// The parameters that live on the host, where the optimizer steps them, in their order: shards of them are there,
    /// and what is read of them are copies.
    pub held_on_host: Vec<TensorId>,
    pub groupings: Vec<Grouping>,
    pub exchanges: Vec<Exchange>,
    /// In the order of their tensors.
    pub updates: Vec<Update>,
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
    pub table: Table,
    pub body: Body,
}

/// What the ranks of a role have of their own: as many of everything, of which numbers and regions may differ.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    /// The values of the holes, in the order of [`Body::holes`].
    pub constants: Vec<PerRank<i64>>,
    /// What a rank holds of parameters, buffers and constants, between steps.
    pub shards: Vec<Shard>,
    /// More than a rank holds of a tensor, which it has for a while: gathered from the shards of a group.
    pub copies: Vec<Gathered>,
    /// For each leaf of the body: what it is part of, and its region.
    pub leaves: Vec<(Of, PerRank<Region>)>,
    /// For each of [`Body::inputs`]: the part of the caller's tensor.
    pub inputs: Vec<PerRank<Region>>,
    /// For each output of the graph: the part that leaves; `None` where none does.
    pub outputs: Vec<Option<PerRank<Region>>>,
    /// For each random operator, the regions of its slots.
    pub random: Vec<(OpId, Vec<PerRank<Region>>)>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Shard {
    pub tensor: TensorId,
    pub region: PerRank<Region>,
}

/// What leaves are part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Of {
    /// An index into [`Table::shards`].
    Shard(usize),
    /// An index into [`Table::copies`].
    Copy(usize),
}

/// The shards of the members of a group, which are balanced parts of it along one factor, in the group's order. In a
/// group of one it is what the shard is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Gathered {
    /// The rank's own shard of it.
    pub shard: usize,
    pub region: PerRank<Region>,
    /// The factor in which the shards differ, counted over all dims.
    pub factor: usize,
    pub parts: u32,
}

/// What a role runs: codes over one list of buffers, and a timetable.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Body {
    /// Names of the integers that differ among the ranks of this role.
    pub holes: Vec<String>,
    pub bufs: Vec<Buf>,
    pub leaves: Vec<Leaf>,
    /// The tensor of each input that codes of forward take, one code after the other.
    pub inputs: Vec<TensorId>,
    /// The tensor of each gradient that backward gives to the caller, in the order of the graph's inputs.
    pub gradients: Vec<TensorId>,
    /// At most one for each block and pass, in the order of [`Code::place`].
    pub codes: Vec<Code>,
    pub timetable: Timetable,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Buf {
    /// A hint for the name in the emitted code.
    pub name: String,
    pub tensor: TensorId,
    /// Whether it holds (part of) the gradient of the tensor instead of the tensor.
    pub grad: bool,
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

/// An exact transfer between ranks, region by region. Layers that are alike share its lists.
#[derive(Clone, Debug, PartialEq)]
pub struct Exchange {
    pub tensor: TensorId,
    /// How pieces that overlap in a target are combined; every target starts from nothing.
    pub reduction: Reduction,
    /// What is there: rank, region. A rank's sources are numbered in this order.
    pub sources: Arc<RankRegions>,
    pub targets: Arc<RankRegions>,
    pub pieces: Arc<Vec<Piece>>,
}

impl Exchange {
    pub fn lists_id(&self) -> ListsId {
        let Self { sources, targets, pieces, .. } = self;
        [Arc::as_ptr(sources).addr(), Arc::as_ptr(targets).addr(), Arc::as_ptr(pieces).addr()]
    }

    /// Its lists, to be changed: others that shared them keep theirs.
    pub fn lists(&mut self) -> (&mut RankRegions, &mut RankRegions, &mut Vec<Piece>) {
        (Arc::make_mut(&mut self.sources), Arc::make_mut(&mut self.targets), Arc::make_mut(&mut self.pieces))
    }
}

/// Which lists these are. Exchanges of one program with the same ones share them.
pub type ListsId = [usize; 3];

/// Ranks, and what each has or gets of a tensor.
pub type RankRegions = Vec<(RankId, Region)>;

/// `region` of source `from` goes to target `to` (indices into the lists of the exchange).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    pub from: usize,
    pub to: usize,
    pub region: Region,
}

/// A parameter that ranks hold in parts, and the one of them that computes its update of the whole: for an optimizer
/// that looks at more of it than each element by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Update {
    pub tensor: TensorId,
    pub rank: RankId,
}

impl Program {
    /// The graph that its numbers refer to: the model's, in slices and rewritten as it says.
    pub fn rewritten<'g>(&self, model: &'g Graph) -> Result<Rewritten<'g>> {
        derive(model, self.slices.as_ref(), &self.rewritings)
    }

    pub fn lives_on_host(&self, tensor: TensorId) -> bool {
        self.held_on_host.binary_search(&tensor).is_ok()
    }

    /// The role of a rank, and its position among the role's ranks.
    pub fn role_of(&self, rank: RankId) -> Option<(&Role, usize)> {
        self.roles.iter().find_map(|role| Some((role, role.ranks.iter().position(|&r| r == rank)?)))
    }
}

impl Role {
    /// What the rank at a position has.
    pub fn own(&self, at: usize) -> Own<'_> {
        Own { table: &self.table, at }
    }
}

impl Table {
    /// All columns of regions.
    pub fn regions(&self) -> impl Iterator<Item = &PerRank<Region>> {
        let shards = self.shards.iter().map(|shard| &shard.region);
        let copies = self.copies.iter().map(|copy| &copy.region);
        let leaves = self.leaves.iter().map(|(_, region)| region);
        let outputs = self.outputs.iter().flatten();
        let random = self.random.iter().flat_map(|(_, regions)| regions);
        shards.chain(copies).chain(leaves).chain(&self.inputs).chain(outputs).chain(random)
    }

    /// Whether every column has a value for each of so many ranks.
    pub fn fits(&self, ranks: usize) -> bool {
        self.constants.iter().all(|per_rank| per_rank.fits(ranks))
            && self.regions().all(|per_rank| per_rank.fits(ranks))
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

    /// A new buffer for what is the same as another one holds.
    pub fn another(&mut self, buf: BufId) -> BufId {
        let same = self.buf(buf).clone();
        self.bufs.push(same);
        BufId::new(self.bufs.len() - 1)
    }

    pub fn code(&self, block: u32, pass: Pass) -> Option<&Code> {
        self.position(block, pass).map(|at| &self.codes[at])
    }

    /// Where that code stands among all.
    pub fn position(&self, block: u32, pass: Pass) -> Option<usize> {
        self.codes.iter().position(|code| (code.block, code.pass) == (block, pass))
    }

    /// The codes of a pass, in the order in which a micro-batch runs them.
    pub fn codes_of(&self, pass: Pass) -> impl Iterator<Item = &Code> {
        self.codes.iter().filter(move |code| code.pass == pass)
    }

    /// The codes that run for each micro-batch.
    pub fn codes_of_batches(&self) -> impl Iterator<Item = &Code> {
        self.codes.iter().filter(|code| !code.pass.is_once())
    }

    /// The code of a block and pass, empty if there was none.
    pub fn code_mut(&mut self, block: u32, pass: Pass) -> &mut Code {
        let wanted = code::turn(block, pass);
        let at = self.codes.partition_point(|code| code.place() < wanted);
        if self.codes.get(at).is_none_or(|code| code.place() != wanted) {
            self.codes.insert(at, Code::new(block, pass));
        }
        &mut self.codes[at]
    }

    pub fn trains(&self) -> bool {
        self.back().next().is_some()
    }

    /// The codes in which gradients of values arise, in the order in which a micro-batch runs them.
    pub fn back(&self) -> impl Iterator<Item = &Code> {
        self.codes.iter().filter(|code| code.pass.gives_back())
    }

    /// That of a block.
    pub fn back_of(&self, block: u32) -> Option<&Code> {
        self.back().find(|code| code.block == block)
    }

    /// What the codes of a pass are given, one after the other.
    pub fn takes(&self, pass: Pass) -> impl Iterator<Item = BufId> {
        self.codes_of(pass).flat_map(|code| &code.takes).copied()
    }

    /// For each output of the graph what leaves, whichever code gives it.
    pub fn outputs(&self) -> Vec<Option<BufId>> {
        let count = self.codes_of(Pass::Forward).map(|code| code.gives.len()).max().unwrap_or(0);
        let given = |number: usize| {
            self.codes_of(Pass::Forward).find_map(|code| code.gives.get(number).copied().flatten())
        };
        (0..count).map(given).collect()
    }

    /// For each of [`Body::gradients`] the buffer.
    pub fn given_gradients(&self) -> impl Iterator<Item = Option<BufId>> {
        self.back().flat_map(|code| &code.gives).copied()
    }

    /// What all codes do, one after the other.
    pub fn instrs(&self) -> impl Iterator<Item = &Instr> {
        self.codes.iter().flat_map(|code| &code.instrs)
    }

    pub fn calls(&self) -> impl Iterator<Item = &Call> {
        self.instrs().filter_map(|instr| if let Instr::Call(call) = instr { Some(call) } else { None })
    }

    /// In which code an instruction of [`Body::instrs`] is, by its position, and where in it.
    pub fn locate(&self, mut index: usize) -> (usize, usize) {
        for (at, code) in self.codes.iter().enumerate() {
            if index < code.instrs.len() {
                return (at, index);
            }
            index -= code.instrs.len();
        }
        (self.codes.len().saturating_sub(1), index)
    }

    /// The pass in which an instruction of [`Body::instrs`] is.
    pub fn pass_at(&self, index: usize) -> Pass {
        self.codes.get(self.locate(index).0).map_or(Pass::Forward, |code| code.pass)
    }
}
