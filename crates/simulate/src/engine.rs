//! Takes all ranks through a step, each as far as it comes before it waits for others.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

use check::Deed;
use cluster::{Effort, Sort};
use diag::{Error, Result};
use program::{Away, Body, BufId, CallId, ExchangeId, Instr, Kind, Pass, RankId, Which};

use crate::meeting::{Key, Meeting};
use crate::passes::lasting;
use crate::price::{Groups, Price, prices};
use crate::rank::{Rank, Turn};
use crate::{Lane, Scene, Simulation, Span, What};

/// So many scatters may be on their way while a further one is sent.
const SCATTERS: usize = 1;
/// Of so many ranks everything is noted.
const WATCHED: usize = 64;

/// What one rank sends another: the table, the micro-batch, and both.
type Letter = (ExchangeId, u32, RankId, RankId);

pub(crate) struct Engine<'s> {
    pub(crate) scene: Scene<'s>,
    pub(crate) groups: Groups<'s>,
    prices: Vec<Rc<Vec<Price>>>,
    /// For each role what its calls read.
    inputs: Vec<BTreeMap<CallId, &'s [BufId]>>,
    pub(crate) ranks: Vec<Rank<'s>>,
    /// Whether who does what when is told.
    pub(crate) is_noted: bool,
    /// The ranks of which it is, and whose turns are told apart.
    watched: Vec<bool>,
    /// The place of each rank that is followed.
    pub(crate) places: BTreeMap<RankId, usize>,
    /// For each exchange and rank, the followed ranks from which something comes.
    pub(crate) senders: BTreeMap<(ExchangeId, RankId), Vec<RankId>>,
    /// With the message that each is, until all members know when it ends.
    pub(crate) meetings: BTreeMap<Key, (Meeting, Option<usize>)>,
    /// The message that each is, when it left, and when it arrived: until it is received.
    pub(crate) letters: BTreeMap<Letter, (Option<usize>, f64, f64)>,
    /// Ranks that wait for a letter.
    pub(crate) expecting: BTreeMap<Letter, Vec<usize>>,
    pub(crate) ready: VecDeque<usize>,
    pub(crate) found: Simulation,
}

impl<'s> Engine<'s> {
    pub(crate) fn new(scene: &Scene<'s>, is_noted: bool) -> Self {
        let mut ranks: Vec<Rank<'s>> =
            scene.courses.iter().map(|course| Rank::new(scene.program, course, scene.batches)).collect();
        for rank in &mut ranks {
            rank.takes(scene.cluster.device(rank.course.rank.0).runtime.step);
        }
        let places: BTreeMap<RankId, usize> =
            scene.courses.iter().enumerate().map(|(at, course)| (course.rank, at)).collect();
        let mut senders: BTreeMap<(ExchangeId, RankId), Vec<RankId>> = BTreeMap::new();
        for (at, table) in scene.program.exchanges.iter().enumerate() {
            for piece in &table.pieces {
                let (from, to) = (table.sources[piece.from].0, table.targets[piece.to].0);
                if from != to && places.contains_key(&from) && places.contains_key(&to) {
                    senders.entry((ExchangeId::new(at), to)).or_default().push(from);
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
            inputs: scene.program.roles.iter().map(|role| call_inputs(&role.body)).collect(),
            ready: VecDeque::new(),
            watched: watched(&ranks),
            ranks,
            places,
            senders,
            meetings: BTreeMap::new(),
            letters: BTreeMap::new(),
            expecting: BTreeMap::new(),
            found: Simulation::default(),
        }
    }

    /// Each rank to the beginning of a turn; whether all of them come so far without what others do later.
    pub(crate) fn goes_to(&mut self, turn: impl Fn(&Rank<'s>) -> usize) -> bool {
        for (at, rank) in self.ranks.iter_mut().enumerate() {
            self.ready.extend(rank.is_at_its_end().then_some(at));
            rank.until = turn(rank);
        }
        self.go_on();
        self.ranks.iter().all(Rank::is_at_its_end)
    }

    fn go_on(&mut self) {
        while let Some(at) = self.ready.pop_front() {
            self.advance(at);
        }
    }

    /// To the end of the step.
    pub(crate) fn end(mut self) -> Result<Simulation> {
        self.goes_to(|rank| rank.turns.len());
        if let Some(rank) = self.ranks.iter().find(|rank| rank.turn().is_some()) {
            let what = format!("in the simulation rank {} waits for ever", rank.course.rank.0);
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
        while let Some(turn) = self.ranks[at].turn().filter(|_| !self.ranks[at].is_at_its_end()) {
            let (body, instr) = (self.ranks[at].body, self.ranks[at].at.1);
            let Some(next) = body.codes[turn.code].instrs.get(instr) else {
                if !self.settle(at, turn, 0) {
                    return;
                }
                let rank = &mut self.ranks[at];
                rank.at = (rank.at.0 + 1, 0);
                continue;
            };
            let skipped = next.settles() && !turn.settles;
            if !skipped && !self.instruction(at, turn, next) {
                return;
            }
            self.ranks[at].at.1 += 1;
        }
    }

    /// Whether it is over; if not, the rank is asked again once what it waits for is there.
    fn instruction(&mut self, at: usize, turn: Turn, instr: &'s Instr) -> bool {
        match instr {
            Instr::Call(call) => self.has_copies(at, || &call.inputs) && self.local(at, turn),
            Instr::Grad(grad) => {
                self.fetched(at, Away::Call(grad.call));
                let read = self.inputs[self.ranks[at].course.role].get(&grad.call).copied();
                self.has_copies(at, || read.unwrap_or_default())
                    && match grad.which {
                        Which::Weights => self.second_half(at, turn),
                        Which::Both | Which::Inputs => self.local(at, turn),
                    }
            }
            Instr::Fetch { what } => self.fetch(at, turn, *what),
            Instr::Take { id, .. } => {
                self.fetched(at, Away::Kept(*id));
                true
            }
            Instr::Collective(message) if message.overlaps => {
                self.ranks[at].in_flight = self.goes_on(at, turn, instr);
                true
            }
            Instr::Collective(_) => self.meets(at, turn, instr),
            Instr::ReduceShards { .. } | Instr::Exchange { .. } | Instr::ExchangeGradients { .. } => {
                self.settle(at, turn, 0) && self.meets(at, turn, instr)
            }
            Instr::Gather { copies, .. } => {
                let host = self.price(at, turn).host;
                self.ranks[at].brings(host, copies);
                if let Some(key) = self.goes_on(at, turn, instr) {
                    self.ranks[at].coming.push((key, copies.clone()));
                }
                true
            }
            Instr::Scatter { .. } | Instr::ReduceGradients { .. } => {
                let allowed = if instr.kind() == Kind::Scatter { SCATTERS } else { usize::MAX };
                self.settle(at, turn, allowed) && {
                    match self.goes_on(at, turn, instr) {
                        Some(key) => {
                            let rank = &mut self.ranks[at];
                            rank.settling.push((key, rank.at.1));
                        }
                        None => _ = self.local(at, turn),
                    }
                    true
                }
            }
            Instr::Send { exchange, .. } => self.send(at, turn, *exchange),
            Instr::Receive { exchange, .. } => self.receive(at, turn, *exchange),
            Instr::Slice(_)
            | Instr::Add { .. }
            | Instr::Part { .. }
            | Instr::Release { .. }
            | Instr::Update { .. }
            | Instr::Keep { .. } => self.local(at, turn),
        }
    }

    /// The second half of a backward, and the message that runs beside it.
    fn second_half(&mut self, at: usize, turn: Turn) -> bool {
        if !std::mem::replace(&mut self.ranks[at].is_computed, true) {
            self.local(at, turn);
        }
        if self.ranks[at].in_flight.is_some_and(|key| !self.awaits(at, key)) {
            return false;
        }
        (self.ranks[at].in_flight, self.ranks[at].is_computed) = (None, false);
        true
    }

    fn price(&self, at: usize, turn: Turn) -> Price {
        let rank = &self.ranks[at];
        self.prices[at][rank.number(turn, rank.at.1)]
    }

    pub(crate) fn deed(&self, at: usize, turn: Turn) -> &'s Deed {
        let rank = &self.ranks[at];
        &rank.course.deeds[rank.number(turn, rank.at.1)]
    }

    pub(crate) fn local(&mut self, at: usize, turn: Turn) -> bool {
        self.does(at, turn, self.ranks[at].at.1);
        true
    }

    /// What an instruction of the code that runs takes of the device itself, and what goes to the host after it.
    pub(crate) fn does(&mut self, at: usize, turn: Turn, instr: usize) {
        let adds = turn.batch > 0;
        let rank = &mut self.ranks[at];
        let price = self.prices[at][rank.number(turn, instr)];
        let work = price.work + if adds { price.added } else { 0.0 };
        let (pass, kind) = (rank.pass(turn), rank.body.codes[turn.code].instrs[instr].kind());
        let spent = match kind {
            Kind::Call if pass == Pass::Forward => &mut rank.lane.forward,
            Kind::Call => &mut rank.lane.again,
            Kind::Grad => &mut rank.lane.backward,
            _ => &mut rank.lane.copies,
        };
        *spent += work;
        self.spends(at, turn, What::Instr(kind, instr), work);
        self.ranks[at].is_told(price.starts);
        if price.host > 0.0 {
            let sums = if adds { price.added_on_host } else { 0.0 };
            self.ranks[at].sends_away(price.host, sums);
        }
    }

    /// Brings something from the host, while the device goes on.
    fn fetch(&mut self, at: usize, turn: Turn, what: Away) -> bool {
        let price = self.price(at, turn);
        let rank = &mut self.ranks[at];
        let end = rank.copies_for(price.host);
        rank.fetching.push((what, end));
        true
    }

    fn fetched(&mut self, at: usize, what: Away) {
        let rank = &mut self.ranks[at];
        let Some(place) = rank.fetching.iter().position(|(other, _)| *other == what) else { return };
        let (_, end) = rank.fetching.remove(place);
        rank.waits_until(end);
    }

    /// The optimizer's step: of what is on the device, and then of what is on the host.
    fn update(&mut self, at: usize) {
        let rank = &mut self.ranks[at];
        let id = rank.course.rank;
        let device = self.scene.cluster.device(id.0);
        let updates = self.scene.updates.get(id.index()).copied().unwrap_or_default();
        let effort = Effort { operations: 0.0, bytes: updates.here as f64 };
        let mut seconds = device.seconds_of(effort, Sort::UPDATE);
        let comes = device.seconds_to_host(updates.comes as f64);
        if comes > 0.0 {
            seconds += rank.copies_for(comes) - rank.clock + comes;
        }
        if updates.on_host > 0 {
            let gradients = (rank.sums - rank.clock - seconds).max(0.0);
            seconds += gradients + device.seconds_on_host(updates.on_host as f64);
        }
        let last = Turn { code: 0, batch: self.scene.batches.saturating_sub(1), settles: true };
        self.ranks[at].lane.update += seconds;
        self.spends(at, last, What::Update, seconds);
    }

    fn spends(&mut self, at: usize, turn: Turn, what: What, seconds: f64) {
        let before = self.ranks[at].clock;
        self.ranks[at].clock += seconds;
        if seconds > 0.0 {
            self.span(at, turn, what, before);
        }
    }

    /// Notes what a rank did since a moment.
    pub(crate) fn span(&mut self, at: usize, turn: Turn, what: What, start: f64) {
        let rank = &self.ranks[at];
        let Some(code) = rank.body.codes.get(turn.code).filter(|_| self.watched[at]) else { return };
        if self.is_noted {
            let (rank, end, block, pass) = (rank.course.rank, rank.clock, code.block, code.pass);
            self.found.spans.push(Span { rank, what, pass, block, batch: turn.batch, start, end });
        }
        self.ranks[at].spends(turn, start);
    }
}

fn call_inputs(body: &Body) -> BTreeMap<CallId, &[BufId]> {
    let mut found = BTreeMap::new();
    for instr in body.instrs() {
        if let Instr::Call(call) = instr {
            // A call that runs again has the id of the first.
            found.entry(call.id).or_insert(&call.inputs[..]);
        }
    }
    found
}

/// The first rank of each role, and all where there are few.
fn watched(ranks: &[Rank<'_>]) -> Vec<bool> {
    let mut roles = BTreeSet::new();
    let all = ranks.len() <= WATCHED;
    ranks.iter().map(|rank| roles.insert(rank.course.role) || all).collect()
}
