//! Takes all ranks through a step, each as far as it comes before it waits for others.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

use check::{InstrCost, RankTrace};
use cluster::{OpCost, Sort};
use diag::{Error, Result};
use hashing::Map;
use program::{ExchangeId, Instr, Kind, Offloaded, Pass, RankId, Which};

use crate::passes::lasting;
use crate::price::{Groups, Price, prices};
use crate::rank::{Course, SimulatedRank, Tick};
use crate::rendezvous::{Key, Members, Rendezvous};
use crate::{Lane, Scene, Simulation, Span, What};

/// So many scatters may be on their way while a further one is sent.
const SCATTERS: usize = 1;
/// Of so many ranks everything is noted.
const WATCHED: usize = 64;

/// What one rank sends another: the table, the micro-batch, and both.
type Message = (ExchangeId, u32, RankId, RankId);

pub(crate) struct Engine<'s> {
    pub(crate) scene: Scene<'s>,
    pub(crate) groups: Groups<'s>,
    prices: Vec<Rc<Vec<Price>>>,
    pub(crate) ranks: Vec<SimulatedRank<'s>>,
    /// Whether who does what when is told.
    pub(crate) is_noted: bool,
    /// The ranks of which it is, and whose turns are told apart.
    watched: Vec<bool>,
    /// The place of each rank that is followed.
    pub(crate) places: BTreeMap<RankId, usize>,
    /// For each exchange and rank, the followed ranks from which something comes.
    pub(crate) senders: BTreeMap<(ExchangeId, RankId), Vec<RankId>>,
    /// With the message that each is, until all members know when it ends.
    pub(crate) open: Map<Key, (Rendezvous, Option<usize>)>,
    /// Who comes to the first collective of each group and exchange, and to all others.
    pub(crate) members: Map<Key, Members>,
    /// The message that each is, when it left, and when it arrived: until it is received.
    pub(crate) letters: BTreeMap<Message, (Option<usize>, f64, f64)>,
    /// Ranks that wait for a letter.
    pub(crate) expecting: BTreeMap<Message, Vec<usize>>,
    pub(crate) ready: VecDeque<usize>,
    pub(crate) found: Simulation,
}

impl<'s> Engine<'s> {
    pub(crate) fn new(scene: &Scene<'s>, is_noted: bool) -> Self {
        let roles = &scene.program.roles;
        let courses: Vec<Course> = roles.iter().map(|role| Course::new(role, scene.batches)).collect();
        let simulated = |rank_trace: &'s RankTrace| {
            SimulatedRank::new(&roles[rank_trace.role].body, rank_trace, &courses[rank_trace.role])
        };
        let mut ranks: Vec<SimulatedRank<'s>> = scene.rank_traces.iter().map(simulated).collect();
        for rank in &mut ranks {
            rank.takes(scene.cluster.device(rank.rank_trace.rank.0).runtime.step);
        }
        let places: BTreeMap<RankId, usize> =
            scene.rank_traces.iter().enumerate().map(|(at, rank_trace)| (rank_trace.rank, at)).collect();
        let mut senders: BTreeMap<(ExchangeId, RankId), Vec<RankId>> = BTreeMap::new();
        let received = |instr: &Instr| match instr {
            Instr::Receive { exchange, .. } => Some(*exchange),
            _ => None,
        };
        let instrs = roles.iter().flat_map(|role| role.body.instrs());
        for id in instrs.filter_map(received).collect::<BTreeSet<ExchangeId>>() {
            let table = &scene.program.exchanges[id.index()];
            for piece in table.pieces.iter() {
                let (from, to) = (table.sources[piece.from].0, table.targets[piece.to].0);
                if from != to && places.contains_key(&from) && places.contains_key(&to) {
                    senders.entry((id, to)).or_default().push(from);
                }
            }
        }
        senders.values_mut().for_each(|from| {
            from.sort_unstable();
            from.dedup();
        });
        Self {
            scene: *scene,
            is_noted,
            groups: Groups::new(scene.program, scene.cluster),
            prices: prices(scene),
            ready: VecDeque::new(),
            watched: watched(&ranks),
            ranks,
            places,
            senders,
            open: Map::default(),
            members: Map::default(),
            letters: BTreeMap::new(),
            expecting: BTreeMap::new(),
            found: Simulation::default(),
        }
    }

    /// Each rank to the beginning of a turn; whether all of them come so far without what others do later.
    pub(crate) fn goes_to(&mut self, tick: impl Fn(&SimulatedRank<'s>) -> usize) -> bool {
        for (at, rank) in self.ranks.iter_mut().enumerate() {
            self.ready.extend(rank.is_at_its_end().then_some(at));
            rank.until = tick(rank);
        }
        self.go_on();
        self.ranks.iter().all(SimulatedRank::is_at_its_end)
    }

    fn go_on(&mut self) {
        while let Some(at) = self.ready.pop_front() {
            self.advance(at);
        }
    }

    /// To the end of the step.
    pub(crate) fn end(mut self) -> Result<Simulation> {
        self.goes_to(|rank| rank.iterations.len());
        if let Some(rank) = self.ranks.iter().find(|rank| rank.tick().is_some()) {
            let what = format!("in the simulation rank {} waits for ever", rank.rank_trace.rank.0);
            return Err(Error::new("SW0911", what)
                .why("the program was proved to end: this is a bug of the simulation")
                .fix("report it, with the model and the plan"));
        }
        debug_assert!(self.letters.is_empty(), "what is sent is received");
        for at in 0..self.ranks.len() {
            self.update(at);
        }
        self.found.gone_through = self.scene.batches;
        self.found.seconds = self.ranks.iter().map(|rank| rank.clock).fold(0.0, f64::max);
        self.found.passes = lasting(&self.ranks);
        for rank in self.ranks {
            let idle = rank.lane.idle + self.found.seconds - rank.clock;
            self.found.ranks.push(Lane { idle, ..rank.lane });
            self.found.parts.extend(self.is_noted.then_some(rank.parts));
        }
        Ok(self.found)
    }

    /// As far as a rank comes by itself.
    fn advance(&mut self, at: usize) {
        while let Some(tick) = self.ranks[at].tick().filter(|_| !self.ranks[at].is_at_its_end()) {
            let (body, instr) = (self.ranks[at].body, self.ranks[at].at.1);
            let Some(next) = body.codes[tick.code].instrs.get(instr) else {
                if !self.sync_grads(at, tick, 0) {
                    return;
                }
                let rank = &mut self.ranks[at];
                rank.at = (rank.at.0 + 1, 0);
                continue;
            };
            let skipped = next.settles() && !tick.settles;
            if !skipped && !self.instruction(at, tick, next) {
                return;
            }
            self.ranks[at].at.1 += 1;
        }
    }

    /// Whether it is over; if not, the rank is asked again once what it waits for is there.
    fn instruction(&mut self, at: usize, tick: Tick, instr: &'s Instr) -> bool {
        match instr {
            Instr::Call(_) => self.has_copies(at, tick) && self.local(at, tick),
            Instr::Grad(grad) => {
                self.fetched(at, Offloaded::Call(grad.call));
                self.has_copies(at, tick)
                    && match grad.which {
                        Which::Weights => self.second_half(at, tick),
                        Which::Both | Which::Inputs => self.local(at, tick),
                    }
            }
            Instr::Fetch { what } => self.fetch(at, tick, *what),
            Instr::Take { id, .. } => {
                self.fetched(at, Offloaded::Kept(*id));
                true
            }
            Instr::Collective(message) if message.overlaps => {
                self.ranks[at].in_flight = self.goes_on(at, tick, instr);
                true
            }
            Instr::Collective(_) => self.meets(at, tick, instr),
            Instr::ReduceShards { .. } | Instr::Exchange { .. } | Instr::ExchangeGradients { .. } => {
                self.sync_grads(at, tick, 0) && self.meets(at, tick, instr)
            }
            Instr::Gather { copies, .. } => {
                let host = self.price(at, tick).host;
                self.ranks[at].brings(host, copies);
                if let Some(key) = self.goes_on(at, tick, instr) {
                    self.ranks[at].coming.push(key, copies.clone());
                }
                true
            }
            Instr::Scatter { .. } | Instr::ReduceGradients { .. } => {
                let allowed = if instr.kind() == Kind::Scatter { SCATTERS } else { usize::MAX };
                self.sync_grads(at, tick, allowed) && {
                    match self.goes_on(at, tick, instr) {
                        Some(key) => {
                            let rank = &mut self.ranks[at];
                            rank.settling.push((key, rank.at.1));
                        }
                        None => _ = self.local(at, tick),
                    }
                    true
                }
            }
            Instr::Send { exchange, .. } => self.send(at, tick, *exchange),
            Instr::Receive { exchange, .. } => self.receive(at, tick, *exchange),
            Instr::Slice(_)
            | Instr::Add { .. }
            | Instr::Part { .. }
            | Instr::Release { .. }
            | Instr::Update { .. }
            | Instr::Keep { .. } => self.local(at, tick),
        }
    }

    /// The second half of a backward, and the message that runs beside it.
    fn second_half(&mut self, at: usize, tick: Tick) -> bool {
        if !std::mem::replace(&mut self.ranks[at].is_computed, true) {
            self.local(at, tick);
        }
        if self.ranks[at].in_flight.is_some_and(|key| !self.awaits(at, key)) {
            return false;
        }
        (self.ranks[at].in_flight, self.ranks[at].is_computed) = (None, false);
        true
    }

    fn price(&self, at: usize, tick: Tick) -> Price {
        let rank = &self.ranks[at];
        self.prices[at][rank.number(tick, rank.at.1)]
    }

    pub(crate) fn instr_cost(&self, at: usize, tick: Tick) -> &'s InstrCost {
        let rank = &self.ranks[at];
        &rank.rank_trace.instr_costs[rank.number(tick, rank.at.1)]
    }

    /// What the instruction sends to each other rank.
    pub(crate) fn sent(&self, at: usize, tick: Tick) -> &'s [(RankId, u64)] {
        let rank = &self.ranks[at];
        rank.rank_trace.sent(rank.number(tick, rank.at.1))
    }

    pub(crate) fn local(&mut self, at: usize, tick: Tick) -> bool {
        self.does(at, tick, self.ranks[at].at.1);
        true
    }

    /// What an instruction of the code that runs takes of the device itself, and what goes to the host after it.
    pub(crate) fn does(&mut self, at: usize, tick: Tick, instr: usize) {
        let adds = tick.batch > 0;
        let rank = &mut self.ranks[at];
        let price = self.prices[at][rank.number(tick, instr)];
        let work = price.work + if adds { price.added } else { 0.0 };
        let (pass, kind) = (rank.pass(tick), rank.body.codes[tick.code].instrs[instr].kind());
        let spent = match kind {
            Kind::Call if pass == Pass::Forward => &mut rank.lane.forward,
            Kind::Call => &mut rank.lane.recomputed,
            Kind::Grad => &mut rank.lane.backward,
            _ => &mut rank.lane.copies,
        };
        *spent += work;
        self.spends(at, tick, What::Instr(kind, instr), work);
        self.ranks[at].launches(price.starts);
        let rank = &mut self.ranks[at];
        match kind {
            _ if price.host <= 0.0 => {}
            Kind::Call | Kind::Keep => rank.sends(price.host),
            _ => rank.offloads(price.host, if adds { price.added_on_host } else { 0.0 }),
        }
    }

    /// Brings something from the host, while the device goes on.
    fn fetch(&mut self, at: usize, tick: Tick, what: Offloaded) -> bool {
        let price = self.price(at, tick);
        let rank = &mut self.ranks[at];
        rank.has_sent_first();
        let end = rank.copies_for(price.host);
        rank.fetching.push((what, end));
        true
    }

    fn fetched(&mut self, at: usize, what: Offloaded) {
        let rank = &mut self.ranks[at];
        let Some(place) = rank.fetching.iter().position(|(other, _)| *other == what) else { return };
        let (_, end) = rank.fetching.remove(place);
        rank.waits_until(end);
    }

    /// The optimizer's step: of what is on the device, and then of what is on the host.
    fn update(&mut self, at: usize) {
        let rank = &mut self.ranks[at];
        let id = rank.rank_trace.rank;
        let device = self.scene.cluster.device(id.0);
        let updates = self.scene.updates.get(id.index()).copied().unwrap_or_default();
        let op_cost = OpCost { operations: 0.0, bytes: updates.here as f64 };
        let mut seconds = device.seconds_of(op_cost, Sort::UPDATE);
        let comes = device.seconds_to_host(updates.comes as f64);
        if comes > 0.0 {
            seconds += rank.copies_for(comes) - rank.clock + comes;
        }
        if updates.on_host > 0 {
            let gradients = (rank.sums - rank.clock - seconds).max(0.0);
            seconds += gradients + device.seconds_on_host(updates.on_host as f64);
        }
        let last = Tick { code: 0, batch: self.scene.batches.saturating_sub(1), settles: true };
        self.ranks[at].lane.update += seconds;
        self.spends(at, last, What::Update, seconds);
    }

    fn spends(&mut self, at: usize, tick: Tick, what: What, seconds: f64) {
        let before = self.ranks[at].clock;
        self.ranks[at].clock += seconds;
        if seconds > 0.0 {
            self.span(at, tick, what, before);
        }
    }

    /// Notes what a rank did since a moment.
    pub(crate) fn span(&mut self, at: usize, tick: Tick, what: What, start: f64) {
        let rank = &self.ranks[at];
        let Some(code) = rank.body.codes.get(tick.code).filter(|_| self.watched[at]) else { return };
        if self.is_noted {
            let (rank, end, block, pass) = (rank.rank_trace.rank, rank.clock, code.block, code.pass);
            self.found.spans.push(Span { rank, what, pass, block, batch: tick.batch, start, end });
        }
        self.ranks[at].spends(tick, start);
    }
}

/// The first rank of each role, and all where there are few.
fn watched(ranks: &[SimulatedRank<'_>]) -> Vec<bool> {
    let mut roles = BTreeSet::new();
    let all = ranks.len() <= WATCHED;
    ranks.iter().map(|rank| roles.insert(rank.rank_trace.role) || all).collect()
}
