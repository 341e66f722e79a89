//! The critical path of a step: from its end back to its beginning, always to what the device had to wait for.
//!
//! Where a device waits for a communication, the path goes on with the member that came to it last. Of devices that are not
//! told one by one the path stays on the one that stands for them.

use std::collections::BTreeMap;

use program::RankId;
use simulate::{Message, Simulation, Span, What};

use super::Subject;
use super::tracks::Tracks;

/// Less than this is no time, in seconds.
const CLOSE: f64 = 1e-9;

/// Stretches of time, the first one first: the track, the start and the end in ticks.
pub(super) fn path(subject: &Subject<'_>, tracks: &Tracks) -> Vec<[i64; 3]> {
    let simulation = &subject.step.estimate.simulation;
    let (view, clock) = (View::new(simulation), subject.clock());
    let track_of =
        |rank: RankId| tracks.iter().position(|track| track.ranks.contains(&rank)).unwrap_or(0) as i64;
    let mut path: Vec<[i64; 3]> = vec![];
    for (rank, start, end) in view.walk() {
        let (track, start, end) = (track_of(rank), clock.ticks(start), clock.ticks(end));
        match path.last_mut() {
            Some([known, from, _]) if *known == track => *from = start,
            _ => path.push([track, start, end]),
        }
    }
    path.reverse();
    path
}

struct View<'v> {
    spans: BTreeMap<RankId, Vec<&'v Span>>,
    /// What each rank takes part in, by its end.
    messages: BTreeMap<RankId, Vec<&'v Message>>,
}

impl<'v> View<'v> {
    fn new(simulation: &'v Simulation) -> Self {
        let mut spans: BTreeMap<RankId, Vec<&Span>> = BTreeMap::new();
        simulation.spans.iter().for_each(|span| spans.entry(span.rank).or_default().push(span));
        let of_rank = |(at, lane): (usize, &simulate::Lane)| {
            let parts = simulation.parts[at].iter();
            let mut all: Vec<&Message> = parts.map(|part| &simulation.messages[part.message]).collect();
            all.sort_by(|a, b| a.end.total_cmp(&b.end));
            (lane.rank, all)
        };
        let messages = simulation.ranks.iter().enumerate().map(of_rank).collect();
        Self { spans, messages }
    }

    /// Stretches on ranks, the last one first.
    fn walk(&self) -> Vec<(RankId, f64, f64)> {
        let ends = self.spans.iter().filter_map(|(rank, spans)| Some((*rank, spans.last()?.end)));
        let Some((mut rank, mut now)) = ends.reduce(|a, b| if b.1 > a.1 { b } else { a }) else {
            return vec![];
        };
        let mut stretches = vec![];
        while now > CLOSE {
            // Before it did anything its host began.
            let Some(span) = self.before(rank, now) else {
                stretches.push((rank, 0.0, now));
                break;
            };
            let waits = span.what == What::Wait || span.end < now - CLOSE;
            let message = if waits { self.arriving(rank, now) } else { None };
            let (next, start) = match message {
                Some(message) => (self.last_to_come(rank, message), message.start),
                None if span.end < now - CLOSE => (rank, span.end),
                None => (rank, span.start),
            };
            stretches.push((rank, start, now));
            (rank, now) = (next, start);
        }
        stretches
    }

    /// What a rank did last that ended until then.
    fn before(&self, rank: RankId, now: f64) -> Option<&'v Span> {
        let spans = self.spans.get(&rank)?;
        let until = spans.partition_point(|span| span.end <= now + CLOSE);
        spans[..until].iter().rev().find(|span| span.start < now - CLOSE).copied()
    }

    /// The communication that ended then.
    fn arriving(&self, rank: RankId, now: f64) -> Option<&'v Message> {
        let messages = self.messages.get(&rank)?;
        let until = messages.partition_point(|message| message.end <= now + CLOSE);
        let last = messages[..until].last().copied();
        last.filter(|message| message.end > now - CLOSE && message.start < now - CLOSE)
    }

    /// The member that did something until a communication began.
    fn last_to_come(&self, rank: RankId, message: &Message) -> RankId {
        let comes = |other: &&RankId| {
            let span = self.before(**other, message.start);
            span.is_some_and(|span| span.what != What::Wait && span.end > message.start - CLOSE)
        };
        if comes(&&rank) { rank } else { message.group.iter().find(comes).copied().unwrap_or(rank) }
    }
}
