//! What it takes to bring a tensor from one sharding to another.
//!
//! As lowering does it: what devices have too much of is cut away, partial results are summed and divided at once where
//! that is wanted, what is cut along another dim is exchanged, and only then gathered. Where digits do not lie as a
//! collective would need them, what each device lacks is exchanged.

use std::cell::RefCell;
use std::collections::BTreeMap;

use cluster::{COPIES as OF_COPIES, Cluster, Contention, Device, OpCost, Pattern, Sort};
use graph::Dtype;
use hashing::Map;
use indexmap::IndexSet;

use crate::bound::kinds;

use super::digits::{COPIES, DIGITS, Digits, PARTIAL, Set};
use super::sharding::{Sharding, elements, met};

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
    groups: RefCell<Map<Set, (Vec<u32>, Contention)>>,
    known: RefCell<BTreeMap<(Pattern, Set, u64), f64>>,
    sizes: RefCell<IndexSet<Sizes>>,
    /// By number the shardings of tensors of some sizes.
    numbers: RefCell<Map<SizesId, Map<Sharding, usize>>>,
    /// From one sharding to that of each number.
    moves: RefCell<Map<(SizesId, Sharding), Vec<Seconds>>>,
}

/// Of communication, and of work: there are millions, so nothing else is kept.
type Seconds = (f64, f64);

/// What was not asked for yet.
const UNKNOWN: Seconds = (f64::NAN, f64::NAN);

/// Spreads of tensors of some sizes, with their numbers.
pub(super) struct Numbered {
    sizes: SizesId,
    all: Vec<(Sharding, usize)>,
}

/// The sizes of a tensor by their number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct SizesId(u32);

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
        Self {
            cluster,
            count,
            kinds,
            digits,
            groups: RefCell::default(),
            known: RefCell::default(),
            sizes: RefCell::default(),
            numbers: RefCell::default(),
            moves: RefCell::default(),
        }
    }

    pub(super) fn sizes(&self, sizes: Sizes) -> SizesId {
        let number = self.sizes.borrow_mut().insert_full(sizes).0;
        SizesId(u32::try_from(number).expect("fewer sizes than that"))
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
        let (group, contention) = groups.entry(set).or_insert_with(|| {
            let all = self.digits.groups(set);
            (all[0].clone(), self.cluster.contention(all.iter().map(Vec::as_slice)))
        });
        let seconds = self.cluster.collective(pattern, group, *contention, bytes);
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
        let op_cost = OpCost { operations: 0.0, bytes };
        let sort =
            Sort { kinds: [OF_COPIES, OF_COPIES], dtype: Dtype::F32, direction: cluster::Direction::Forward };
        self.kinds.iter().map(|kind| kind.seconds_of(op_cost, sort)).fold(0.0, f64::max)
    }

    /// Spreads as they are asked for.
    pub(super) fn numbered(&self, sizes: SizesId, shardings: &[Sharding]) -> Numbered {
        let mut known = self.numbers.borrow_mut();
        let known = known.entry(sizes).or_default();
        let number = |sharding: &Sharding| {
            let next = known.len();
            (*sharding, *known.entry(*sharding).or_insert(next))
        };
        Numbered { sizes, all: shardings.iter().map(number).collect() }
    }

    /// What it takes to bring a tensor from one sharding to another.
    pub(super) fn between(&self, sizes: SizesId, from: Sharding, to: Sharding) -> Price {
        if from == to { Price::default() } else { self.to_each(from, &self.numbered(sizes, &[to]))[0] }
    }

    /// The same for each of several.
    pub(super) fn to_each(&self, from: Sharding, to: &Numbered) -> Vec<Price> {
        let (mut moves, sizes) = (self.moves.borrow_mut(), self.sizes.borrow());
        let known = moves.entry((to.sizes, from)).or_default();
        let most = to.all.iter().map(|(_, number)| number + 1).max().unwrap_or(0);
        known.resize(known.len().max(most), UNKNOWN);
        let price = |(to_one, number): &(Sharding, usize)| {
            let found = &mut known[*number];
            if found.0.is_nan() {
                let moved = || self.moved(&sizes[to.sizes.0 as usize], &from, to_one);
                let made = if from == *to_one { Price::default() } else { moved() };
                *found = (made.line, made.work);
            }
            Price { line: found.0, work: found.1, ..Price::default() }
        };
        to.all.iter().map(price).collect()
    }

    fn moved(&self, sizes: &Sizes, from: &Sharding, to: &Sharding) -> Price {
        let bytes =
            |sharding: &Sharding| elements(&sizes.factors, self.digits, sharding) * sizes.width as f64;
        let mut way = Route { messages: self, at: *from, price: Price::default(), bytes: &bytes };
        let count = u8::try_from(sizes.factors.len()).expect("a tensor of few dims");
        let is_regular = (1..=count).all(|factor| nests(from, to, factor));
        match self.count {
            Count::Alone if is_regular => way.regular(count, to),
            Count::Alone => way.exchange(to),
            Count::Least => {
                let together =
                    if is_regular { way.regular(count, to).line } else { self.lacks(sizes, from, to) };
                Price { line: together.min(self.one_by_one(sizes, from, to)), ..Price::default() }
            }
        }
    }

    /// Seconds in which each device gets what it lacks from those that have it, at least, first from those of its node.
    fn one_by_one(&self, sizes: &Sizes, from: &Sharding, to: &Sharding) -> f64 {
        let (wanted, own) = (self.elements(sizes, to), self.met(sizes, from, to));
        let here = self.met(sizes, &self.outer(from), to);
        let parts = |set: Set| f64::from(self.digits.count(set));
        let partial = Set::of((0..DIGITS).filter(|at| from[*at] == PARTIAL));
        let inside = Set(partial.0 & self.digits.inside().0);
        let near = here * parts(inside) - own;
        let far = wanted * parts(partial) - here * parts(inside);
        let (node, network) = (self.cluster.nodes[0].link.rate(), self.cluster.network.rate());
        let seconds = |elements: f64, rate: f64| if elements > 0.0 { elements / rate } else { 0.0 };
        (seconds(near, node) + seconds(far, network)) * sizes.width as f64
    }

    /// Seconds in which a device, and a node, get what they lack, whatever collectives bring it: what is a sum of `p` parts
    /// and wanted by `c` goes `p - 1` times from one to another, and `c - 1` times further.
    fn lacks(&self, sizes: &Sizes, from: &Sharding, to: &Sharding) -> f64 {
        let of = |from: &Sharding, to: &Sharding, among: Set| {
            let count = |sharding: &Sharding, what: u8| {
                f64::from(self.digits.count(Set::of(among.digits().filter(|at| sharding[*at] == what))))
            };
            let (parts, copies, wanted) = (count(from, PARTIAL), count(to, COPIES), self.elements(sizes, to));
            let all = match parts > 1.0 {
                true => wanted * (parts + copies - 2.0) / copies,
                false => wanted - self.met(sizes, from, to),
            };
            all * sizes.width as f64
        };
        let (node, network) = (&self.cluster.nodes[0].link, &self.cluster.network);
        let (inside, all) = (self.digits.inside(), Set::of(0..self.digits.len()));
        let changed = Set::of((0..DIGITS).filter(|at| from[*at] != to[*at]));
        let bytes = of(from, to, all);
        let summed = self.elements(sizes, to) * sizes.width as f64;
        let alone = if node.sums { bytes.min(summed) } else { bytes } / self.quickest(changed);
        let lines = if network.shared { 1 } else { self.digits.count(inside) };
        let outside = of(&self.outer(from), &self.outer(to), Set(all.0 & !inside.0));
        alone.max(outside / (network.rate() * f64::from(lines)))
    }

    /// What all devices of a node have together.
    fn outer(&self, sharding: &Sharding) -> Sharding {
        std::array::from_fn(|at| if at < self.digits.outside { sharding[at] } else { COPIES })
    }

    fn elements(&self, sizes: &Sizes, sharding: &Sharding) -> f64 {
        elements(&sizes.factors, self.digits, sharding)
    }

    fn met(&self, sizes: &Sizes, one: &Sharding, other: &Sharding) -> f64 {
        met(&sizes.factors, self.digits, one, other)
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
fn nests(from: &Sharding, to: &Sharding, factor: u8) -> bool {
    let of = |sharding: &Sharding| Set::of((0..DIGITS).filter(|at| sharding[*at] == factor));
    let both = Set(of(from).0 & of(to).0);
    let first = |all: Set| all.digits().zip(both.digits()).all(|(a, b)| a == b);
    first(of(from)) && first(of(to))
}

/// From one sharding on to the next.
struct Route<'m, 'c> {
    messages: &'m Messages<'c>,
    at: Sharding,
    price: Price,
    bytes: &'m dyn Fn(&Sharding) -> f64,
}

impl Route<'_, '_> {
    /// Devices keep their part of what several have.
    fn slice(&mut self, to: &Sharding) {
        let next: Sharding =
            std::array::from_fn(|at| if self.at[at] == COPIES { to[at] } else { self.at[at] });
        if next != self.at {
            self.price.work += self.messages.copies(2.0 * (self.bytes)(&next));
            self.at = next;
        }
    }

    /// Where the digits of each factor lie as collectives need them.
    fn regular(&mut self, factors: u8, to: &Sharding) -> Price {
        self.slice(to);
        let factors: Vec<u8> =
            (1..=factors).filter(|factor| self.at.contains(factor) || to.contains(factor)).collect();
        for factor in &factors {
            self.change(PARTIAL, *factor, to, Pattern::ReduceScatter);
        }
        for (one, other) in factors.iter().flat_map(|one| factors.iter().map(move |other| (*one, *other))) {
            if one != other {
                self.change(one, other, to, Pattern::AllToAll);
            }
        }
        self.change(PARTIAL, COPIES, to, Pattern::AllReduce);
        for factor in factors {
            self.change(factor, COPIES, to, Pattern::AllGather);
        }
        self.price
    }

    /// All digits that do one thing and shall do another.
    fn change(&mut self, one: u8, other: u8, to: &Sharding, pattern: Pattern) {
        let set = Set::of((0..DIGITS).filter(|at| self.at[*at] == one && to[*at] == other));
        if set.is_empty() {
            return;
        }
        let before = (self.bytes)(&self.at);
        set.digits().for_each(|at| self.at[at] = other);
        let bytes = if pattern == Pattern::AllGather { (self.bytes)(&self.at) } else { before };
        self.price.line += self.messages.seconds(pattern, set, bytes);
    }

    /// What each device lacks comes from the others.
    fn exchange(&mut self, to: &Sharding) -> Price {
        let set = Set::of((0..DIGITS).filter(|at| self.at[*at] != to[*at]));
        let bytes = (self.bytes)(to).max((self.bytes)(&self.at));
        Price { line: self.messages.seconds(Pattern::AllToAll, set, bytes), ..Price::default() }
    }
}
