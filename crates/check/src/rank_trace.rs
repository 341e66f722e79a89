//! What ranks do, instruction by instruction, and how much each takes: for whoever wants to know how long.
//!
//! Once ranks were followed, it is known which part of which operator every local operator is, and what every
//! communication moves. Bytes of an all-reduce, a reduce-scatter and an all-to-all are those of what a rank gives, of a
//! gather those of the whole that arises, of an exchange those to each other rank.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use graph::{Dtype, OpId, TensorId};
use program::{
    Body, BufId, Call, Collective, ExchangeId, Grad, How, Instr, LeafId, Offloaded, RankId, Which,
};
use rules::{Cost, Interval};

use crate::count;
use crate::held::LocalPart;
use crate::intern::Lists;
use crate::memory::{OffloadedBytes, held_as};
use crate::purpose::{Masters, Phase};
use crate::region::numel;
use crate::sent::SentByRank;
use crate::state::{Context, Rank};

/// What a rank does in its codes.
#[derive(Clone, Debug, PartialEq)]
pub struct RankTrace {
    pub rank: RankId,
    pub role: usize,
    /// One for each instruction of the role's codes, one code after the other. Ranks that do the same share them.
    pub instr_costs: Rc<[InstrCost]>,
    /// By the number of an instruction what goes to each other rank, if it sends something by a table.
    pub sent: BTreeMap<usize, SentByRank>,
    /// What it has in each turn, if that is asked for.
    pub held: Vec<Phase>,
}

/// What an instruction takes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct InstrCost {
    /// Operators and copies on the device, in their order.
    pub work: Vec<Work>,
    /// Bytes that a communication moves, and of which type.
    pub moved: u64,
    pub dtype: Option<Dtype>,
    /// Bytes that go to the host or come from there.
    pub to_host: u64,
    /// Bytes of gradients of parameters that are added to those of the micro-batches before: of a backward where they
    /// arise, else where what is sent with each micro-batch has arrived.
    pub added: u64,
    /// The same where the host adds them.
    pub added_on_host: u64,
    /// The operator whose value is moved or computed first.
    pub op: Option<OpId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Work {
    /// The operator that this is a part of; none of a copy or a sum.
    pub op: Option<OpId>,
    pub operations: u64,
    pub bytes: u64,
    pub dtype: Dtype,
}

/// Of each rank that was followed.
pub(crate) fn of_all<'a>(
    cx: &mut Context<'a>,
    ranks: &[Rank<'a>],
    masters: &Masters,
    offloaded: &[OffloadedBytes],
) -> Vec<RankTrace> {
    let held: Vec<Dtype> = cx.facts.graph.tensors.iter().map(|tensor| held_as(tensor, masters)).collect();
    let mut known: BTreeMap<usize, (BTreeSet<usize>, Lists<InstrCost>)> = BTreeMap::new();
    let rank_trace = |(rank, offloaded): (&Rank<'a>, &OffloadedBytes)| {
        let (leaving, known) = known.entry(rank.role).or_insert_with(|| (leaving(rank.body), Lists::new()));
        let instr_costs = Watch { cx, rank, held: &held, offloaded, leaving }.instr_costs();
        let number = known.number(&instr_costs);
        let sent = sent(cx, rank.role, rank.id);
        RankTrace {
            rank: rank.id,
            role: rank.role,
            instr_costs: Rc::clone(known.get(number)),
            sent,
            held: vec![],
        }
    };
    ranks.iter().zip(offloaded).map(rank_trace).collect()
}

/// What a rank sends to each other, by the number of the instruction.
pub(crate) fn sent(cx: &mut Context<'_>, role: usize, rank: RankId) -> BTreeMap<usize, SentByRank> {
    let mut sent = BTreeMap::new();
    for index in 0..cx.codes[role].instrs.len() {
        let instr = cx.codes[role].instrs[index];
        let sends = !matches!(instr, Instr::Receive { .. });
        let Some(id) = instr.exchange().filter(|_| sends) else { continue };
        sent.insert(index, count::sent(cx, id).by(rank).cloned().unwrap_or_default());
    }
    sent
}

/// Leaves whose gradients leave with each micro-batch.
fn leaving(body: &Body) -> BTreeSet<usize> {
    let each = body.instrs().filter(|instr| !instr.settles());
    each.flat_map(Instr::leaves).map(|leaf| leaf.index()).collect()
}

struct Watch<'w, 'a> {
    cx: &'w mut Context<'a>,
    rank: &'w Rank<'a>,
    /// For each tensor the type in which it is held.
    held: &'w [Dtype],
    /// What it sends to the host, and fetches from there.
    offloaded: &'w OffloadedBytes,
    /// Leaves whose gradients leave with each micro-batch, and do not add up.
    leaving: &'w BTreeSet<usize>,
}

impl RankTrace {
    /// What an instruction sends to each other rank.
    pub fn sent(&self, instr: usize) -> &[(RankId, u64)] {
        self.sent.get(&instr).map_or(&[], |sent| sent)
    }
}

impl<'a> Watch<'_, 'a> {
    fn instr_costs(mut self) -> Vec<InstrCost> {
        self.rank.body.instrs().enumerate().map(|(index, instr)| self.instr_cost(index, instr)).collect()
    }

    fn instr_cost(&mut self, index: usize, instr: &'a Instr) -> InstrCost {
        let copies = |count: u64, buf: BufId| self.copied(count, self.bytes(buf), self.dtype(buf));
        match instr {
            Instr::Call(call) => self.call(index, call),
            Instr::Grad(grad) => self.grad(grad),
            Instr::Slice(slice) => copies(2, slice.to),
            Instr::Add { from, to } => copies(from.len() as u64 + 1, *to),
            Instr::Collective(collective) => self.collective(collective),
            Instr::Exchange { exchange, .. } | Instr::Send { exchange, .. } => self.exchange(*exchange),
            Instr::Receive { exchange, .. } => self.of_exchange(*exchange, InstrCost::default()),
            Instr::ReduceGradients { leaves, .. } => self.gradients(leaves),
            Instr::Scatter { leaves, .. } => {
                let instr_cost = self.gradients(leaves);
                self.arriving(instr, &self.shards_of(leaves), instr_cost)
            }
            Instr::ExchangeGradients { exchange, shards, .. } => {
                let instr_cost = self.exchange(*exchange);
                self.arriving(instr, shards, instr_cost)
            }
            Instr::Gather { copies, .. } => self.gather(copies),
            Instr::Part { leaves, .. } => {
                let instr_cost = InstrCost { moved: 0, ..self.gradients(leaves) };
                self.arriving(instr, &self.shards_of(leaves), instr_cost)
            }
            Instr::ReduceShards { shards, .. } => self.shards(shards),
            Instr::Update { shard, .. } => {
                let shard = &self.rank.own.table.shards[*shard];
                let bytes = self.bytes_of(shard.tensor, &shard.region.get(self.rank.own.at).0);
                self.copied(2, bytes, self.cx.facts.graph.tensor(shard.tensor).dtype)
            }
            Instr::Keep { id, .. } => self.of_host(Offloaded::Kept(*id)),
            Instr::Fetch { what } => self.of_host(*what),
            Instr::Take { .. } | Instr::Release { .. } => InstrCost::default(),
        }
    }

    fn call(&mut self, index: usize, call: &'a Call) -> InstrCost {
        let first = self.cx.codes[self.rank.role].first_op[index];
        let mut work = vec![];
        for offset in 0..call.ops.len() {
            let Some(part) = self.rank.parts[first + offset] else { continue };
            let cost = self.cost(&part);
            work.extend(self.work(&part, cost.flops, cost.forward.read + cost.forward.written));
        }
        let op = call.ops.first().map(|op| op.op);
        InstrCost { work, op, ..self.of_host(Offloaded::Call(call.id)) }
    }

    /// What goes to the host, or comes back: nothing of what stays.
    fn of_host(&self, what: Offloaded) -> InstrCost {
        InstrCost { to_host: self.offloaded.get(&what).copied().unwrap_or(0), ..InstrCost::default() }
    }

    /// The backward of a call, the last operator first.
    fn grad(&mut self, grad: &Grad) -> InstrCost {
        let Some((index, call)) = self.cx.codes[self.rank.role].call(grad.call) else {
            return InstrCost::default();
        };
        let first = self.cx.codes[self.rank.role].first_op[index];
        let (mut work, mut leaves) = (vec![], BTreeMap::new());
        for offset in (0..call.ops.len()).rev() {
            let Some(part) = self.rank.parts[first + offset] else { continue };
            let (cost, (mine, all)) = (self.cost(&part), self.share(&part, grad.which));
            let moved = (cost.backward.read + cost.backward.written) * mine.1;
            work.extend(moved.checked_div(all).and_then(|bytes| self.work(&part, mine.0, bytes)));
            self.leaves(&part, grad.which, &mut leaves);
        }
        let added = leaves.into_values().sum();
        InstrCost { work, added, op: call.ops.last().map(|op| op.op), ..InstrCost::default() }
    }

    /// The bytes of the leaves of which gradients arise in this half, by where they are.
    fn leaves(&self, part: &LocalPart, which: Which, bytes: &mut BTreeMap<u32, u64>) {
        let code = &self.cx.codes[self.rank.role];
        let uses = &self.cx.facts.op(part.op).uses;
        for (buf, input) in self.cx.finder.bindings.get(part.binding).iter() {
            let Some(leaf) = code.leaf_of.get(buf).filter(|_| which != Which::Inputs) else { continue };
            if uses[*input].is_some() && !self.leaving.contains(leaf) {
                bytes.insert(buf.0, self.rank.bytes_of_gradient(*leaf, self.held));
            }
        }
    }

    /// With the gradients of shards that are there then, and what of them goes to the host.
    fn arriving(&self, instr: &Instr, shards: &[usize], instr_cost: InstrCost) -> InstrCost {
        let rank_table = self.rank.own;
        let bytes = |on_host: bool| -> u64 {
            let is = |shard: &&usize| {
                self.cx.program.lives_on_host(rank_table.table.shards[**shard].tensor) == on_host
            };
            shards.iter().filter(is).map(|shard| self.rank.bytes_of_shard(*shard, self.held)).sum()
        };
        let (here, there) = (bytes(false), bytes(true));
        let is_added = u64::from(!instr.settles());
        InstrCost { to_host: there, added: is_added * here, added_on_host: is_added * there, ..instr_cost }
    }

    fn shards_of(&self, leaves: &[LeafId]) -> Vec<usize> {
        leaves.iter().map(|leaf| self.rank.own.shard_of(leaf.index())).collect()
    }

    /// The operations of those gradients of a part that arise in this half, how many gradients these are, and how many
    /// there are in all.
    fn share(&mut self, part: &LocalPart, which: Which) -> ((u64, u64), u64) {
        let cost = self.cost(part);
        let code = &self.cx.codes[self.rank.role];
        let uses = &self.cx.facts.op(part.op).uses;
        let (mut mine, mut all) = ((0, 0), 0);
        for (buf, input) in self.cx.finder.bindings.get(part.binding).iter() {
            if uses[*input].is_none() {
                continue;
            }
            let leaf = code.leaf_of.contains_key(buf);
            all += 1;
            if which == Which::Both || leaf == (which == Which::Weights) {
                mine = (mine.0 + cost.gradients[*input], mine.1 + 1);
            }
        }
        (mine, all)
    }

    fn collective(&self, collective: &Collective) -> InstrCost {
        let bufs =
            if matches!(collective.how, How::AllGather(_)) { &collective.to } else { &collective.from };
        self.moved(bufs.iter().map(|buf| self.bytes(*buf)).sum(), bufs[0])
    }

    fn moved(&self, moved: u64, buf: BufId) -> InstrCost {
        let tensor = self.tensor(buf);
        let op = self.cx.facts.graph.producer(tensor).map(|(op, _)| op);
        InstrCost { moved, dtype: Some(self.dtype(buf)), op, ..InstrCost::default() }
    }

    fn exchange(&mut self, id: ExchangeId) -> InstrCost {
        let moved = count::sent(self.cx, id).given(self.rank.id);
        self.of_exchange(id, InstrCost { moved, ..InstrCost::default() })
    }

    fn of_exchange(&self, id: ExchangeId, instr_cost: InstrCost) -> InstrCost {
        let tensor = self.cx.program.exchanges[id.index()].tensor;
        let graph = self.cx.facts.graph;
        InstrCost {
            dtype: Some(graph.tensor(tensor).dtype),
            op: graph.producer(tensor).map(|(op, _)| op),
            ..instr_cost
        }
    }

    /// The gradients of leaves, in one message.
    fn gradients(&self, leaves: &[LeafId]) -> InstrCost {
        let moved = leaves.iter().map(|leaf| self.rank.bytes_of_gradient(leaf.index(), self.held)).sum();
        let dtype = leaves.first().map(|leaf| self.held[self.rank.body.leaves[leaf.index()].tensor.index()]);
        InstrCost { moved, dtype, ..InstrCost::default() }
    }

    fn shards(&self, shards: &[usize]) -> InstrCost {
        let tensor = |number: usize| self.rank.own.table.shards[number].tensor;
        let dtype = shards.first().map(|number| self.held[tensor(*number).index()]);
        let moved = shards.iter().map(|number| self.rank.bytes_of_shard(*number, self.held)).sum();
        // What is on the host comes, and goes back.
        let there = shards.iter().filter(|number| self.cx.program.lives_on_host(tensor(**number)));
        let to_host = 2 * there.map(|number| self.rank.bytes_of_shard(*number, self.held)).sum::<u64>();
        InstrCost { moved, dtype, to_host, ..InstrCost::default() }
    }

    fn gather(&self, copies: &[usize]) -> InstrCost {
        let tensor = |copy: usize| self.rank.own.table.shards[self.rank.own.table.copies[copy].shard].tensor;
        let moved =
            copies.iter().map(|copy| self.bytes_of(tensor(*copy), &self.rank.own.copy(*copy).0)).sum();
        let dtype = copies.first().map(|copy| self.cx.facts.graph.tensor(tensor(*copy)).dtype);
        let host = |copy: &&usize| self.cx.program.lives_on_host(tensor(**copy));
        let shard_bytes = |copy: &usize| {
            let shard = self.rank.own.table.copies[*copy].shard;
            self.bytes_of(tensor(*copy), &self.rank.own.shard(shard).0)
        };
        InstrCost {
            moved,
            dtype,
            to_host: copies.iter().filter(host).map(shard_bytes).sum(),
            ..InstrCost::default()
        }
    }

    fn copied(&self, count: u64, bytes: u64, dtype: Dtype) -> InstrCost {
        let work = Work { op: None, operations: 0, bytes: count * bytes, dtype };
        InstrCost { work: vec![work], ..InstrCost::default() }
    }

    fn work(&self, part: &LocalPart, operations: u64, bytes: u64) -> Option<Work> {
        let dtype = self.cx.facts.graph.computes_in(part.op)?;
        (operations + bytes > 0).then_some(Work { op: Some(part.op), operations, bytes, dtype })
    }

    fn cost(&mut self, part: &LocalPart) -> Rc<Cost> {
        self.cx.finder.cost(self.cx.facts, &self.cx.store, part)
    }

    fn dtype(&self, buf: BufId) -> Dtype {
        self.cx.facts.graph.tensor(self.tensor(buf)).dtype
    }

    /// What a buffer was seen to hold: files that were read back do not say it of all.
    fn tensor(&self, buf: BufId) -> TensorId {
        self.rank.held(buf).map_or(self.rank.body.buf(buf).tensor, |held| held.of.tensor)
    }

    fn bytes(&self, buf: BufId) -> u64 {
        let held = self.rank.held(buf);
        held.map_or(0, |held| self.bytes_of(held.of.tensor, self.cx.store.region(held.region)))
    }

    fn bytes_of(&self, tensor: TensorId, region: &[Interval]) -> u64 {
        numel(region) * self.cx.facts.graph.tensor(tensor).dtype.bytes() as u64
    }
}
