//! Goes through the codes of a rank in the order of a step.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use graph::{Dtype, Source, TensorId};
use hashing::Map;
use program::{Arg, Body, BufId, Instr, Of, Offloaded, Pass, Program, Slice};
use rules::{Cost, Interval, Region};

use crate::cuts::extents;
use crate::held::LocalPart;
use crate::purpose::{Memory, Moment, Phase, Purpose};
use crate::region::numel;
use crate::state::{Context, Rank, RoleCode};
use crate::timetable::enough;

use super::ledger::{Ledger, MemoryBlock};
use super::lives::Lives;
use super::pending::{Gathering, Left, OffloadedBytes, Scattering, Sent};

pub(super) struct Walk<'w, 'a> {
    pub(super) cx: &'w mut Context<'a>,
    pub(super) rank: &'w Rank<'a>,
    lives: &'w Lives,
    /// For each tensor the type in which it is held.
    held: &'w [Dtype],
    pub(super) ledger: Ledger,
    phases: Vec<Phase>,
    /// What was there in each instruction of the turn, if that is asked for.
    instrs: Option<Vec<(usize, [u64; Purpose::COUNT])>>,
    /// The memory of each buffer that has a value.
    pub(super) values: Vec<Option<MemoryBlock>>,
    /// Of each shard that is held between steps.
    pub(super) shards: Vec<MemoryBlock>,
    /// Of each parameter that is gathered for a while; none while it is not there.
    pub(super) copies: Vec<MemoryBlock>,
    /// What is gathered and not yet read.
    pub(super) coming: Vec<Gathering>,
    /// Gradients on their way to shards.
    pub(super) leaving: Vec<Scattering>,
    /// Of each shard's gradient, once some of it has arrived.
    pub(super) arrived: Vec<Option<MemoryBlock>>,
    /// Of each leaf's gradient, once it has one.
    pub(super) gradients: Vec<Option<MemoryBlock>>,
    /// What autograd keeps of each operator of a call.
    pub(super) saved: Map<u32, Vec<Vec<MemoryBlock>>>,
    /// Of each call what is left for the second half of its backward.
    pub(super) left: Map<u32, Left>,
    /// What a message needs that runs beside the next instruction.
    pub(super) in_flight: Option<MemoryBlock>,
    /// For each number the values that are kept as it.
    pub(super) kept: Map<u32, Vec<Vec<MemoryBlock>>>,
    /// What is on the host.
    pub(super) offloaded: BTreeMap<Offloaded, Sent>,
    /// Blocks on their way there, by what was sent together.
    pub(super) copying: VecDeque<Vec<MemoryBlock>>,
    /// What was sent there with the last micro-batch.
    pub(super) sent: OffloadedBytes,
    /// For each reduction of gradients, by its instruction, the messages that are kept from step to step, until they are used.
    pub(super) messages: Map<usize, Option<Vec<MemoryBlock>>>,
    /// The gradients inside of a call, while its backward runs.
    pub(super) arriving: Vec<Option<MemoryBlock>>,
    /// Room for [`super::lives::inside`].
    pub(super) seen: Vec<bool>,
}

impl<'w, 'a> Walk<'w, 'a> {
    pub(super) fn new(
        cx: &'w mut Context<'a>,
        rank: &'w Rank<'a>,
        lives: &'w Lives,
        held: &'w [Dtype],
    ) -> Self {
        let bufs = rank.bufs.len();
        Self {
            cx,
            rank,
            lives,
            held,
            ledger: Ledger::default(),
            phases: vec![],
            instrs: None,
            values: vec![None; bufs],
            shards: vec![],
            copies: vec![],
            coming: vec![],
            leaving: vec![],
            arrived: vec![None; rank.shards.len()],
            gradients: vec![None; rank.leaves.len()],
            saved: Map::default(),
            left: Map::default(),
            in_flight: None,
            kept: Map::default(),
            offloaded: BTreeMap::new(),
            copying: VecDeque::new(),
            sent: OffloadedBytes::new(),
            messages: Map::default(),
            arriving: vec![None; bufs],
            seen: vec![false; bufs],
        }
    }

    pub(super) fn step(mut self, asked: u32) -> (Memory, OffloadedBytes) {
        if self.rank.body.timetable.goes_on() {
            return self.steps();
        }
        let walked = batches(self.cx.program, self.rank.body, asked);
        self.begin();
        self.further_inputs(asked.saturating_sub(walked));
        self.iterations(walked);
        self.take_gradients();
        self.report()
    }

    /// What is there in each turn of a step of so many micro-batches; nothing where steps go on into the next.
    pub(super) fn over(mut self, batches: u32, closely: bool) -> Vec<Phase> {
        if self.rank.body.timetable.goes_on() {
            return vec![];
        }
        self.instrs = closely.then(Vec::new);
        self.begin();
        self.iterations(batches);
        self.phases
    }

    fn iterations(&mut self, batches: u32) {
        let body = self.rank.body;
        let leaves = self.values.clone();
        let mut lanes: BTreeMap<u32, BatchMemory> = BTreeMap::new();
        if let Some(at) = body.position(0, Pass::Begin) {
            self.run(at, false);
            self.note(0, Pass::Begin, 0);
        }
        for (task, batch) in body.timetable.tasks(batches) {
            let lane = lanes.remove(&batch).unwrap_or_else(|| self.lane(&leaves));
            self.enter(lane);
            let settles = task.settles().is(batch, batches);
            if let Some(at) = body.position(task.block, task.pass()) {
                self.run(at, settles);
                self.note(task.block, task.pass(), batch);
            }
            lanes.insert(batch, self.leave());
        }
        self.values = leaves;
        if let Some(at) = body.position(0, Pass::End) {
            self.run(at, true);
            self.note(0, Pass::End, 0);
        }
    }

    /// What was there at most since the turn before.
    fn note(&mut self, block: u32, pass: Pass, batch: u32) {
        let instrs = self.instrs.as_mut().map(std::mem::take).unwrap_or_default();
        let bytes = |usage: &[u64; Purpose::COUNT]| usage.iter().sum::<u64>();
        let most = instrs.iter().map(|(_, usage)| bytes(usage)).fold(bytes(&self.ledger.high), u64::max);
        self.phases.push(Phase { block, pass, batch, most, instrs });
        self.ledger.mark();
    }

    /// Goes through a code, with what communicates sums of gradients or without.
    pub(super) fn run(&mut self, at: usize, settles: bool) {
        let body = self.rank.body;
        let first: usize = body.codes[..at].iter().map(|code| code.instrs.len()).sum();
        let code = &body.codes[at];
        for (index, instr) in (first..).zip(&code.instrs) {
            (self.ledger.at.instr, self.ledger.at.op) = (index, None);
            let in_flight = self.in_flight.take();
            if settles || !instr.settles() {
                self.instruction(index, instr);
            }
            if let Some(block) = in_flight {
                self.ledger.release(block);
            }
            if let Some(instrs) = &mut self.instrs {
                instrs.push((index - first, self.ledger.high));
            }
            self.drop_all(&self.lives.done[index]);
            if self.instrs.is_some() {
                self.ledger.mark();
            }
        }
        if code.pass.is_backward() || code.pass == Pass::End {
            self.take_arrived(0);
        }
    }

    /// A micro-batch before its first code: what its codes are given.
    pub(super) fn lane(&mut self, leaves: &[Option<MemoryBlock>]) -> BatchMemory {
        let mut values = leaves.to_vec();
        for code in &self.rank.body.codes {
            for buf in &code.takes {
                let purpose = if self.rank.body.buf(*buf).grad { Purpose::Working } else { Purpose::Inputs };
                values[buf.index()] = Some(self.ledger.make(self.bytes(*buf), purpose));
            }
        }
        BatchMemory { values, ..BatchMemory::default() }
    }

    /// The inputs of micro-batches that are not gone through: a step has those of all from its beginning.
    fn further_inputs(&mut self, count: u32) {
        let body = self.rank.body;
        let taken = body.codes.iter().flat_map(|code| &code.takes).filter(|buf| !body.buf(**buf).grad);
        let bytes: u64 = taken.map(|buf| self.bytes(*buf)).sum();
        self.ledger.make(u64::from(count) * bytes, Purpose::Inputs);
    }

    pub(super) fn enter(&mut self, lane: BatchMemory) {
        (self.values, self.saved, self.left) = (lane.values, lane.saved, lane.left);
        (self.kept, self.offloaded) = (lane.kept, lane.offloaded);
    }

    pub(super) fn leave(&mut self) -> BatchMemory {
        BatchMemory {
            values: std::mem::take(&mut self.values),
            saved: std::mem::take(&mut self.saved),
            left: std::mem::take(&mut self.left),
            kept: std::mem::take(&mut self.kept),
            offloaded: std::mem::take(&mut self.offloaded),
        }
    }

    /// What is there before the first instruction.
    pub(super) fn begin(&mut self) {
        for (number, shard) in self.rank.own.table.shards.iter().enumerate() {
            let purpose = match self.cx.facts.graph.tensor(shard.tensor).source {
                Source::Param { .. } => Purpose::Parameters,
                _ => Purpose::Buffers,
            };
            let bytes = self.bytes_of_shard(number);
            let offloaded = if self.is_on_host(number) { bytes } else { 0 };
            self.ledger.send(offloaded);
            self.shards.push(self.ledger.make(bytes - offloaded, purpose));
        }
        self.make_copies();
        for (number, leaf) in self.rank.body.leaves.iter().enumerate() {
            let block = match self.rank.own.leaf(number) {
                (Of::Shard(shard), region) => self.part_of_shard(leaf.tensor, shard, region),
                (Of::Copy(copy), _) => self.ledger.hold(self.copies[copy]),
            };
            self.values[leaf.buf.index()] = Some(block);
        }
        self.make_messages();
    }

    /// What a leaf is: a view of its shard, or a copy or cast of a part of it.
    fn part_of_shard(&mut self, tensor: TensorId, shard: usize, region: &Region) -> MemoryBlock {
        if self.is_part_of_shard(tensor, shard, region) {
            return self.ledger.hold(self.shards[shard]);
        }
        self.ledger.make(self.bytes_of(tensor, &region.0), Purpose::Parameters)
    }

    /// Whether a leaf is a view of its shard.
    pub(super) fn is_part_of_shard(&self, tensor: TensorId, shard: usize, region: &Region) -> bool {
        let whole = self.lengths(tensor, &self.rank.own.shard(shard).0);
        let part = self.lengths(tensor, &region.0);
        !self.is_cast(tensor) && is_view(&whole, &part)
    }

    fn instruction(&mut self, index: usize, instr: &'a Instr) {
        match instr {
            Instr::Call(call) => self.call(index, call),
            Instr::Grad(grad) => self.grad(grad),
            Instr::Slice(slice) => self.slice(slice),
            Instr::Add { from, to } => self.sum(from, *to),
            Instr::Collective(collective) => self.collective(collective),
            Instr::Exchange { exchange, from, to } => self.exchange(*exchange, from, to),
            Instr::Send { from, .. } => self.send_off(from),
            Instr::Receive { to, .. } => to.iter().for_each(|buf| self.write(*buf, None)),
            Instr::ReduceGradients { leaves, .. } => self.reduce_gradients(index, leaves),
            Instr::ExchangeGradients { exchange, leaves, shards, .. } => {
                self.exchange_gradients(*exchange, leaves, shards);
            }
            Instr::Gather { copies, .. } => self.gather(copies),
            Instr::Release { copies } => self.release(copies),
            Instr::Scatter { leaves, .. } => self.scatter(leaves),
            Instr::Part { leaves, .. } => self.part_gradients(leaves),
            Instr::ReduceShards { shards, .. } => self.reduce_shards(shards),
            Instr::Update { shard, .. } => self.update(*shard),
            Instr::Keep { id, from, offloads } => {
                let held = from.iter().filter_map(|buf| self.values[buf.index()]);
                let kept: Vec<MemoryBlock> = held.map(|block| self.ledger.keep(block)).collect();
                if *offloads {
                    self.send(Offloaded::Kept(*id), kept.iter());
                }
                self.kept.insert(id.0, vec![kept]);
            }
            Instr::Take { id, to } => {
                let kept = self.kept.remove(&id.0).into_iter().flatten().flatten();
                for (buf, block) in to.iter().zip(kept) {
                    self.values[buf.index()] = Some(self.ledger.hold(block));
                    self.ledger.drop_block(block);
                }
            }
            Instr::Fetch { what } => self.fetch(*what),
        }
    }

    fn slice(&mut self, slice: &Slice) {
        let given = extents(self.rank, &slice.extents).unwrap_or_default();
        let end = |arg: &Arg| self.rank.integer(arg).unwrap_or(0);
        let mut sizes = slice.region.iter().map(|(lo, hi)| end(hi) - end(lo));
        let part: Vec<Vec<i64>> = given.iter().map(|dim| sizes.by_ref().take(dim.len()).collect()).collect();
        let view = self.values[slice.from.index()].filter(|_| is_view(&given, &part));
        self.write(slice.to, view);
    }

    /// Of more than two the sum of the first ones lives until the last is added.
    fn sum(&mut self, from: &[BufId], to: BufId) {
        self.write(to, None);
        if from.len() > 2 {
            self.ledger.meanwhile(self.bytes(to), Purpose::Working);
        }
    }

    /// A new value takes the place of the old one.
    fn update(&mut self, shard: usize) {
        self.ledger.meanwhile(self.ledger.bytes(self.shards[shard]), Purpose::Buffers);
    }

    /// A buffer gets a value, in memory that is there or in its own.
    pub(super) fn write(&mut self, buf: BufId, there: Option<MemoryBlock>) {
        let block = match there {
            Some(block) => self.ledger.hold(block),
            None => self.ledger.make(self.bytes(buf), Purpose::Working),
        };
        self.values[buf.index()] = Some(block);
    }

    pub(super) fn drop_all(&mut self, bufs: &[BufId]) {
        for buf in bufs {
            if let Some(block) = self.values[buf.index()].take() {
                self.ledger.release(block);
            }
        }
    }

    pub(super) fn cost(&mut self, part: &LocalPart) -> Rc<Cost> {
        self.cx.finder.cost(self.cx.facts, &self.cx.store, part)
    }

    pub(super) fn code(&self) -> &RoleCode<'a> {
        &self.cx.codes[self.rank.role]
    }

    /// Of what a buffer holds.
    pub(super) fn bytes(&self, buf: BufId) -> u64 {
        if let Some(leaf) = self.code().leaf_of.get(&buf) {
            return self.bytes_of(self.rank.body.leaves[*leaf].tensor, &self.rank.own.leaf(*leaf).1.0);
        }
        let held = self.rank.held(buf);
        held.map_or(0, |held| self.bytes_of(held.of.tensor, self.cx.store.region(held.region)))
    }

    pub(super) fn bytes_of(&self, tensor: TensorId, region: &[Interval]) -> u64 {
        numel(region) * self.width(tensor)
    }

    pub(super) fn width(&self, tensor: TensorId) -> u64 {
        self.cx.facts.graph.tensor(tensor).dtype.bytes() as u64
    }

    pub(super) fn width_held(&self, tensor: TensorId) -> u64 {
        self.held_as(tensor).bytes() as u64
    }

    /// The type in which a parameter is held, and that of its gradient.
    pub(super) fn held_as(&self, tensor: TensorId) -> Dtype {
        self.held[tensor.index()]
    }

    /// Whether it is read in another type than it is held in.
    pub(super) fn is_cast(&self, tensor: TensorId) -> bool {
        self.width_held(tensor) != self.width(tensor)
    }

    pub(super) fn is_on_host(&self, shard: usize) -> bool {
        self.cx.program.lives_on_host(self.rank.own.table.shards[shard].tensor)
    }

    /// Of what a rank holds of a tensor between steps, wherever that is.
    pub(super) fn bytes_of_shard(&self, shard: usize) -> u64 {
        self.rank.bytes_of_shard(shard, self.held)
    }

    /// Bytes of a leaf's gradient.
    pub(super) fn bytes_of_gradient(&self, leaf: usize) -> u64 {
        self.rank.bytes_of_gradient(leaf, self.held)
    }

    fn lengths(&self, tensor: TensorId, region: &[Interval]) -> Vec<Vec<i64>> {
        crate::cuts::lengths(&self.cx.facts.analysis.factors[tensor.index()], region)
    }

    /// What was found.
    pub(super) fn report(self) -> (Memory, OffloadedBytes) {
        let (graph, (peak, at)) = (self.cx.facts.graph, self.ledger.peak);
        let (pass, index) = (self.rank.body.pass_at(at.instr), self.rank.body.locate(at.instr).1);
        let moment = self.rank.body.instrs().nth(at.instr).map(|instr| {
            let moved = instr.reads().chain(instr.writes()).next();
            let held = moved.and_then(|buf| self.rank.held(buf));
            let maker = held.and_then(|held| graph.producer(held.of.tensor));
            let op = at.op.or(maker.map(|(op, _)| op));
            let operator = op.map(|op| graph.describe(op));
            Moment { pass: pass.name(), instruction: (instr.kind().name(), index), operator }
        });
        let (offloaded, end) = (self.ledger.most_offloaded, self.ledger.now);
        let program = self.cx.program;
        let lives = |tensor: TensorId| program.lives_on_host(tensor);
        let comes = |tensor: TensorId| program.state_on_host.binary_search(&tensor).is_ok();
        let memory = Memory {
            peak,
            most: self.ledger.most,
            offloaded,
            at: moment,
            end,
            trained: self.trained(|tensor| !lives(tensor) && !comes(tensor)),
            trained_from_host: self.trained(comes),
            trained_on_host: self.trained(lives),
        };
        (memory, self.sent)
    }

    pub(super) fn is_trained(&self, tensor: TensorId) -> bool {
        matches!(self.cx.facts.graph.tensor(tensor).source, Source::Param { frozen: false, .. })
    }

    /// Of some parameters those that an optimizer steps.
    fn trained(&self, counts: impl Fn(TensorId) -> bool) -> (u64, u64) {
        let shards = self.rank.own.table.shards.iter().enumerate();
        let trained = shards.filter(|(_, shard)| self.is_trained(shard.tensor) && counts(shard.tensor));
        trained.fold((0, 0), |(count, bytes), (at, _)| (count + 1, bytes + self.bytes_of_shard(at)))
    }
}

/// What one micro-batch has while others run: values, what autograd keeps, and what codes keep for each other.
#[derive(Default)]
pub(super) struct BatchMemory {
    values: Vec<Option<MemoryBlock>>,
    saved: Map<u32, Vec<Vec<MemoryBlock>>>,
    left: Map<u32, Left>,
    kept: Map<u32, Vec<Vec<MemoryBlock>>>,
    offloaded: BTreeMap<Offloaded, Sent>,
}

/// So many micro-batches have all at once that a step of as many as are asked for ever has, but for the inputs of the
/// others. With one block the second finds the gradients of the first, and others but the last are as it is: with that
/// one, gradients leave. Where one loop runs over all of them before the next, they are all, and at least as many as there
/// are blocks.
pub(super) fn batches(program: &Program, body: &Body, asked: u32) -> u32 {
    let last = program.roles.iter().flat_map(|role| &role.body.codes).map(|code| code.block).max();
    let loops_for_all = body.timetable.loops.iter().filter(|it| it.iterations.is_none()).count();
    match last.unwrap_or(0) {
        0 => asked.clamp(1, 3),
        last if loops_for_all > 1 => asked.max(last + 1),
        last => enough(&body.timetable).unwrap_or(1).max(last + 1),
    }
}

/// Whether a part of a tensor is a view of it: its factors lie together again, dim by dim.
fn is_view(whole: &[Vec<i64>], part: &[Vec<i64>]) -> bool {
    whole.iter().zip(part).all(|(whole, part)| {
        let first = part.iter().position(|&size| size > 1).unwrap_or(part.len());
        whole.iter().zip(part).skip(first + 1).all(|(whole, part)| whole == part)
    })
}

#[cfg(test)]
mod tests {
    use super::is_view;

    #[test]
    fn a_part_of_which_factors_lie_apart_is_no_view() {
        let whole = [vec![3, 4], vec![8]];
        let view = |[a, b, c]: [i64; 3]| is_view(&whole, &[vec![a, b], vec![c]]);
        assert!([[3, 4, 2], [2, 4, 8], [1, 2, 8], [1, 1, 1]].into_iter().all(view));
        assert!(![[3, 2, 8], [2, 1, 8], [3, 1, 2]].into_iter().any(view));
    }
}
