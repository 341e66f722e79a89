//! What it takes to bring a tensor from one spread to another.
//!
//! As lowering does it: what devices have too much of is cut away, partial results are summed and divided at once where
//! that is wanted, what is cut along another dim is exchanged, and only then gathered. Where digits do not lie as a
//! collective would need them, what each device lacks is exchanged.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};

use cluster::{COPIES as OF_COPIES, Cluster, Crowd, Device, Effort, Pattern, Sort};
use graph::Dtype;

use crate::bound::kinds;

use super::digits::{COPIES, Digits, PARTIAL, Set};
use super::spread::{Spread, elements, met};

/// Seconds of communication, and of work on the device: in all, and what of each is in a backward.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Price {
    pub(super) line: f64,
    pub(super) work: f64,
    pub(super) back: f64,
    pub(super) line_back: f64,
}

/// The sizes of a tensor's factors, and the bytes of an element.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Sizes {
    pub(super) factors: Vec<i64>,
    pub(super) width: u64,
}

/// What of a message is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// As lowering would send it, by itself.
    Alone,
    /// What it takes at least, however it is sent and whatever goes with it: its bytes, as fast as a long message goes.
    Least,
}

pub(crate) struct Messages<'c> {
    cluster: &'c Cluster,
    pub(super) count: Count,
    pub(super) kinds: Vec<&'c Device>,
    pub(super) digits: &'c Digits,
    groups: RefCell<HashMap<Set, (Vec<u32>, Crowd)>>,
    known: RefCell<BTreeMap<(Pattern, Set, u64), f64>>,
}

/// The bytes of a message that is so long that they are all that counts.
const LONG: f64 = 1e15;

impl std::ops::Add for Price {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            line: self.line + other.line,
            work: self.work + other.work,
            back: self.back + other.back,
            line_back: self.line_back + other.line_back,
        }
    }
}

impl Price {
    /// The same in a backward.
    pub(super) fn backward(self) -> Self {
        Self { back: self.work, line_back: self.line, ..self }
    }

    /// So much of it.
    pub(super) fn times(self, share: f64) -> Self {
        Self {
            line: self.line * share,
            work: self.work * share,
            back: self.back * share,
            line_back: self.line_back * share,
        }
    }
}

impl<'c> Messages<'c> {
    pub(crate) fn new(cluster: &'c Cluster, digits: &'c Digits, count: Count) -> Self {
        let kinds = kinds(cluster, digits.sizes.iter().product());
        Self { cluster, count, kinds, digits, groups: RefCell::default(), known: RefCell::default() }
    }

    /// Seconds of a collective of devices that differ in these digits.
    fn seconds(&self, pattern: Pattern, set: Set, bytes: f64) -> f64 {
        match self.count {
            Count::Alone => self.formula(pattern, set, bytes),
            Count::Least => self.formula(pattern, set, LONG) / LONG * bytes,
        }
    }

    fn formula(&self, pattern: Pattern, set: Set, bytes: f64) -> f64 {
        let key = (pattern, set, bytes as u64);
        if let Some(known) = self.known.borrow().get(&key) {
            return *known;
        }
        let mut groups = self.groups.borrow_mut();
        let (group, crowd) = groups.entry(set).or_insert_with(|| {
            let all = self.digits.groups(set);
            (all[0].clone(), self.cluster.crowd(all.iter().map(Vec::as_slice)))
        });
        let seconds = self.cluster.collective(pattern, group, *crowd, bytes);
        self.known.borrow_mut().insert(key, seconds);
        seconds
    }

    /// The same without what it takes to start, where it goes together with others.
    pub(super) fn more(&self, pattern: Pattern, set: Set, bytes: f64) -> f64 {
        match self.count {
            Count::Alone => (self.formula(pattern, set, bytes) - self.formula(pattern, set, 1.0)).max(0.0),
            Count::Least => self.seconds(pattern, set, bytes),
        }
    }

    /// Seconds to read and write so many bytes on the slowest device.
    fn copies(&self, bytes: f64) -> f64 {
        let effort = Effort { operations: 0.0, bytes };
        let sort = Sort { kinds: [OF_COPIES, OF_COPIES], dtype: Dtype::F32, way: cluster::Way::Forward };
        self.kinds.iter().map(|kind| kind.seconds_of(effort, sort)).fold(0.0, f64::max)
    }

    pub(super) fn between(&self, sizes: &Sizes, from: &Spread, to: &Spread) -> Price {
        if from == to {
            return Price::default();
        }
        let bytes = |spread: &Spread| elements(&sizes.factors, self.digits, spread) * sizes.width as f64;
        let mut way = Way { messages: self, at: from.clone(), price: Price::default(), bytes: &bytes };
        let count = u8::try_from(sizes.factors.len()).expect("a tensor of few dims");
        let is_regular = (1..=count).all(|factor| nests(from, to, factor));
        if !is_regular && self.count == Count::Alone {
            return way.exchange(to);
        }
        way.slice(to);
        for factor in 1..=count {
            way.change(PARTIAL, factor, to, Pattern::ReduceScatter);
        }
        for (one, other) in (1..=count).flat_map(|one| (1..=count).map(move |other| (one, other))) {
            if one != other {
                way.change(one, other, to, Pattern::AllToAll);
            }
        }
        way.change(PARTIAL, COPIES, to, Pattern::AllReduce);
        for factor in 1..=count {
            way.change(factor, COPIES, to, Pattern::AllGather);
        }
        match self.count {
            Count::Alone => way.price,
            Count::Least => {
                let comes = self.comes(sizes, from, to, is_regular);
                let line = if is_regular { way.price.line.min(comes) } else { comes };
                Price { line, ..Price::default() }
            }
        }
    }

    /// Seconds in which a device gets what it lacks, at least. What is partial comes from all that have parts of it, unless
    /// something sums it on the way.
    fn comes(&self, sizes: &Sizes, from: &Spread, to: &Spread, one_by_one: bool) -> f64 {
        let wanted = elements(&sizes.factors, self.digits, to);
        let own = met(&sizes.factors, self.digits, from, to);
        let partial = Set::of((0..from.len()).filter(|at| from[*at] == PARTIAL));
        let changed = Set::of((0..from.len()).filter(|at| from[*at] != to[*at]));
        let all = match f64::from(self.digits.count(partial)) {
            parts if parts > 1.0 && !one_by_one => wanted,
            parts => wanted * parts - own,
        };
        all.max(0.0) * sizes.width as f64 / self.quickest(changed)
    }

    /// Bytes a second of the quickest link between devices that differ in these digits.
    fn quickest(&self, set: Set) -> f64 {
        let inside = Set(set.0 & self.digits.inside().0);
        let here = if inside.is_empty() { 0.0 } else { self.cluster.nodes[0].link.rate() };
        let there = if inside == set { 0.0 } else { self.cluster.network.rate() };
        here.max(there)
    }
}

/// Whether the digits that divide a factor are the first ones of those that do before, or the other way round.
fn nests(from: &Spread, to: &Spread, factor: u8) -> bool {
    let of = |spread: &Spread| Set::of((0..spread.len()).filter(|at| spread[*at] == factor));
    let both = Set(of(from).0 & of(to).0);
    let first = |all: Set| all.digits().zip(both.digits()).all(|(a, b)| a == b);
    first(of(from)) && first(of(to))
}

/// From one spread on to the next.
struct Way<'m, 'c> {
    messages: &'m Messages<'c>,
    at: Spread,
    price: Price,
    bytes: &'m dyn Fn(&Spread) -> f64,
}

impl Way<'_, '_> {
    /// Devices keep their part of what several have.
    fn slice(&mut self, to: &Spread) {
        let next: Spread =
            self.at.iter().zip(to).map(|(at, to)| if *at == COPIES { *to } else { *at }).collect();
        if next != self.at {
            self.price.work += self.messages.copies(2.0 * (self.bytes)(&next));
            self.at = next;
        }
    }

    /// All digits that do one thing and shall do another.
    fn change(&mut self, one: u8, other: u8, to: &Spread, pattern: Pattern) {
        let set = Set::of((0..to.len()).filter(|at| self.at[*at] == one && to[*at] == other));
        if set.is_empty() {
            return;
        }
        let before = (self.bytes)(&self.at);
        set.digits().for_each(|at| self.at[at] = other);
        let bytes = if pattern == Pattern::AllGather { (self.bytes)(&self.at) } else { before };
        self.price.line += self.messages.seconds(pattern, set, bytes);
    }

    /// What each device lacks comes from the others.
    fn exchange(&mut self, to: &Spread) -> Price {
        let set = Set::of((0..to.len()).filter(|at| self.at[*at] != to[*at]));
        let bytes = (self.bytes)(to).max((self.bytes)(&self.at));
        Price { line: self.messages.seconds(Pattern::AllToAll, set, bytes), ..Price::default() }
    }
}
