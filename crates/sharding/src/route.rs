//! The cheapest hops from one sharding to another.
//!
//! A best-first search over shardings of one frame of axes. What is still to be paid is never less than what a device
//! lacks of what it needs in the end, and where partial results are to be completed, what completing its smallest
//! possible shards takes: that bound keeps the search to the few shardings on the way. Its time grows with axes, not with
//! devices.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use hashing::Map;

use crate::hop::{Hop, HopKind};
use crate::mesh::Axis;
use crate::sharding::Sharding;
use crate::state::{Chain, Codec, MOST, State};
use crate::steps::{Step, Steps};

/// What a hop costs, given how it goes, along which axes, and the most bytes that a device sends or
/// receives. Never less than these bytes.
pub type Price<'p> = &'p dyn Fn(HopKind, &[Axis], u64) -> u64;

/// The hops with the fewest bytes, and of those the fewest communications. `width` is the bytes of an element. `None` if
/// the shardings are not of one tensor, or have more axes than any cluster.
pub fn route(from: &Sharding, to: &Sharding, width: u64) -> Option<Vec<Hop>> {
    route_by(from, to, width, &|_, _, bytes| bytes)
}

/// The same, by another price than bytes.
pub fn route_by(from: &Sharding, to: &Sharding, width: u64, price: Price<'_>) -> Option<Vec<Hop>> {
    if from.sizes() != to.sizes() {
        return None;
    }
    if from == to {
        return Some(vec![]);
    }
    let (codec, start, goal) = Codec::new(from, to)?;
    let needed = held(&codec, &goal).0;
    let mut search = RouteSearch {
        codec,
        goal,
        needed,
        width,
        price,
        nodes: vec![],
        best: Map::default(),
        bound: (u64::MAX, 0, 0),
    };
    search.run(start).map(|last| search.hops(last))
}

/// What was paid: the price, the communications, the hops.
type Paid = (u64, u32, u32);

struct RouteNode {
    state: State,
    paid: Paid,
    by: Option<By>,
}

/// The node before, how the hop from there goes, along which axes, and its bytes.
type By = (usize, HopKind, Chain, u64);

struct RouteSearch<'a, 'p> {
    codec: Codec<'a>,
    goal: State,
    /// The elements that a device holds in the end.
    needed: u64,
    width: u64,
    price: Price<'p>,
    nodes: Vec<RouteNode>,
    best: Map<State, Paid>,
    /// What the best way that was found costs.
    bound: Paid,
}

/// What is open: the least that a route over it costs, whether its permutations are meant, and which it is.
type Open = Reverse<(Paid, bool, usize)>;

impl RouteSearch<'_, '_> {
    fn run(&mut self, start: State) -> Option<usize> {
        let mut open: BinaryHeap<Open> = BinaryHeap::new();
        self.reach(&mut open, start, (0, 0, 0), None);
        while let Some(Reverse((least, late, index))) = open.pop() {
            let (state, paid) = (self.nodes[index].state, self.nodes[index].paid);
            if state == self.goal {
                return Some(index);
            }
            if self.best[&state] < paid {
                continue;
            }
            if !late {
                let bytes = self.bytes(&state, HopKind::Permute, Chain::default(), &state);
                let permuted = (paid.0.saturating_add(bytes + self.left(&state)), paid.1 + 1, paid.2 + 1);
                open.push(Reverse((permuted.max(least), true, index)));
            }
            let mut steps = Steps { codec: &mut self.codec, goal: &self.goal, found: vec![] };
            if late {
                steps.permutations(&state);
            } else {
                steps.from(&state);
            }
            for Step { kind, axes, next } in steps.found {
                let bytes = self.bytes(&state, kind, axes, &next);
                let paid = self.pay(paid, kind, &state, axes, bytes);
                self.reach(&mut open, next, paid, Some((index, kind, axes, bytes)));
            }
        }
        None
    }

    fn pay(&self, paid: Paid, kind: HopKind, state: &State, axes: Chain, bytes: u64) -> Paid {
        if kind.is_local() || bytes == 0 {
            return (paid.0, paid.1, paid.2 + 1);
        }
        let mut along = [Axis::new(1, 0); MOST];
        let mut first = MOST;
        for axis in axes.inwards() {
            first -= 1;
            along[first] = self.codec.axis(state.side, axis);
        }
        (paid.0.saturating_add((self.price)(kind, &along[first..], bytes)), paid.1 + 1, paid.2 + 1)
    }

    fn reach(&mut self, open: &mut BinaryHeap<Open>, state: State, paid: Paid, by: Option<By>) {
        let all = |rest: Paid| (paid.0.saturating_add(rest.0), paid.1 + rest.1, paid.2 + rest.2);
        let (more, hops) = self.least(&state);
        let least = all((self.left(&state), more, hops));
        if least >= self.bound || self.best.get(&state).is_some_and(|known| *known <= paid) {
            return;
        }
        if state == self.goal {
            self.bound = least;
        }
        self.best.insert(state, paid);
        self.nodes.push(RouteNode { state, paid, by });
        open.push(Reverse((least, false, self.nodes.len() - 1)));
    }

    /// The fewest communications and hops from here.
    fn least(&self, state: &State) -> (u32, u32) {
        let begins = state.factors.iter().zip(&self.goal.factors).all(|(s, g)| s.chain.begins(g.chain));
        let by_cutting = state.side == self.goal.side && begins && state.partial & !self.goal.partial == 0;
        (u32::from(!by_cutting && state.side == self.goal.side), u32::from(*state != self.goal))
    }

    fn bytes(&self, state: &State, kind: HopKind, axes: Chain, next: &State) -> u64 {
        let in_turn = axes.inwards().any(|a| self.codec.axis(state.side, a).in_turn());
        if in_turn || kind == HopKind::Send && self.stays(state, next) {
            return 0;
        }
        let all = |state: &State| {
            let (elements, chunks) = held(&self.codec, state);
            elements * chunks
        };
        kind.elements(self.codec.count(state.side, axes), all(state), all(next)) * self.width
    }

    /// Whether every device that is sent a shard has it already.
    fn stays(&self, state: &State, next: &State) -> bool {
        let (a, b) = (self.codec.sharding(state), self.codec.sharding(next));
        let is_plain = !a.axes().iter().any(|axis| axis.in_turn());
        self.codec.frame.inside && is_plain && a.cuts() == b.cuts() && a.partial() == b.partial()
    }

    /// A bound from below on what is still to be paid. What a device lacks has to come. To complete `p` partial
    /// results takes least if first each device takes its own part of what several have; that is spoken of in
    /// means over all devices, which no maximum is below.
    fn left(&self, state: &State) -> u64 {
        let partial = self.product(state, |a| state.partial >> a & 1 == 1);
        if partial < 2 || self.goal.partial != 0 {
            return self.needed.saturating_sub(held(&self.codec, state).0) * self.width;
        }
        let elements: u64 = self.codec.to.cuts().iter().map(|c| c.pieces.size().unsigned_abs()).product();
        let used = self.codec.used(&self.goal);
        let needed = elements / self.product(&self.goal, |a| used >> a & 1 == 1);
        (needed + elements * (partial - 2) / self.product(state, |_| true)) * self.width
    }

    /// How many devices some of the axes have together.
    fn product(&self, state: &State, counts: impl Fn(usize) -> bool) -> u64 {
        let axes = self.codec.frame.sides[state.side].axes.iter().enumerate();
        axes.filter(|(i, a)| counts(*i) && !a.in_turn()).map(|(_, a)| u64::from(a.size)).product()
    }

    fn hops(&self, last: usize) -> Vec<Hop> {
        let mut hops = vec![];
        let (mut at, mut to) = (last, self.codec.to.clone());
        while let Some((before, kind, axes, bytes)) = self.nodes[at].by {
            let state = &self.nodes[before].state;
            let from = if before == 0 { self.codec.from.clone() } else { self.codec.sharding(state) };
            let axes = match kind {
                HopKind::Slice => vec![],
                _ => axes.outermost_first().into_iter().map(|a| self.codec.axis(state.side, a)).collect(),
            };
            hops.push(Hop { kind, axes, from: from.clone(), to, bytes });
            (at, to) = (before, from);
        }
        hops.reverse();
        // Slices of slices are one.
        hops.dedup_by(|next, hop| {
            let both = next.kind == HopKind::Slice && hop.kind == HopKind::Slice;
            if both {
                hop.to = next.to.clone();
            }
            both
        });
        hops
    }
}

/// The elements of the largest shard with all that are cut from it in turn, and how many partial results
/// of it a device has in turn.
fn held(codec: &Codec<'_>, state: &State) -> (u64, u64) {
    let longest = |factor: usize| codec.longest(state.side, factor, state.factors[factor]);
    let cut: u64 = (0..codec.factors.len()).map(longest).product();
    let axes = &codec.frame.sides[state.side].axes;
    if !axes.last().is_some_and(|a| a.in_turn()) {
        return (cut * codec.whole, 1);
    }
    let chunks = |mask: u16| -> u64 {
        let axes = axes.iter().enumerate();
        axes.filter(|(i, a)| a.in_turn() && mask >> i & 1 == 1).map(|(_, a)| u64::from(a.size)).product()
    };
    (cut * codec.whole * chunks(codec.used(state) & !state.partial), chunks(state.partial))
}
