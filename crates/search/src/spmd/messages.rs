//! What it takes to bring a tensor from one sharding to another.
//!
//! Which steps lead there, [`sharding::greedy`] says. Here they are priced.

use std::cell::RefCell;
use std::collections::BTreeMap;

use cluster::{COPIES as OF_COPIES, Cluster, Collective, Contention, Device, OpCost, Sort};
use graph::Dtype;
use hashing::Map;
use indexmap::IndexSet;
use sharding::{AXES, AxisSet, By, COPIES, PARTIAL, Step, greedy, is_regular};

use crate::bound::kinds;

use super::digits::Digits;
use super::sharding::{Sharding, elements, met};

/// Seconds of communication, and of work on the device: in all, and what of each is in a backward.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct MessagePrice {
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
    groups: RefCell<Map<AxisSet, (Vec<u32>, Contention)>>,
    known: RefCell<BTreeMap<(Collective, AxisSet, u64), f64>>,
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

impl std::ops::Add for MessagePrice {
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

impl MessagePrice {
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
    fn seconds(&self, collective: Collective, set: AxisSet, bytes: f64) -> f64 {
        match self.count {
            Count::Alone => self.formula(collective, set, bytes),
            Count::Least => self.formula(collective, set, LONG) / LONG * bytes,
        }
    }

    fn formula(&self, collective: Collective, set: AxisSet, bytes: f64) -> f64 {
        let key = (collective, set, bytes as u64);
        if let Some(known) = self.known.borrow().get(&key) {
            return *known;
        }
        let mut groups = self.groups.borrow_mut();
        let (group, contention) = groups.entry(set).or_insert_with(|| {
            let all = self.digits.groups(set);
            (all[0].clone(), self.cluster.contention(all.iter().map(Vec::as_slice)))
        });
        let seconds = self.cluster.collective(collective, group, *contention, bytes);
        self.known.borrow_mut().insert(key, seconds);
        seconds
    }

    /// The same without what it takes to start, where it goes together with others.
    pub(super) fn more(&self, collective: Collective, set: AxisSet, bytes: f64) -> f64 {
        match self.count {
            Count::Alone => {
                (self.formula(collective, set, bytes) - self.formula(collective, set, 1.0)).max(0.0)
            }
            Count::Least => self.seconds(collective, set, bytes),
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
    pub(super) fn between(&self, sizes: SizesId, from: Sharding, to: Sharding) -> MessagePrice {
        if from == to { MessagePrice::default() } else { self.to_each(from, &self.numbered(sizes, &[to]))[0] }
    }

    /// The same for each of several.
    pub(super) fn to_each(&self, from: Sharding, to: &Numbered) -> Vec<MessagePrice> {
        let (mut moves, sizes) = (self.moves.borrow_mut(), self.sizes.borrow());
        let known = moves.entry((to.sizes, from)).or_default();
        let most = to.all.iter().map(|(_, number)| number + 1).max().unwrap_or(0);
        known.resize(known.len().max(most), UNKNOWN);
        let price = |(to_one, number): &(Sharding, usize)| {
            let entry = &mut known[*number];
            if entry.0.is_nan() {
                let moved = || self.moved(&sizes[to.sizes.0 as usize], &from, to_one);
                let made = if from == *to_one { MessagePrice::default() } else { moved() };
                *entry = (made.line, made.work);
            }
            MessagePrice { line: entry.0, work: entry.1, ..MessagePrice::default() }
        };
        to.all.iter().map(price).collect()
    }

    fn moved(&self, sizes: &Sizes, from: &Sharding, to: &Sharding) -> MessagePrice {
        let count = u8::try_from(sizes.factors.len()).expect("a tensor of few dims");
        match self.count {
            Count::Alone => self.in_steps(sizes, from, to, count),
            Count::Least => {
                let together = match is_regular(from, to, count) {
                    true => self.in_steps(sizes, from, to, count).line,
                    false => self.lacks(sizes, from, to),
                };
                MessagePrice {
                    line: together.min(self.one_by_one(sizes, from, to)),
                    ..MessagePrice::default()
                }
            }
        }
    }

    fn in_steps(&self, sizes: &Sizes, from: &Sharding, to: &Sharding, count: u8) -> MessagePrice {
        let bytes = |sharding: &Sharding| self.elements(sizes, sharding) * sizes.width as f64;
        let mut price = MessagePrice::default();
        greedy(from, to, count, |Step { by, axes, before, after }| match by {
            By::Slice => price.work += self.copies(2.0 * bytes(&after)),
            By::Collective(collective) => {
                let counted = if collective == Collective::AllGather { &after } else { &before };
                price.line += self.seconds(collective, axes, bytes(counted));
            }
            By::Exchange => {
                price.line += self.seconds(Collective::AllToAll, axes, bytes(&after).max(bytes(&before)));
            }
        });
        price
    }

    /// Seconds in which each device gets what it lacks from those that have it, at least, first from those of its node.
    fn one_by_one(&self, sizes: &Sizes, from: &Sharding, to: &Sharding) -> f64 {
        let (wanted, held) = (self.elements(sizes, to), self.met(sizes, from, to));
        let here = self.met(sizes, &self.outer(from), to);
        let parts = |set: AxisSet| f64::from(self.digits.count(set));
        let partial = AxisSet::from_axes((0..AXES).filter(|at| from[*at] == PARTIAL));
        let inside = AxisSet(partial.0 & self.digits.inside().0);
        let near = here * parts(inside) - held;
        let far = wanted * parts(partial) - here * parts(inside);
        let (node, network) = (self.cluster.nodes[0].link.rate(), self.cluster.network.rate());
        let seconds = |elements: f64, rate: f64| if elements > 0.0 { elements / rate } else { 0.0 };
        (seconds(near, node) + seconds(far, network)) * sizes.width as f64
    }

    /// Seconds in which a device, and a node, get what they lack, whatever collectives bring it: what is a sum of `p` parts
    /// and wanted by `c` goes `p - 1` times from one to another, and `c - 1` times further.
    fn lacks(&self, sizes: &Sizes, from: &Sharding, to: &Sharding) -> f64 {
        let lacking = |from: &Sharding, to: &Sharding, among: AxisSet| {
            let count = |sharding: &Sharding, what: u8| {
                f64::from(
                    self.digits.count(AxisSet::from_axes(among.axes().filter(|at| sharding[*at] == what))),
                )
            };
            let (parts, copies, wanted) = (count(from, PARTIAL), count(to, COPIES), self.elements(sizes, to));
            let all = match parts > 1.0 {
                true => wanted * (parts + copies - 2.0) / copies,
                false => wanted - self.met(sizes, from, to),
            };
            all * sizes.width as f64
        };
        let (node, network) = (&self.cluster.nodes[0].link, &self.cluster.network);
        let (inside, all) = (self.digits.inside(), AxisSet::from_axes(0..self.digits.len()));
        let changed = AxisSet::from_axes((0..AXES).filter(|at| from[*at] != to[*at]));
        let bytes = lacking(from, to, all);
        let summed = self.elements(sizes, to) * sizes.width as f64;
        let alone = if node.sums { bytes.min(summed) } else { bytes } / self.quickest(changed);
        let lines = if network.shared { 1 } else { self.digits.count(inside) };
        let outside = lacking(&self.outer(from), &self.outer(to), AxisSet(all.0 & !inside.0));
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
    fn quickest(&self, set: AxisSet) -> f64 {
        let inside = AxisSet(set.0 & self.digits.inside().0);
        let here = if inside.is_empty() { 0.0 } else { self.cluster.nodes[0].link.rate() };
        let there = if inside == set { 0.0 } else { self.cluster.network.rate() };
        here.max(there)
    }
}
