//! What is known of every buffer of every rank, while the program is followed.

use std::rc::Rc;

use graph::{Dtype, TensorId};
use hashing::Map;
use program::{Arg, Body, BufId, Call, CallId, Instr, KeepId, ListsId, Of, Own, Pass, Program, RankId, Role};

use crate::args::integer;
use crate::axis::Fold;
use crate::facts::Facts;
use crate::fault::{Fault, Faults, Place};
use crate::held::{Held, LocalPart, Sums};
use crate::local::Finder;
use crate::proof::Tally;
use crate::region::{numel, region_text};
use crate::sent::Sent;
use crate::share::{EMPTY, ListId, ShareId, Store};

/// What all ranks of a role have in common.
pub(crate) struct RoleCode<'a> {
    pub(crate) role: &'a Role,
    /// Of all codes, one after the other.
    pub(crate) instrs: Vec<&'a Instr>,
    /// For each instruction that is a call: the number of its first operator.
    pub(crate) first_op: Vec<usize>,
    /// For each operator, the buffers that it reads.
    pub(crate) reads: Vec<Vec<BufId>>,
    /// Where each call is.
    pub(crate) calls: Map<u32, usize>,
    pub(crate) leaf_of: Map<BufId, usize>,
    /// The leaves that are parts of each copy.
    leaves_of: Map<usize, Vec<usize>>,
    /// The number of this role's first operator among all roles'.
    pub(crate) base: u32,
}

impl<'a> RoleCode<'a> {
    pub(crate) fn new(role: &'a Role, base: u32) -> Self {
        let body = &role.body;
        let instrs: Vec<&Instr> = body.instrs().collect();
        let (mut first_op, mut reads, mut calls) = (vec![], vec![], Map::default());
        for (index, instr) in instrs.iter().enumerate() {
            first_op.push(reads.len());
            if let Instr::Call(call) = instr {
                reads.extend(call.ops.iter().map(|op| op.inputs().collect()));
                calls.insert(call.id.0, index);
            }
        }
        let leaf_of = body.leaves.iter().enumerate().map(|(index, leaf)| (leaf.buf, index)).collect();
        let mut leaves_of: Map<usize, Vec<usize>> = Map::default();
        for (index, (storage, _)) in role.table.leaves.iter().enumerate() {
            if let Of::Copy(copy) = storage {
                leaves_of.entry(*copy).or_default().push(index);
            }
        }
        Self { role, instrs, first_op, reads, calls, leaf_of, leaves_of, base }
    }

    /// The leaves that are parts of some copies.
    pub(crate) fn leaves_of(&self, copies: &[usize]) -> impl Iterator<Item = usize> {
        copies.iter().filter_map(|copy| self.leaves_of.get(copy)).flatten().copied()
    }

    pub(crate) fn call(&self, id: CallId) -> Option<(usize, &'a Call)> {
        let index = *self.calls.get(&id.0)?;
        match self.instrs[index] {
            Instr::Call(call) => Some((index, call)),
            _ => None,
        }
    }
}

/// One rank.
pub(crate) struct Rank<'a> {
    pub(crate) id: RankId,
    pub(crate) role: usize,
    pub(crate) body: &'a Body,
    pub(crate) own: Own<'a>,
    /// `None` for what is not known, because of a fault that is already reported.
    pub(crate) bufs: Vec<Option<Held>>,
    pub(crate) parts: Vec<Option<LocalPart>>,
    pub(crate) leaves: Vec<LeafState>,
    /// The gradients that exchanges brought to the shards.
    pub(crate) shards: Vec<ShareId>,
    pub(crate) updated: Vec<bool>,
    /// Of each call of whose gradients those of leaves have not arisen yet: those, by leaf.
    pub(crate) owed: Map<u32, Vec<(usize, ListId, ShareId)>>,
    /// What is kept for later codes.
    kept: Vec<Vec<Option<Held>>>,
    /// The next instruction.
    pub(crate) next: usize,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct LeafState {
    pub(crate) shard: usize,
    pub(crate) tensor: TensorId,
    pub(crate) region: ListId,
    pub(crate) gradient: ShareId,
    /// Its gradient was communicated: nothing may be added to it any more.
    pub(crate) sealed: bool,
    /// Its gradient went to the shards by an exchange.
    pub(crate) exchanged: bool,
}

/// Everything that is shared while ranks are followed.
pub(crate) struct Context<'a> {
    pub(crate) facts: &'a Facts<'a>,
    pub(crate) program: &'a Program,
    pub(crate) codes: Vec<RoleCode<'a>>,
    pub(crate) store: Store,
    pub(crate) finder: Finder,
    pub(crate) faults: Faults,
    pub(crate) tally: Tally,
    /// What goes from rank to rank in each exchange that was asked for, by its lists and the bytes of an element.
    pub(crate) sent: Map<(ListsId, i64), Rc<Sent>>,
    /// Room for the gradients inside one call.
    pub(crate) sums: Sums,
    /// If only some of the ranks are followed.
    pub(crate) fold: Option<Fold>,
}

impl<'a> Rank<'a> {
    /// Bytes of what it holds of a parameter between steps, wherever that is, in the types in which tensors are held.
    pub(crate) fn bytes_of_shard(&self, shard: usize, held: &[Dtype]) -> u64 {
        let tensor = self.own.table.shards[shard].tensor;
        numel(&self.own.shard(shard).0) * held[tensor.index()].bytes() as u64
    }

    /// Bytes of a leaf's gradient.
    pub(crate) fn bytes_of_gradient(&self, leaf: usize, held: &[Dtype]) -> u64 {
        let tensor = self.body.leaves[leaf].tensor;
        numel(&self.own.leaf(leaf).1.0) * held[tensor.index()].bytes() as u64
    }

    pub(crate) fn new(cx: &mut Context<'a>, role: usize, index: usize) -> Self {
        let code = &cx.codes[role];
        let (body, rank_table) = (&code.role.body, code.role.own(index));
        let (bufs, parts) = (vec![None; body.bufs.len()], vec![None; code.reads.len()]);
        let leaves = (body.leaves.iter().enumerate())
            .map(|(number, leaf)| (leaf, rank_table.shard_of(number), rank_table.leaf(number).1))
            .map(|(leaf, shard, region)| LeafState {
                shard,
                tensor: leaf.tensor,
                region: cx.store.intervals.number(&region.0),
                gradient: EMPTY,
                sealed: false,
                exchanged: false,
            })
            .collect();
        Self {
            id: code.role.ranks[index],
            role,
            body,
            own: rank_table,
            bufs,
            parts,
            leaves,
            shards: vec![EMPTY; rank_table.table.shards.len()],
            updated: vec![false; rank_table.table.shards.len()],
            owed: Map::default(),
            kept: vec![],
            next: 0,
        }
    }

    pub(crate) fn keep(&mut self, id: KeepId, from: &[BufId]) {
        debug_assert_eq!(id.index(), self.kept.len());
        self.kept.push(from.iter().map(|buf| self.held(*buf)).collect());
    }

    pub(crate) fn take(&mut self, id: KeepId, to: &[BufId]) {
        for (buf, held) in to.iter().zip(std::mem::take(&mut self.kept[id.index()])) {
            self.bufs[buf.index()] = held;
        }
    }

    pub(crate) fn held(&self, buf: BufId) -> Option<Held> {
        self.bufs[buf.index()]
    }

    pub(crate) fn integer(&self, arg: &Arg) -> Option<i64> {
        integer(arg, self.own)
    }
}

impl Context<'_> {
    /// `%name[0..4, :]`: a tensor or gradient and its region.
    pub(crate) fn text(&self, held: Held) -> String {
        let kind = if held.of.grad { "the gradient of " } else { "" };
        format!("{kind}{}{}", self.name(held.of.tensor), self.region_text(held.of.tensor, held.region))
    }

    pub(crate) fn name(&self, tensor: TensorId) -> String {
        match &self.facts.graph.tensor(tensor).source {
            graph::Source::Param { names, .. } => format!("`{}`", names[0]),
            graph::Source::Buffer { name, .. } => format!("`{name}`"),
            _ => format!("%{}", self.facts.graph.tensor(tensor).name),
        }
    }

    pub(crate) fn region_text(&self, tensor: TensorId, region: ListId) -> String {
        region_text(&self.facts.analysis.factors[tensor.index()], self.store.region(region))
    }

    pub(crate) fn refuse(&mut self, rank: &Rank<'_>, fault: Fault) {
        let place = place(rank, None);
        self.faults.push(fault.at(rank.id, Some(place)));
    }
}

/// The instruction that a rank is at.
pub(crate) fn place(rank: &Rank<'_>, op: Option<usize>) -> Place {
    located(rank.body, rank.role, rank.next, op)
}

/// An instruction of a body, counted over all codes.
pub(crate) fn located(body: &Body, role: usize, at: usize, op: Option<usize>) -> Place {
    let (code, index) = body.locate(at);
    let (block, pass) = body.codes.get(code).map_or((0, Pass::Forward), |code| (code.block, code.pass));
    Place { role, block, pass, index, op }
}
