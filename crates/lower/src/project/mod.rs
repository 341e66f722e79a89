//! From the global schedule to what ranks execute that do the same.

mod calls;
mod cross_block;
mod eager_sum;
mod leaves;
mod per_rank;
mod recomputed;
mod reloads;
mod role_ranks;
mod split_backward;
mod transfers;

use std::collections::{HashMap, HashSet};

use graph::{Source, TensorId};
use program::{Body, Buf, BufId, CallId, Inputs, Instr, Pass, PerRank, RankId, Table};

use crate::event::Event;
use crate::layout::{Interner, LayoutId};
use crate::param_sharding::ParamShardings;
use crate::schedule::{Codes, Schedule};
use crate::segments::Segments;
use crate::uses::{Context, TensorReader, UseId, Uses};

use per_rank::{Apart, Asked, RegionsId};
use role_ranks::RoleRanks;

/// Everything that projection reads.
pub struct Global<'a> {
    pub cx: &'a Context<'a>,
    pub uses: &'a Uses,
    pub param_shardings: &'a ParamShardings,
    pub segments: &'a Segments,
    pub schedule: &'a Schedule,
    pub interner: &'a Interner,
}

/// What some ranks execute. Arguments that differ among them are holes that name one of the numbers.
pub struct Projected {
    pub ranks: Vec<RankId>,
    pub body: Body,
    pub table: Table,
    pub numbers: Vec<PerRank<i64>>,
}

/// Whose gradient an input of a call gives. Shards and ports are counted from the first one of the rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Owner {
    /// A written shard.
    Written(TensorId, usize),
    Port(UseId, usize),
    /// What uses of an input give back in one layout.
    Input(TensorId, LayoutId, usize),
    /// Leaves accumulate their own; integers have none.
    Nobody,
}

/// A call that was made, for its backward.
#[derive(Clone)]
struct MadeCall {
    /// In forward.
    first: CallId,
    /// The one that keeps what backward needs.
    id: CallId,
    /// Whose gradients go in, and whose come out.
    outputs: Vec<(TensorId, usize)>,
    inputs: Vec<(BufId, Owner)>,
}

/// A tensor as it is read: by all uses that give no gradient back, or by one that does, through one of its leaves.
type Leaf = (TensorId, Option<UseId>, usize);

struct Projector<'a> {
    global: &'a Global<'a>,
    role_ranks: RoleRanks<'a>,
    body: Body,
    table: Table,
    written: HashMap<(TensorId, usize), BufId>,
    ports: HashMap<(UseId, usize), BufId>,
    /// Gradients that have arisen, not yet added up.
    gradients: HashMap<Owner, Vec<BufId>>,
    /// What is held of each tensor: which shard, and its region.
    held: HashMap<TensorId, Vec<(usize, RegionsId)>>,
    /// What is gathered of each tensor: which copies.
    copies: HashMap<TensorId, Vec<(usize, RegionsId)>>,
    leaves: HashMap<Leaf, Vec<(RegionsId, BufId)>>,
    /// The leaf that a buffer is.
    leaf_of: HashMap<BufId, usize>,
    /// What is given of inputs, and slices of it.
    inputs: HashMap<TensorId, Vec<(RegionsId, BufId)>>,
    made: HashMap<usize, Vec<MadeCall>>,
    variants: calls::Variants,
    recomputed: recomputed::Recomputed,
    calls: usize,
    /// What was sent of a use, or of the gradient that it gives back: the shards that pieces are taken from.
    sent: HashMap<(UseId, Pass), Vec<Option<BufId>>>,
    /// The code that is being made.
    block: u32,
    pass: Pass,
}

/// What all ranks execute, by what they do: those that do the same are projected together.
pub fn all(global: &Global<'_>, world: u32) -> Vec<Projected> {
    let mut waiting = vec![(0..world).map(RankId).collect::<Vec<RankId>>()];
    let mut projected = vec![];
    while let Some(ranks) = waiting.pop() {
        match together(global, &ranks) {
            Ok((body, table, numbers)) => projected.push(Projected { ranks, body, table, numbers }),
            Err(Apart(kinds)) => waiting.extend(kinds),
        }
    }
    projected.sort_by_key(|it| it.ranks[0]);
    projected
}

fn together(global: &Global<'_>, ranks: &[RankId]) -> Asked<(Body, Table, Vec<PerRank<i64>>)> {
    let mut it = Projector {
        global,
        role_ranks: RoleRanks::new(ranks, global.interner),
        body: Body::default(),
        table: Table::default(),
        written: HashMap::new(),
        ports: HashMap::new(),
        gradients: HashMap::new(),
        held: HashMap::new(),
        copies: HashMap::new(),
        leaves: HashMap::new(),
        leaf_of: HashMap::new(),
        inputs: HashMap::new(),
        made: HashMap::new(),
        variants: calls::Variants::default(),
        recomputed: recomputed::Recomputed::default(),
        calls: 0,
        sent: HashMap::new(),
        block: 0,
        pass: Pass::Forward,
    };
    it.hold()?;
    for code in global.schedule.codes.iter().filter(|code| code.pass <= Pass::Forward) {
        it.code(code)?;
    }
    it.leave()?;
    for code in global.schedule.codes.iter().filter(|code| code.pass > Pass::Forward) {
        it.code(code)?;
    }
    it.leave_gradients()?;
    it.keep();
    let learning = it.learning();
    if global.cx.plan.schedule.splits_backward() {
        split_backward::split(&mut it.body, |buf| learning.contains(buf));
    }
    cross_block::keep(&mut it.body);
    reloads::fetch(&mut it.body);
    if global.cx.placements.iter().any(|placement| placement.in_turn) {
        eager_sum::add(&mut it.body);
    }
    // Nothing comes between a message and what runs beside it: this is last.
    split_backward::overlap(&mut it.body, |buf| learning.contains(buf));
    it.table.random.sort_by_key(|(op, _)| *op);
    Ok((it.body, it.table, it.role_ranks.per_rank.into_numbers()))
}

impl Projector<'_> {
    fn code(&mut self, code: &Codes) -> Asked<()> {
        (self.block, self.pass) = (code.block, code.pass);
        code.events.iter().try_for_each(|event| self.event(event))
    }

    fn event(&mut self, event: &Event) -> Asked<()> {
        match event {
            Event::Call { segment } => self.call(*segment),
            Event::Move { id, path } => self.transfer(*id, path),
            Event::Send { id, crossing } | Event::SendGrad { id, crossing } => self.send(*id, crossing),
            Event::Receive { id, crossing } => self.receive(*id, crossing),
            Event::ReceiveGrad { id, crossing } => self.receive_gradient(*id, crossing),
            Event::Update { id, number } => self.update(*id, *number),
            Event::Recompute { segment, saves } => self.recompute_call(*segment, *saves),
            Event::MoveRecomputed { id, path } => self.recompute_transfer(*id, path),
            Event::Grad { segment, recomputed } => self.grad(*segment, *recomputed),
            Event::MoveGrad { id, path } => self.transfer_gradient(*id, path),
            Event::GiveBack { id, path } => self.give_back(*id, path),
            Event::Reduce { group, uses } => self.reduce(*group, uses),
            Event::ReduceExactly { id, exchange, plan, when } => {
                self.reduce_exactly(*id, *exchange, plan, *when)
            }
            Event::Gather { group, tensors } => self.gather(*group, tensors),
            Event::Release { tensors } => self.release(tensors),
            Event::Scatter { group, uses, when } => self.scatter(*group, uses, *when),
            Event::ReduceParts { group, tensors } => self.reduce_parts(*group, tensors),
        }
    }

    /// The leaves that need a gradient.
    fn learning(&self) -> HashSet<BufId> {
        let (leaf_of, needs_grad) = (&self.leaf_of, self.global.cx.needs_grad);
        let learning = { leaf_of.keys() }.filter(|buf| needs_grad[self.body.buf(**buf).tensor.index()]);
        learning.copied().collect()
    }

    fn push(&mut self, instr: Instr) {
        self.body.code_mut(self.block, self.pass).instrs.push(instr);
    }

    fn buf(&mut self, tensor: TensorId, grad: bool) -> BufId {
        let name = self.global.cx.graph.tensor(tensor).name.clone();
        self.body.bufs.push(Buf { name, tensor, grad });
        BufId::new(self.body.bufs.len() - 1)
    }

    /// The buffer that a reader finds at its port.
    fn fetch(&mut self, id: UseId, port: usize) -> Asked<BufId> {
        let it = self.global.uses.get(id);
        match self.global.cx.graph.tensor(it.tensor).source {
            Source::Op { .. } if it.direct => {
                let shard = self.direct_shard(id, port)?;
                Ok(self.written[&(it.tensor, shard)])
            }
            Source::Op { .. } => Ok(self.ports[&(id, port)]),
            Source::Input { .. } => {
                let wanted = self.role_ranks.port(it.ports, port)?;
                self.input(id, it.tensor, wanted)
            }
            _ => self.leaf(id, port),
        }
    }

    fn direct_shard(&mut self, id: UseId, port: usize) -> Asked<usize> {
        let it = self.global.uses.get(id);
        self.role_ranks.direct(it.ports, port, self.global.uses.written[it.tensor.index()])
    }

    /// Whose gradient a reader's input gives.
    fn owner(&mut self, id: UseId, port: usize) -> Asked<Owner> {
        let it = self.global.uses.get(id);
        Ok(match self.global.cx.graph.tensor(it.tensor).source {
            _ if !it.carries_grad => Owner::Nobody,
            Source::Op { .. } if it.direct => Owner::Written(it.tensor, self.direct_shard(id, port)?),
            Source::Op { .. } => Owner::Port(id, port),
            Source::Input { .. } if self.global.cx.given_back[it.tensor.index()] => Owner::Port(id, port),
            _ => Owner::Nobody,
        })
    }

    /// The part of an input that a reader needs. Of a global input the runtime takes every part that
    /// is asked for; of a local one it has one part, of which others are slices.
    fn input(&mut self, id: UseId, tensor: TensorId, wanted: RegionsId) -> Asked<BufId> {
        for (region, buf) in self.inputs.get(&tensor).cloned().unwrap_or_default() {
            if self.role_ranks.per_rank.same(region, wanted)? {
                return Ok(buf);
            }
        }
        let given = self.role_ranks.shard(self.global.uses.written[tensor.index()], 0)?;
        let local = self.global.cx.boundary.inputs == Inputs::Local;
        let sliced = local && !self.role_ranks.per_rank.same(given, wanted)?;
        let whole = if sliced { Some(self.input(id, tensor, given)?) } else { None };
        let buf = self.buf(tensor, false);
        self.inputs.entry(tensor).or_default().push((wanted, buf));
        if let Some(whole) = whole {
            let slice = self.slice_of(id, whole, buf, given, wanted);
            self.push(Instr::Slice(slice));
        } else {
            self.body.inputs.push(tensor);
            self.body.code_mut(self.block, Pass::Forward).takes.push(buf);
            self.table.inputs.push(self.role_ranks.per_rank.region(wanted).clone());
        }
        Ok(buf)
    }

    /// The sum of the gradients that have arisen for an owner.
    fn gradient(&mut self, owner: Owner, tensor: TensorId) -> Option<BufId> {
        let gradients = self.gradients.get(&owner)?.clone();
        let sum = match gradients[..] {
            [one] => one,
            _ => {
                let to = self.buf(tensor, true);
                self.push(Instr::Add { from: gradients, to });
                to
            }
        };
        self.gradients.insert(owner, vec![sum]);
        Some(sum)
    }

    /// Results that leave, and the seeds that the caller gives for them.
    fn leave(&mut self) -> Asked<()> {
        let outputs = &self.global.cx.graph.outputs;
        if self.global.cx.plan.block_count() == 1 {
            self.body.code_mut(0, Pass::Forward);
        }
        self.block = 0;
        let forwards = self.body.codes.iter_mut().filter(|code| code.pass == Pass::Forward);
        forwards.for_each(|code| code.gives = vec![None; outputs.len()]);
        self.table.outputs = vec![None; outputs.len()];
        for number in 0..outputs.len() {
            let Some((id, tensor)) = self.reader_use(&TensorReader::Output(number)) else { continue };
            let ports = self.global.uses.get(id).ports;
            // Of an output that leaves in parts, a rank may have none.
            if self.role_ranks.ports(ports)? == 0 {
                continue;
            }
            self.block = self.global.cx.block_of(tensor).unwrap_or(0);
            let region = self.role_ranks.port(ports, 0)?;
            self.table.outputs[number] = Some(self.role_ranks.per_rank.region(region).clone());
            let output = self.fetch(id, 0)?;
            let gives = &mut self.body.code_mut(self.block, Pass::Forward).gives;
            gives.resize(outputs.len(), None);
            gives[number] = Some(output);
            if self.global.uses.get(id).carries_grad {
                let seed = self.buf(tensor, true);
                self.body.code_mut(self.block, Pass::Backward).takes.push(seed);
                let owner = self.owner(id, 0)?;
                self.gradients.entry(owner).or_default().push(seed);
            }
        }
        Ok(())
    }

    /// The gradients of inputs, once all that read them have contributed.
    fn leave_gradients(&mut self) -> Asked<()> {
        (self.block, self.pass) = (0, Pass::Backward);
        for tensor in self.global.cx.graph.tensor_ids().filter(|t| self.global.cx.given_back[t.index()]) {
            if self.role_ranks.shards(self.global.uses.written[tensor.index()])? == 0 {
                continue;
            }
            if let Some(buf) = self.gradient(Owner::Written(tensor, 0), tensor) {
                self.body.gradients.push(tensor);
                self.body.code_mut(0, Pass::Backward).gives.push(Some(buf));
            }
        }
        Ok(())
    }

    fn reader_use(&self, reader: &TensorReader) -> Option<(UseId, TensorId)> {
        let all = &self.global.uses.all;
        let index = all.iter().position(|u| u.readers.contains(reader))?;
        Some((UseId::new(index), all[index].tensor))
    }

    fn update(&mut self, id: UseId, number: usize) -> Asked<()> {
        let graph = self.global.cx.graph;
        let (name, value) = (&graph.updates[number].0, graph.updates[number].1);
        let Some(old) = graph.held(name) else { return Ok(()) };
        let held = self.held.get(&old).cloned().unwrap_or_default();
        let ports = self.global.uses.get(id).ports;
        for port in 0..self.role_ranks.ports(ports)? {
            let region = self.role_ranks.port(ports, port)?;
            for (shard, held_region) in &held {
                // With other factors, both are whole.
                if !self.global.cx.same_factors(old, value)
                    || self.role_ranks.per_rank.same(*held_region, region)?
                {
                    let from = self.fetch(id, port)?;
                    self.push(Instr::Update { shard: *shard, from });
                    break;
                }
            }
        }
        Ok(())
    }
}
