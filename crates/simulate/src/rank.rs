//! One rank on its way through a step.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use check::RankTrace;
use program::{
    Body, BufId, COPIES_IN_FLIGHT, Call, CallId, ExchangeId, GroupingId, Instr, Of, Offloaded, Pass, Role,
};

use crate::coming::Coming;
use crate::rendezvous::Key;
use crate::spent::Spent;
use crate::{Lane, TakesPart};

/// A code that runs, for a micro-batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tick {
    pub(crate) code: usize,
    pub(crate) batch: u32,
    /// Whether what communicates sums of gradients runs.
    pub(crate) settles: bool,
}

/// What all ranks of a role run.
pub(crate) struct Course {
    iterations: Rc<[Tick]>,
    /// The number of each code's first instruction.
    first: Rc<[usize]>,
    /// For each instruction the copies that a call reads, and its backward again.
    reads: Rc<[Vec<usize>]>,
}

impl Course {
    pub(crate) fn new(role: &Role, batches: u32) -> Self {
        let body = &role.body;
        let mut first = vec![];
        let mut all = 0;
        for code in &body.codes {
            first.push(all);
            all += code.instrs.len();
        }
        let iterations = iterations(body, batches);
        Self { iterations: iterations.into(), first: first.into(), reads: reads(role).into() }
    }
}

fn reads(role: &Role) -> Vec<Vec<usize>> {
    let mut copies: BTreeMap<BufId, Vec<usize>> = BTreeMap::new();
    for (leaf, (of, _)) in role.body.leaves.iter().zip(&role.table.leaves) {
        if let Of::Copy(copy) = of {
            copies.entry(leaf.buf).or_default().push(*copy);
        }
    }
    let of_call = |call: &Call| -> Vec<usize> {
        call.inputs.iter().filter_map(|buf| copies.get(buf)).flatten().copied().collect()
    };
    let mut calls: BTreeMap<CallId, Vec<usize>> = BTreeMap::new();
    for call in role.body.calls() {
        // A call that runs again has the id of the first.
        calls.entry(call.id).or_insert_with(|| of_call(call));
    }
    let read = |instr: &Instr| match instr {
        Instr::Call(call) => of_call(call),
        Instr::Grad(grad) => calls.get(&grad.call).cloned().unwrap_or_default(),
        _ => vec![],
    };
    role.body.instrs().map(read).collect()
}

pub(crate) struct SimulatedRank<'s> {
    pub(crate) rank_trace: &'s RankTrace,
    pub(crate) body: &'s Body,
    pub(crate) iterations: Rc<[Tick]>,
    /// Of each turn, where the rank is watched.
    pub(crate) spent: Vec<Spent>,
    first: Rc<[usize]>,
    reads: Rc<[Vec<usize>]>,
    /// The turn, and the instruction in its code.
    pub(crate) at: (usize, usize),
    /// The turn to whose beginning it goes on.
    pub(crate) until: usize,
    pub(crate) clock: f64,
    /// The host's clock, where it has one: what it has started until then.
    pub(crate) started: f64,
    /// When the last message that it sent has left.
    pub(crate) sent: f64,
    /// When its lines are free, and what is on each: one to the devices of its node, one to other nodes.
    pub(crate) lines: [f64; 2],
    pub(crate) queues: [VecDeque<Key>; 2],
    /// When the last that went to the host or came from there is over, and what comes from there.
    pub(crate) host: f64,
    pub(crate) fetching: Vec<(Offloaded, f64)>,
    /// When what is on its way there will be, the first first.
    pub(crate) copying: VecDeque<f64>,
    /// When the gradients that went there last are there, and when the host has added up those that it has.
    pub(crate) offloaded: f64,
    pub(crate) sums: f64,
    /// Copies that come from there, and when they are here.
    pub(crate) brought: Vec<(f64, Vec<usize>)>,
    /// What was sent ahead, and the copies that it brings.
    pub(crate) coming: Coming,
    /// What ends with the code, and by which of its instructions it began.
    pub(crate) settling: Vec<(Key, usize)>,
    /// The message that runs beside the second half of a backward, and whether that has computed.
    pub(crate) in_flight: Option<Key>,
    pub(crate) is_computed: bool,
    /// The collective at which it is, once it has come.
    pub(crate) came: Option<Key>,
    /// How often it came to each group and exchange.
    groups: BTreeMap<GroupingId, usize>,
    exchanges: BTreeMap<ExchangeId, usize>,
    pub(crate) lane: Lane,
    pub(crate) parts: Vec<TakesPart>,
}

impl<'s> SimulatedRank<'s> {
    pub(crate) fn new(body: &'s Body, rank_trace: &'s RankTrace, course: &Course) -> Self {
        Self {
            rank_trace,
            body,
            spent: vec![Spent::default(); course.iterations.len()],
            iterations: Rc::clone(&course.iterations),
            first: Rc::clone(&course.first),
            reads: Rc::clone(&course.reads),
            at: (0, 0),
            until: 0,
            clock: 0.0,
            started: 0.0,
            sent: 0.0,
            lines: [0.0; 2],
            queues: Default::default(),
            host: 0.0,
            fetching: vec![],
            copying: VecDeque::new(),
            offloaded: 0.0,
            sums: 0.0,
            brought: vec![],
            coming: Coming::default(),
            settling: vec![],
            in_flight: None,
            is_computed: false,
            came: None,
            groups: BTreeMap::new(),
            exchanges: BTreeMap::new(),
            lane: Lane::new(rank_trace.rank),
            parts: vec![],
        }
    }

    /// The turn that it is in; none once the step is over.
    pub(crate) fn tick(&self) -> Option<Tick> {
        self.iterations.get(self.at.0).copied()
    }

    pub(crate) fn is_at_its_end(&self) -> bool {
        self.at.0 == self.until
    }

    /// Whether nothing goes on beside it, but messages from other blocks.
    pub(crate) fn is_free(&self) -> bool {
        let are_empty = self.queues.iter().all(VecDeque::is_empty);
        let is_empty = are_empty && self.coming.is_empty() && self.settling.is_empty();
        is_empty
            && self.fetching.is_empty()
            && self.brought.is_empty()
            && self.came.is_none()
            && self.in_flight.is_none()
    }

    /// The number of an instruction of the code that runs, over all codes.
    pub(crate) fn number(&self, tick: Tick, instr: usize) -> usize {
        self.first[tick.code] + instr
    }

    pub(crate) fn pass(&self, tick: Tick) -> Pass {
        self.body.codes[tick.code].pass
    }

    /// How often it has come to a group or an exchange, before.
    pub(crate) fn met(&mut self, what: Result<GroupingId, ExchangeId>) -> usize {
        let count = match what {
            Ok(grouping) => self.groups.entry(grouping).or_default(),
            Err(exchange) => self.exchanges.entry(exchange).or_default(),
        };
        *count += 1;
        *count - 1
    }

    /// In a turn it did something, or waited, since a moment.
    pub(crate) fn spends(&mut self, tick: Tick, start: f64) {
        let is_same = |other: &Tick| (other.code, other.batch) == (tick.code, tick.batch);
        // The optimizer's step comes after all turns, as a part of one that is over.
        let at =
            if self.tick().is_some() { Some(self.at.0) } else { self.iterations.iter().position(is_same) };
        if let Some(at) = at {
            self.spent[at].does(self.clock - start);
        }
    }

    /// So many seconds for what is no instruction.
    pub(crate) fn takes(&mut self, seconds: f64) {
        self.clock += seconds;
        self.lane.copies += seconds;
    }

    /// The host starts something in so many seconds; the device is not done with it before.
    pub(crate) fn launches(&mut self, seconds: f64) {
        self.started += seconds;
        if seconds > 0.0 {
            self.takes((self.started - self.clock).max(0.0));
        }
    }

    /// What backward needs goes to the host, beside what is computed, and waits for the first on its way there if that are
    /// as many as may be.
    pub(crate) fn sends(&mut self, seconds: f64) {
        if self.copying.len() == COPIES_IN_FLIGHT {
            self.has_sent_first();
        }
        let end = self.copies_for(seconds);
        self.copying.push_back(end);
    }

    /// Waits for the first of what is on its way to the host.
    pub(crate) fn has_sent_first(&mut self) {
        if let Some(end) = self.copying.pop_front() {
            self.waits_until(end);
        }
    }

    /// Gradients go to the host, beside what is computed, once those that went there before are there. The host then adds
    /// them to what it has in so many seconds.
    pub(crate) fn offloads(&mut self, seconds: f64, sums: f64) {
        self.waits_until(self.offloaded);
        self.offloaded = self.copies_for(seconds);
        self.sums = self.sums.max(self.offloaded) + sums;
    }

    /// Waits for what is copied meanwhile.
    pub(crate) fn waits_until(&mut self, end: f64) {
        let waits = (end - self.clock).max(0.0);
        self.lane.exposed += waits;
        self.clock += waits;
    }

    /// Copies to the host or from there, after those before: says when that is over.
    pub(crate) fn copies_for(&mut self, seconds: f64) -> f64 {
        self.host = self.host.max(self.clock) + seconds;
        self.host
    }

    /// Parts of copies come from the host, in so many seconds.
    pub(crate) fn brings(&mut self, seconds: f64, copies: &[usize]) {
        if seconds > 0.0 {
            let end = self.copies_for(seconds);
            self.brought.push((end, copies.to_vec()));
        }
    }

    /// Waits for what comes from the host of these copies.
    pub(crate) fn has_from_host(&mut self, read: &[usize]) {
        let mut end = self.clock;
        self.brought.retain(|(there, copies)| {
            let is_read = copies.iter().any(|copy| read.contains(copy));
            end = if is_read { end.max(*there) } else { end };
            !is_read
        });
        self.waits_until(end);
    }

    /// For each instruction the copies that it reads.
    pub(crate) fn reads(&self) -> Rc<[Vec<usize>]> {
        Rc::clone(&self.reads)
    }
}

/// What a rank runs in a step, one after the other.
pub(crate) fn iterations(body: &Body, batches: u32) -> Vec<Tick> {
    let once = |pass: Pass| body.position(0, pass).map(|code| Tick { code, batch: 0, settles: true });
    let mut iterations: Vec<Tick> = once(Pass::Begin).into_iter().collect();
    iterations.extend(body.timetable.tasks(batches).filter_map(|(task, batch)| {
        let code = body.position(task.block, task.pass())?;
        Some(Tick { code, batch, settles: task.settles().is(batch, batches) })
    }));
    iterations.extend(once(Pass::End));
    iterations
}
