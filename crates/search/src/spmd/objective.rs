//! What a plan is asked to be least in, as tables.

use std::collections::BTreeMap;
use std::rc::Rc;

use compiler::{SUM, states, updated};
use diag::Result;
use elimination::{Problem, Term};

use super::bundles::Unary;
use super::messages::MessagePrice;
use super::param_sharding::{Costs, DeviceReads, ParamChoice, Params, Terms, ways};
use super::space::Space;

/// Costs are whole numbers of this: of a second.
pub(super) const UNIT: f64 = 1e-12;

/// What is looked at, in shares of all: that the line is busy, that what is sent last begins with the last backward, and
/// for the rest that devices work and wait. Of what is sent meanwhile, a share may be taken to be waited for, too.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    pub(super) line: f64,
    pub(super) last: f64,
    pub(super) exposed: f64,
}

/// What a plan is least in: with the price of a byte in units.
#[derive(Clone, Copy, Debug)]
pub(super) struct Weights {
    pub(super) look: Look,
    pub(super) byte: f64,
}

/// What is looked at first.
pub(super) const FIRST: [Look; 2] = [Look::hiding(0.0, 0.0), Look::hiding(0.25, 0.5)];
/// As if nothing were hidden. A step takes no longer than that, so nothing is claimed of it.
pub(super) const EXPOSED: Look = Look { line: 0.0, last: 0.0, exposed: 1.0 };
/// A byte has a price in any case, so that of two ways that take as long the smaller one is found: all bytes that there
/// are cost this share of the step.
pub(super) const NOTHING: f64 = 1e-5;

impl Look {
    /// Where all is hidden that can be.
    pub(super) const fn hiding(line: f64, last: f64) -> Self {
        Self { line, last, exposed: 0.0 }
    }

    /// Whether nothing else is looked at than what binds.
    pub(super) fn is_only(self, binds: Look) -> bool {
        (self.line, self.last) == (binds.line, binds.last)
    }

    /// Half of the way to what binds a plan that was found; none if nothing but its work does.
    pub(super) fn towards(self, binds: Look) -> Option<Self> {
        let (line, last) = (f64::midpoint(self.line, binds.line), f64::midpoint(self.last, binds.last));
        let half = Self { line, last, ..self };
        (binds.line + binds.last > 0.0).then_some(half)
    }
}

/// What choices come to, in a step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Totals {
    /// Seconds in which a device computes and copies.
    pub works: f64,
    /// Seconds in which it waits for values.
    pub waits: f64,
    /// What of it is in the last backward.
    pub last: f64,
    /// Seconds of what is sent meanwhile: parameters and their gradients.
    pub sends: f64,
    /// In which one of its lines is busy at least.
    pub busy: f64,
    /// The same, of what cannot begin before the last backward.
    pub late: f64,
    /// Seconds of the optimizer's step.
    pub updates: f64,
    /// Bytes of parameters, gradients, the optimizer's state, and what is kept for backward.
    pub bytes: f64,
}

impl Totals {
    /// Seconds that a step takes at least: it works and waits; its line is busy; what is sent last comes after all but the
    /// last backward.
    pub fn least(&self) -> f64 {
        let [works, last, line] = self.looked();
        works.max(last).max(line) + self.updates
    }

    /// Seconds if nothing of what is sent is hidden.
    pub(super) fn exposed(&self) -> f64 {
        self.works + self.waits + self.sends + self.updates
    }

    /// As it works and waits, as what is sent last comes last, as a line is busy.
    fn looked(&self) -> [f64; 3] {
        let works = self.works + self.waits;
        [works, works - self.last + self.late, self.busy]
    }

    /// Of each of its numbers and the other's what is made of the two.
    pub(super) fn mixed(&self, other: &Self, mix: impl Fn(f64, f64) -> f64) -> Self {
        Self {
            works: mix(self.works, other.works),
            waits: mix(self.waits, other.waits),
            last: mix(self.last, other.last),
            sends: mix(self.sends, other.sends),
            busy: mix(self.busy, other.busy),
            late: mix(self.late, other.late),
            updates: mix(self.updates, other.updates),
            bytes: mix(self.bytes, other.bytes),
        }
    }

    /// Which of these it is.
    pub(super) fn binds(&self) -> Look {
        let [works, last, line] = self.looked();
        let is = |it: bool| if it { 1.0 } else { 0.0 };
        Look::hiding(is(line > works && line > last), is(last > works && last >= line))
    }
}

impl std::ops::Add for Totals {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        self.mixed(&other, |one, other| one + other)
    }
}

/// What it costs to bring values from bundle to bundle, by where their prices lie: the same whatever a byte costs.
pub(super) type Moved = BTreeMap<usize, Rc<[f64]>>;

/// A space under weights.
pub(super) struct Objective<'o> {
    pub(super) space: &'o Space<'o>,
    weights: Weights,
    terms: Terms<'o, 'o>,
    /// Of so many micro-batches something is kept at once.
    kept: f64,
    /// So many lines each device has.
    lines: f64,
}

impl<'o> Objective<'o> {
    pub(super) fn new(space: &'o Space<'o>, weights: Weights) -> Result<Self> {
        let question = &space.question;
        let rate = |kind: &cluster::Device| kind.bandwidth * kind.reached.1;
        let slowest = space.messages.kinds.iter().map(|kind| rate(kind)).fold(f64::INFINITY, f64::min);
        let terms = Terms {
            messages: space.messages,
            batches: f64::from(question.batches),
            gradients: if question.batches > 1 { 1.0 } else { 0.0 },
            states: states(question.optimizer)? as f64,
            add: 0.0,
            update: updated(1, question.optimizer)? as f64 / slowest,
        };
        let lines = f64::from(question.cluster.lines(question.devices));
        Ok(Self { space, weights, terms, kept: 1.0, lines })
    }

    /// As a stage of a pipeline, where something is kept of so many micro-batches at once; gradients that are added are
    /// counted, too.
    pub(super) fn of_stage(self, kept: f64) -> Self {
        let rate = |kind: &cluster::Device| kind.bandwidth * kind.reached.1;
        let slowest = self.space.messages.kinds.iter().map(|kind| rate(kind)).fold(f64::INFINITY, f64::min);
        let add = (self.terms.batches - 1.0) * SUM / slowest;
        Self { kept, terms: Terms { add, ..self.terms }, ..self }
    }

    /// Tables of all choices; of bundles that are tied one decides for all ([`super::respects::Ties`]).
    pub(super) fn problem(&self) -> Problem {
        self.problem_with(&mut Moved::default())
    }

    /// The same; what is between bundles may be known, for this look.
    pub(super) fn problem_with(&self, moved: &mut Moved) -> Problem {
        self.space.ties.tied(self.untied(moved))
    }

    /// The same where each bundle decides for itself. What is between bundles may be known, for this look.
    pub(super) fn untied(&self, moved: &mut Moved) -> Problem {
        let mut known: BTreeMap<usize, Rc<[f64]>> = BTreeMap::new();
        let mut terms = vec![];
        for (number, bundle) in self.space.bundles.iter().enumerate() {
            let at = Rc::as_ptr(&bundle.unary) as usize;
            let costs = known
                .entry(at)
                .or_insert_with(|| bundle.unary.iter().map(|it| self.bundle_cost(it, 0)).collect());
            terms.push(Term { scope: vec![number], costs: Rc::clone(costs) });
        }
        for edge in &self.space.edges {
            let at = Rc::as_ptr(&edge.prices) as usize;
            let costs = moved.entry(at).or_insert_with(|| edge.prices.each(|price| self.moved(price)));
            terms.push(Term { scope: vec![edge.ends.0, edge.ends.1], costs: Rc::clone(costs) });
        }
        let sizes = self.space.bundles.iter().map(|bundle| bundle.choices.len()).collect();
        Problem { sizes, terms }
    }

    /// Without some of the parameters.
    pub(super) fn bundle_cost(&self, unary: &Unary, without: Params) -> f64 {
        let held = |held: &DeviceReads| self.weighted(&self.terms.costs(held, self.way(held))).floor();
        self.moved(&unary.price)
            + held_but(unary, without).map(held).sum::<f64>()
            + (unary.kept * self.kept * self.weights.byte).floor()
    }

    fn moved(&self, price: &MessagePrice) -> f64 {
        let Look { line, last, .. } = self.weights.look;
        let works = (1.0 - line) * price.work * self.terms.batches - last * price.back;
        let waits = (1.0 - line + line / self.lines) * price.line * self.terms.batches;
        ((works + waits) / UNIT).floor()
    }

    fn weighted(&self, costs: &Costs) -> f64 {
        let (Look { line, last, exposed }, byte) = (self.weights.look, self.weights.byte);
        let sent = (line * costs.sent + last * costs.late) / self.lines + exposed * costs.sent;
        (sent + costs.updated + (1.0 - line) * costs.added) / UNIT + byte * costs.bytes
    }

    /// The way to hold a parameter that costs least.
    pub(super) fn way(&self, held: &DeviceReads) -> Option<ParamChoice> {
        let costs = |way| (self.weighted(&self.terms.costs(held, way)), way);
        let all = ways(self.space.digits, held).into_iter().map(costs);
        all.min_by(|a, b| a.0.total_cmp(&b.0)).and_then(|best| best.1)
    }

    /// What choices come to, whatever the weights.
    pub(super) fn totals(&self, values: &[usize]) -> Totals {
        let bundles = values.iter().enumerate().map(|(bundle, value)| self.of_bundle(bundle, *value));
        let between = self.space.edges.iter().map(|edge| self.of_price(self.space.price(edge, values)));
        bundles.chain(between).fold(Totals::default(), |a, b| a + b)
    }

    /// The same of one bundle.
    pub(super) fn of_bundle(&self, bundle: usize, value: usize) -> Totals {
        self.of_bundle_without(bundle, value, 0)
    }

    /// And without some of its parameters.
    pub(super) fn of_bundle_without(&self, bundle: usize, value: usize, without: Params) -> Totals {
        let unary = &self.space.bundles[bundle].unary[value];
        let held = |held: &DeviceReads| {
            let costs = self.terms.costs(held, self.way(held));
            Totals {
                works: costs.added,
                sends: costs.sent,
                busy: costs.sent / self.lines,
                late: costs.late / self.lines,
                updates: costs.updated,
                bytes: costs.bytes,
                ..Totals::default()
            }
        };
        let kept = Totals { bytes: unary.kept, ..Totals::default() };
        held_but(unary, without).map(held).fold(self.of_price(&unary.price) + kept, |a, b| a + b)
    }

    pub(super) fn of_price(&self, price: &MessagePrice) -> Totals {
        let waits = price.line * self.terms.batches;
        Totals {
            works: price.work * self.terms.batches,
            waits,
            busy: waits / self.lines,
            last: price.back,
            ..Totals::default()
        }
    }
}

/// What is held of a bundle's parameters, but of some.
fn held_but(unary: &Unary, without: Params) -> impl Iterator<Item = &DeviceReads> {
    let is_held = move |at: usize| at >= Params::BITS as usize || without >> at & 1 == 0;
    unary.held.iter().enumerate().filter(move |(at, _)| is_held(*at)).map(|(_, held)| held)
}
