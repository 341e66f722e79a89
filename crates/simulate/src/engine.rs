//! Takes all ranks through a step, each as far as it comes before it waits for others.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

use check::Deed;
use cluster::{Crowd, Effort};
use diag::{Error, Result};
use graph::Dtype;
use program::{Away, CallId, ExchangeId, Instr, Kind, Pass, RankId};

use crate::meeting::{Key, Meeting};
use crate::price::{Groups, Price, prices};
use crate::rank::{Rank, Turn};
use crate::{Lane, Message, Part, Scene, Simulation, Span, What};

/// So many scatters may be on their way while a further one is sent.
const SCATTERS: usize = 1;
/// Of so many ranks everything is noted.
const WATCHED: usize = 64;

/// What one rank sends another: the table, the micro-batch, and both.
type Letter = (ExchangeId, u32, RankId, RankId);

pub(crate) struct Engine<'s> {
    scene: Scene<'s>,
    groups: Groups<'s>,
    prices: Vec<Rc<Vec<Price>>>,
    ranks: Vec<Rank<'s>>,
    /// Whether what each does is noted.
    watched: Vec<bool>,
    /// The place of each rank that is followed.
    places: BTreeMap<RankId, usize>,
    /// For each exchange and rank, the followed ranks from which something comes.
    senders: BTreeMap<(ExchangeId, RankId), Vec<RankId>>,
    meetings: BTreeMap<Key, (Meeting, Option<usize>)>,
    /// The message that each is, when it left, and when it arrived.
    letters: BTreeMap<Letter, (usize, f64, f64)>,
    /// Ranks that wait for a letter.
    expecting: BTreeMap<Letter, Vec<usize>>,
    ready: VecDeque<usize>,
    found: Simulation,
}

impl<'s> Engine<'s> {
    pub(crate) fn new(scene: &Scene<'s>) -> Self {
        let ranks: Vec<Rank<'s>> =
            scene.courses.iter().map(|course| Rank::new(scene.program, course, scene.batches)).collect();
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
            groups: Groups::new(scene.program, scene.cluster),
            prices: prices(scene.courses, scene.cluster),
            ready: (0..ranks.len()).collect(),
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

    pub(crate) fn run(mut self) -> Result<Simulation> {
        while let Some(at) = self.ready.pop_front() {
            self.advance(at);
        }
        if let Some(rank) = self.ranks.iter().find(|rank| rank.turn().is_some()) {
            let what = format!("in the simulation rank {} waits for ever", rank.course.rank.0);
            return Err(Error::new("SW0911", what)
                .why("the program was proved to end: this is a bug of the simulation")
                .fix("report it, with the model and the plan"));
        }
        for at in 0..self.ranks.len() {
            self.update(at);
        }
        self.found.seconds = self.ranks.iter().map(|rank| rank.clock).fold(0.0, f64::max);
        for rank in self.ranks {
            let idle = rank.lane.idle + self.found.seconds - rank.clock;
            self.found.ranks.push(Lane { idle, ..rank.lane });
            self.found.parts.push(rank.parts);
        }
        Ok(self.found)
    }

    /// As far as a rank comes by itself.
    fn advance(&mut self, at: usize) {
        while let Some(turn) = self.ranks[at].turn() {
            let (body, instr) = (self.ranks[at].body, self.ranks[at].at.1);
            let Some(next) = body.codes[turn.code].instrs.get(instr) else {
                if !self.settle(at, 0) {
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
            Instr::Call(call) => self.has_copies(at, &call.inputs) && self.local(at, turn, instr),
            Instr::Grad(grad) => {
                let inputs = call_inputs(self.ranks[at].body, grad.call);
                self.fetched(at, Away::Call(grad.call));
                self.has_copies(at, inputs) && self.local(at, turn, instr)
            }
            Instr::Fetch { what } => self.fetch(at, turn, *what),
            Instr::Take { id, .. } => {
                self.fetched(at, Away::Kept(*id));
                true
            }
            Instr::Collective(_) => self.meets(at, turn, instr),
            Instr::ReduceShards { .. } | Instr::Exchange { .. } | Instr::ExchangeGradients { .. } => {
                self.settle(at, 0) && self.meets(at, turn, instr)
            }
            Instr::Gather { copies, .. } => {
                if let Some(key) = self.come(at, turn, instr) {
                    self.ranks[at].coming.push((key, copies.clone()));
                }
                true
            }
            Instr::Scatter { .. } | Instr::ReduceGradients { .. } => {
                let allowed = if instr.kind() == Kind::Scatter { SCATTERS } else { usize::MAX };
                self.settle(at, allowed) && {
                    let key = self.come(at, turn, instr);
                    self.ranks[at].settling.extend(key);
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
            | Instr::Keep { .. } => self.local(at, turn, instr),
        }
    }

    fn price(&self, at: usize, turn: Turn) -> Price {
        let rank = &self.ranks[at];
        self.prices[at][rank.number(turn, rank.at.1)]
    }

    fn deed(&self, at: usize, turn: Turn) -> &'s Deed {
        let rank = &self.ranks[at];
        &rank.course.deeds[rank.number(turn, rank.at.1)]
    }

    fn local(&mut self, at: usize, turn: Turn, instr: &Instr) -> bool {
        let price = self.price(at, turn);
        let kind = instr.kind();
        let rank = &mut self.ranks[at];
        let pass = rank.pass(turn);
        let spent = match kind {
            Kind::Call if pass == Pass::Forward => &mut rank.lane.forward,
            Kind::Call => &mut rank.lane.again,
            Kind::Grad => &mut rank.lane.backward,
            _ => &mut rank.lane.copies,
        };
        *spent += price.work;
        if price.host > 0.0 {
            rank.host = rank.host.max(rank.clock) + price.host;
        }
        self.spends(at, turn, What::Instr(kind, self.ranks[at].at.1), price.work);
        true
    }

    /// Brings something from the host, while the device goes on.
    fn fetch(&mut self, at: usize, turn: Turn, what: Away) -> bool {
        let price = self.price(at, turn);
        let rank = &mut self.ranks[at];
        rank.host = rank.host.max(rank.clock) + price.host;
        rank.fetching.push((what, rank.host));
        true
    }

    fn fetched(&mut self, at: usize, what: Away) {
        let rank = &mut self.ranks[at];
        let Some(place) = rank.fetching.iter().position(|(other, _)| *other == what) else { return };
        let (_, end) = rank.fetching.remove(place);
        let waits = (end - rank.clock).max(0.0);
        rank.lane.exposed += waits;
        rank.clock += waits;
    }

    /// Waits for what was sent ahead and is read now.
    fn has_copies(&mut self, at: usize, inputs: &[program::BufId]) -> bool {
        if self.ranks[at].coming.is_empty() {
            return true;
        }
        let read = self.ranks[at].copies_of(inputs);
        while let Some(place) = self.ranks[at].coming.iter().position(|(_, brings)| meets(brings, &read)) {
            if !self.awaits(at, self.ranks[at].coming[place].0) {
                return false;
            }
            self.ranks[at].coming.remove(place);
        }
        true
    }

    /// Waits until at most so many are on their way of what ends with the code.
    fn settle(&mut self, at: usize, left: usize) -> bool {
        while self.ranks[at].settling.len() > left {
            if !self.awaits(at, self.ranks[at].settling[0]) {
                return false;
            }
            self.ranks[at].settling.remove(0);
        }
        true
    }

    /// A communication that the rank waits for.
    fn meets(&mut self, at: usize, turn: Turn, instr: &'s Instr) -> bool {
        let key = match self.ranks[at].came {
            Some(key) => key,
            None => match self.come(at, turn, instr) {
                Some(key) => key,
                None => return self.local(at, turn, instr),
            },
        };
        self.ranks[at].came = Some(key);
        if !self.awaits(at, key) {
            return false;
        }
        self.ranks[at].came = None;
        self.local(at, turn, instr)
    }

    /// Comes to a meeting, and gives its key; none where there is nobody to meet.
    fn come(&mut self, at: usize, turn: Turn, instr: &'s Instr) -> Option<Key> {
        let (deed, id) = (self.deed(at, turn), self.ranks[at].course.rank);
        let (key, members) = match (instr.group(), instr.exchange()) {
            (Some(grouping), _) => {
                let number = self.groups.number(grouping, id)?;
                let group = self.groups.group(grouping, number);
                (Key::Group(grouping, number, self.ranks[at].met(Ok(grouping))), group.to_vec())
            }
            (None, Some(exchange)) => {
                (Key::Exchange(exchange, self.ranks[at].met(Err(exchange))), self.members(exchange))
            }
            (None, None) => return None,
        };
        if members.len() < 2 {
            return None;
        }
        let seconds = match key {
            Key::Group(grouping, number, _) => {
                self.groups.seconds(grouping, number, instr.kind(), deed.moved)
            }
            Key::Exchange(..) => self.leaves(id, deed),
        };
        let expected = members.iter().filter(|rank| self.places.contains_key(rank)).count();
        let clock = self.ranks[at].clock;
        let (meeting, message) = self.meetings.entry(key).or_default();
        meeting.expected = expected;
        meeting.here.push((at, clock));
        meeting.seconds = meeting.seconds.max(seconds);
        meeting.bytes = meeting.bytes.max(deed.moved);
        let message = *message.get_or_insert_with(|| {
            self.found.messages.push(Message::of(instr.kind(), members, deed));
            self.found.messages.len() - 1
        });
        self.takes_part(at, turn, message, instr.kind());
        self.ranks[at].queue.push_back(key);
        self.hold(key);
        Some(key)
    }

    fn takes_part(&mut self, at: usize, turn: Turn, message: usize, kind: Kind) {
        let op = self.deed(at, turn).op;
        let rank = &mut self.ranks[at];
        let code = &rank.body.codes[turn.code];
        let (block, pass, instr) = (code.block, code.pass, rank.at.1);
        rank.parts.push(Part { message, kind, block, pass, instr, batch: turn.batch, op, exposed: 0.0 });
    }

    /// All ranks of an exchange.
    fn members(&self, exchange: ExchangeId) -> Vec<RankId> {
        let table = &self.scene.program.exchanges[exchange.index()];
        let mut ranks: Vec<RankId> =
            table.sources.iter().chain(&table.targets).map(|(rank, _)| *rank).collect();
        ranks.sort_unstable();
        ranks.dedup();
        ranks
    }

    /// How long a rank sends in an exchange.
    fn leaves(&self, from: RankId, deed: &Deed) -> f64 {
        let one =
            |(to, bytes): &(RankId, u64)| self.scene.cluster.message(from.0, to.0, Crowd(1), *bytes as f64);
        deed.sent.iter().map(one).sum()
    }

    /// Holds a meeting if all are there and have nothing before it, and then those that waited for it.
    fn hold(&mut self, key: Key) {
        let mut open = vec![key];
        while let Some(key) = open.pop() {
            let Some((meeting, message)) = self.meetings.get_mut(&key) else { continue };
            let first = |(at, _): &(usize, f64)| self.ranks[*at].queue.front() == Some(&key);
            if !meeting.is_full() || meeting.time.is_some() || !meeting.here.iter().all(first) {
                continue;
            }
            let free = meeting.here.iter().map(|(at, came)| came.max(self.ranks[*at].line));
            let start = free.fold(0.0, f64::max);
            let end = start + meeting.seconds;
            meeting.time = Some((start, end));
            self.ready.extend(std::mem::take(&mut meeting.waiting));
            for (at, _) in &meeting.here {
                let rank = &mut self.ranks[*at];
                (rank.line, rank.lane.communication) = (end, rank.lane.communication + meeting.seconds);
                rank.queue.pop_front();
                open.extend(rank.queue.front());
            }
            if let Some(message) = message {
                let told = &mut self.found.messages[*message];
                (told.start, told.end, told.bytes) = (start, end, meeting.bytes);
                told.share = self.groups.share(told);
            }
        }
    }

    /// Waits for the end of a meeting.
    fn awaits(&mut self, at: usize, key: Key) -> bool {
        let Some((meeting, message)) = self.meetings.get_mut(&key) else { return true };
        let Some((start, end)) = meeting.time else {
            meeting.waiting.push(at);
            return false;
        };
        let message = *message;
        let exposed = self.waits(at, start, end);
        self.exposes(at, message, exposed);
        true
    }

    fn exposes(&mut self, at: usize, message: Option<usize>, seconds: f64) {
        let parts = self.ranks[at].parts.iter_mut().rev();
        if let Some(part) = parts.into_iter().find(|part| Some(part.message) == message) {
            part.exposed += seconds;
        }
    }

    /// A rank waits for what goes on from one moment to another; gives for how long while it goes on.
    fn waits(&mut self, at: usize, start: f64, end: f64) -> f64 {
        let rank = &mut self.ranks[at];
        let (clock, begins) = (rank.clock, start.max(rank.clock));
        if end <= clock {
            return 0.0;
        }
        rank.lane.idle += begins - clock;
        rank.lane.exposed += end - begins;
        rank.clock = end;
        if let Some(turn) = rank.turn() {
            self.span(at, turn, What::Wait, begins);
        }
        end - begins
    }

    fn send(&mut self, at: usize, turn: Turn, exchange: ExchangeId) -> bool {
        let (deed, from) = (self.deed(at, turn), self.ranks[at].course.rank);
        for &(to, bytes) in &deed.sent {
            let seconds = self.scene.cluster.message(from.0, to.0, Crowd(1), bytes as f64);
            let rank = &mut self.ranks[at];
            let start = rank.sent.max(rank.clock);
            (rank.sent, rank.lane.communication) = (start + seconds, rank.lane.communication + seconds);
            let told = Message {
                bytes,
                start,
                end: start + seconds,
                ..Message::of(Kind::Send, vec![from, to], deed)
            };
            let share = self.groups.share(&told);
            self.found.messages.push(Message { share, ..told });
            let (letter, number) = ((exchange, turn.batch, from, to), self.found.messages.len() - 1);
            self.takes_part(at, turn, number, Kind::Send);
            self.letters.insert(letter, (number, start, start + seconds));
            self.ready.extend(self.expecting.remove(&letter).into_iter().flatten());
        }
        true
    }

    fn receive(&mut self, at: usize, turn: Turn, exchange: ExchangeId) -> bool {
        let to = self.ranks[at].course.rank;
        let from = self.senders.get(&(exchange, to)).cloned().unwrap_or_default();
        let letter = |from: &RankId| (exchange, turn.batch, *from, to);
        if let Some(missing) = from.iter().map(letter).find(|letter| !self.letters.contains_key(letter)) {
            self.expecting.entry(missing).or_default().push(at);
            return false;
        }
        for from in &from {
            let (number, start, end) = self.letters[&letter(from)];
            self.takes_part(at, turn, number, Kind::Receive);
            let exposed = self.waits(at, start, end);
            self.exposes(at, Some(number), exposed);
        }
        true
    }

    /// The optimizer's step.
    fn update(&mut self, at: usize) {
        let rank = &self.ranks[at];
        let id = rank.course.rank;
        let bytes = self.scene.updated.get(id.index()).copied().unwrap_or(0) as f64;
        let seconds = self.scene.cluster.device(id.0).seconds(Effort { operations: 0.0, bytes }, Dtype::F32);
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
    fn span(&mut self, at: usize, turn: Turn, what: What, start: f64) {
        let rank = &self.ranks[at];
        let Some(code) = rank.body.codes.get(turn.code).filter(|_| self.watched[at]) else { return };
        let (block, pass) = (code.block, code.pass);
        let span =
            Span { rank: rank.course.rank, what, pass, block, batch: turn.batch, start, end: rank.clock };
        self.found.spans.push(span);
    }
}

fn meets(a: &[usize], b: &[usize]) -> bool {
    a.iter().any(|it| b.contains(it))
}

fn call_inputs(body: &program::Body, id: CallId) -> &[program::BufId] {
    let found = body.instrs().find_map(|instr| match instr {
        Instr::Call(call) if call.id == id => Some(&call.inputs[..]),
        _ => None,
    });
    found.unwrap_or_default()
}

/// The first rank of each role, and all where there are few.
fn watched(ranks: &[Rank<'_>]) -> Vec<bool> {
    let mut roles = BTreeSet::new();
    let all = ranks.len() <= WATCHED;
    ranks.iter().map(|rank| roles.insert(rank.course.role) || all).collect()
}

impl Message {
    /// Before it is known when it is.
    fn of(kind: Kind, group: Vec<RankId>, deed: &Deed) -> Self {
        Self { kind, group, bytes: deed.moved, dtype: deed.dtype, start: 0.0, end: 0.0, share: 0.0 }
    }
}
