//! What ranks have to do with each other: communication and waiting for them.

use std::rc::Rc;

use cluster::Contention;
use program::{ExchangeId, Instr, Kind, RankId};

use check::InstrCost;

use crate::engine::Engine;
use crate::link::LinkKind;
use crate::rank::Tick;
use crate::rendezvous::{Key, Members, Rendezvous};
use crate::{Message, TakesPart, What};

impl<'s> Engine<'s> {
    /// Waits for what was sent ahead and is read now.
    pub(crate) fn has_copies(&mut self, at: usize, tick: Tick) -> bool {
        if self.ranks[at].coming.is_empty() && self.ranks[at].brought.is_empty() {
            return true;
        }
        let rank = &mut self.ranks[at];
        let (reads, number) = (rank.reads(), rank.number(tick, rank.at.1));
        let read = &reads[number];
        rank.has_from_host(read);
        while let Some((first, key)) = self.ranks[at].coming.first(read) {
            if !self.awaits(at, key) {
                return false;
            }
            self.ranks[at].coming.remove(first);
        }
        true
    }

    /// Waits until at most so many are on their way of what ends with the code. What has come is added to what is there.
    pub(crate) fn sync_grads(&mut self, at: usize, tick: Tick, left: usize) -> bool {
        while self.ranks[at].settling.len() > left {
            let (key, instr) = self.ranks[at].settling[0];
            if !self.awaits(at, key) {
                return false;
            }
            self.ranks[at].settling.remove(0);
            self.does(at, tick, instr);
        }
        true
    }

    /// A communication that the rank waits for.
    pub(crate) fn meets(&mut self, at: usize, tick: Tick, instr: &'s Instr) -> bool {
        let key = match self.ranks[at].came {
            Some(key) => key,
            None => match self.come(at, tick, instr, 1.0) {
                Some(key) => key,
                None => return self.local(at, tick),
            },
        };
        self.ranks[at].came = Some(key);
        if !self.awaits(at, key) {
            return false;
        }
        self.ranks[at].came = None;
        self.local(at, tick)
    }

    /// Comes to what goes on while the rank computes, and holds the device up for a part of its time.
    pub(crate) fn goes_on(&mut self, at: usize, tick: Tick, instr: &'s Instr) -> Option<Key> {
        let rank = self.ranks[at].rank_trace.rank;
        self.come(at, tick, instr, self.scene.cluster.device(rank.0).runtime.hidden)
    }

    /// Comes to a collective, and gives its key; none where there is nobody to meet. What of its time is not hidden this rank
    /// spends at once, while it goes on.
    fn come(&mut self, at: usize, tick: Tick, instr: &'s Instr, hidden: f64) -> Option<Key> {
        let (instr_cost, id) = (self.instr_cost(at, tick), self.ranks[at].rank_trace.rank);
        let key = match (instr.group(), instr.exchange()) {
            (Some(grouping), _) => {
                let number = self.groups.number(grouping, id)?;
                Key::Group(grouping, number, self.ranks[at].met(Ok(grouping)))
            }
            (None, Some(exchange)) => Key::Exchange(exchange, self.ranks[at].met(Err(exchange))),
            (None, None) => return None,
        };
        // Who comes first says who is expected: groups are large, and all of them come.
        if !self.open.contains_key(&key) {
            self.begin(key, instr.kind(), instr_cost)?;
        }
        let (seconds, least) = match key {
            Key::Group(grouping, number, _) => {
                (self.groups.seconds(grouping, number, instr.kind(), instr_cost.moved), 0.0)
            }
            Key::Exchange(exchange, _) => self.leaves(exchange, id, self.sent(at, tick)),
        };
        let runtime = self.scene.cluster.device(id.0).runtime;
        self.ranks[at].launches(runtime.launch.map_or(0.0, |_| runtime.call));
        let clock = self.ranks[at].clock;
        self.ranks[at].takes((1.0 - hidden) * seconds);
        let (rendezvous, message) = self.open.get_mut(&key).expect("it was begun");
        rendezvous.here.push((at, clock));
        rendezvous.seconds = rendezvous.seconds.max(seconds);
        rendezvous.least = rendezvous.least.max(least);
        rendezvous.bytes = rendezvous.bytes.max(instr_cost.moved);
        let (message, line) = (*message, rendezvous.line);
        self.takes_part(at, tick, message, instr.kind());
        self.ranks[at].queues[line].push_back(key);
        self.hold(key);
        Some(key)
    }

    /// A collective to which somebody comes; none where there is nobody to meet.
    fn begin(&mut self, key: Key, kind: Kind, instr_cost: &InstrCost) -> Option<()> {
        let Members { all, expected, line } = self.members_of(key);
        if all.len() < 2 {
            return None;
        }
        let message = self.notes(|| Message::new(kind, all.to_vec(), instr_cost));
        let rendezvous = Rendezvous { expected, line, ..Rendezvous::default() };
        self.open.insert(key, (rendezvous, message));
        Some(())
    }

    /// The number of a message that is told.
    fn notes(&mut self, message: impl FnOnce() -> Message) -> Option<usize> {
        self.is_noted.then(|| {
            self.found.messages.push(message());
            self.found.messages.len() - 1
        })
    }

    fn takes_part(&mut self, at: usize, tick: Tick, message: Option<usize>, kind: Kind) {
        let Some(message) = message else { return };
        let op = self.instr_cost(at, tick).op;
        let rank = &mut self.ranks[at];
        let code = &rank.body.codes[tick.code];
        let (block, pass, instr) = (code.block, code.pass, rank.at.1);
        rank.parts.push(TakesPart { message, kind, block, pass, instr, batch: tick.batch, op, exposed: 0.0 });
    }

    fn members_of(&mut self, key: Key) -> Members {
        if let Some(known) = self.members.get(&key.first()) {
            return known.clone();
        }
        let all: Rc<[RankId]> = match key {
            Key::Group(grouping, number, _) => self.groups.group(grouping, number).into(),
            Key::Exchange(exchange, _) => self.ranks_of(exchange).into(),
        };
        let expected = all.iter().filter(|rank| self.places.contains_key(rank)).count();
        let line = LinkKind::crossed_by(self.scene.cluster, &all) as usize;
        self.members.entry(key.first()).or_insert(Members { all, expected, line }).clone()
    }

    /// All ranks of an exchange.
    fn ranks_of(&self, exchange: ExchangeId) -> Vec<RankId> {
        let table = &self.scene.program.exchanges[exchange.index()];
        let mut ranks: Vec<RankId> =
            table.sources.iter().chain(table.targets.iter()).map(|(rank, _)| *rank).collect();
        ranks.sort_unstable();
        ranks.dedup();
        ranks
    }

    /// How long a rank sends in an exchange, and how long its bytes alone take.
    fn leaves(&self, exchange: ExchangeId, from: RankId, sent: &[(RankId, u64)]) -> (f64, f64) {
        let (cluster, contention) = (self.scene.cluster, self.groups.contention_of(exchange));
        let one = |(to, bytes): &(RankId, u64)| {
            let bytes = *bytes as f64;
            let least = cluster.least_of_message(from.0, to.0, Contention(1), bytes);
            (cluster.message(from.0, to.0, contention, bytes), least)
        };
        sent.iter().map(one).fold((0.0, 0.0), |all, message| (all.0 + message.0, all.1 + message.1))
    }

    /// Holds a collective if all are there and have nothing before it, and then those that waited for it.
    fn hold(&mut self, key: Key) {
        let mut open = vec![key];
        while let Some(key) = open.pop() {
            let Some((rendezvous, message)) = self.open.get_mut(&key) else { continue };
            let line = rendezvous.line;
            let first = |(at, _): &(usize, f64)| self.ranks[*at].queues[line].front() == Some(&key);
            if !rendezvous.is_full() || rendezvous.time.is_some() || !rendezvous.here.iter().all(first) {
                continue;
            }
            let free = rendezvous.here.iter().map(|(at, came)| came.max(self.ranks[*at].lines[line]));
            let start = free.fold(0.0, f64::max);
            let end = start + rendezvous.seconds;
            rendezvous.time = Some((start, end));
            self.ready.extend(std::mem::take(&mut rendezvous.waiting));
            for (at, _) in &rendezvous.here {
                let rank = &mut self.ranks[*at];
                (rank.lines[line], rank.lane.communication) =
                    (end, rank.lane.communication + rendezvous.seconds);
                rank.queues[line].pop_front();
                open.extend(rank.queues[line].front());
            }
            let Some(message) = *message else { continue };
            let entry = &mut self.found.messages[message];
            (entry.start, entry.end, entry.bytes) = (start, end, rendezvous.bytes);
            entry.uses(rendezvous.least.max(self.groups.least(entry)));
        }
    }

    /// Waits for the end of a collective.
    pub(crate) fn awaits(&mut self, at: usize, key: Key) -> bool {
        let Some((rendezvous, message)) = self.open.get_mut(&key) else { return true };
        let Some((start, end)) = rendezvous.time else {
            rendezvous.waiting.push(at);
            return false;
        };
        let message = *message;
        rendezvous.informed += 1;
        if rendezvous.informed == rendezvous.expected {
            self.open.remove(&key);
        }
        let exposed = self.waits(at, start, end);
        self.exposes(at, message, exposed);
        true
    }

    fn exposes(&mut self, at: usize, message: Option<usize>, seconds: f64) {
        let Some(message) = message else { return };
        let parts = self.ranks[at].parts.iter_mut().rev();
        if let Some(part) = parts.into_iter().find(|part| part.message == message) {
            part.exposed += seconds;
        }
    }

    /// A rank waits for what goes on from one moment to another; gives for how long while it goes on.
    fn waits(&mut self, at: usize, start: f64, end: f64) -> f64 {
        let id = self.ranks[at].rank_trace.rank;
        let wake = self.scene.cluster.device(id.0).runtime.wake;
        let rank = &mut self.ranks[at];
        let (clock, begins) = (rank.clock, start.max(rank.clock));
        if end <= clock {
            return 0.0;
        }
        rank.lane.idle += begins - clock + wake;
        rank.lane.exposed += end - begins;
        rank.clock = end + wake;
        if let Some(tick) = rank.tick() {
            self.span(at, tick, What::Wait, begins);
        }
        end - begins
    }

    pub(crate) fn send(&mut self, at: usize, tick: Tick, exchange: ExchangeId) -> bool {
        let (instr_cost, from) = (self.instr_cost(at, tick), self.ranks[at].rank_trace.rank);
        let contention = self.groups.contention_of(exchange);
        for &(to, bytes) in self.sent(at, tick) {
            let seconds = self.scene.cluster.message(from.0, to.0, contention, bytes as f64);
            let hidden = self.scene.cluster.device(from.0).runtime.hidden * seconds;
            let rank = &mut self.ranks[at];
            rank.takes(seconds - hidden);
            let start = rank.sent.max(rank.clock) - (seconds - hidden);
            (rank.sent, rank.lane.communication) = (start + seconds, rank.lane.communication + seconds);
            let (letter, end) = ((exchange, tick.batch, from, to), start + seconds);
            let cluster = self.scene.cluster;
            let message = self.notes(|| {
                let base = Message::new(Kind::Send, vec![from, to], instr_cost);
                let mut entry = Message { bytes, start, end, ..base };
                entry.uses(cluster.least_of_message(from.0, to.0, Contention(1), bytes as f64));
                entry
            });
            self.takes_part(at, tick, message, Kind::Send);
            self.letters.insert(letter, (message, start, end));
            self.ready.extend(self.expecting.remove(&letter).into_iter().flatten());
        }
        true
    }

    pub(crate) fn receive(&mut self, at: usize, tick: Tick, exchange: ExchangeId) -> bool {
        let to = self.ranks[at].rank_trace.rank;
        let from = self.senders.get(&(exchange, to)).cloned().unwrap_or_default();
        let letter = |from: &RankId| (exchange, tick.batch, *from, to);
        if let Some(missing) = from.iter().map(letter).find(|letter| !self.letters.contains_key(letter)) {
            self.expecting.entry(missing).or_default().push(at);
            return false;
        }
        for from in &from {
            let (message, start, end) = self.letters.remove(&letter(from)).expect("none is missing");
            self.takes_part(at, tick, message, Kind::Receive);
            let exposed = self.waits(at, start, end);
            self.exposes(at, message, exposed);
            let rank = &mut self.ranks[at];
            rank.spent[rank.at.0].receives(exposed, end - start);
        }
        true
    }
}

impl Message {
    /// Before it is known when it is.
    fn new(kind: Kind, group: Vec<RankId>, instr_cost: &InstrCost) -> Self {
        Self {
            kind,
            group,
            bytes: instr_cost.moved,
            dtype: instr_cost.dtype,
            start: 0.0,
            end: 0.0,
            share: 0.0,
        }
    }

    /// Its bytes alone take up its slowest link for so long. What was measured may be quicker than that.
    fn uses(&mut self, seconds: f64) {
        let all = self.end - self.start;
        self.share = if all > 0.0 { (seconds / all).min(1.0) } else { 0.0 };
    }
}
