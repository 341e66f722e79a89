//! The least sums, and the plans that have them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use diag::Result;
use elimination::{Least, NEVER, Problem};
use graph::OpId;
use plan::sets::SetTerm;
use plan::{Draft, ParamSharding, Plan};

use super::certificate::{Searched, bound};
use super::digits::Digits;
use super::maker::{Ground, Operators};
use super::messages::{Count, Messages};
use super::objective::{EXPOSED, FIRST, Look, Moved, NOTHING, Objective, Totals, UNIT, Weights};
use super::param_sharding::ParamChoice;
use super::recomputed::{may_recompute, recompute, spans};
use super::sharding::splits;
use super::solved::{limit, solved_among, solved_nearly};
use super::space::Space;
use super::stretched::Stretches;
use crate::Question;
use crate::bound::kinds;
use crate::title::Title;

/// How often is looked in all.
const LOOKS: usize = 4;
/// Nothing more is computed again where what was found is no more than so many times the bound.
const ENOUGH: f64 = 1.02;
/// What is no more than this over the least is as good as it.
const NEAR: f64 = 2e-3;
/// How often the price of a byte is halved until memory is just enough.
const HALVINGS: usize = 6;

/// What was found.
#[derive(Default)]
pub struct Inside {
    pub plans: Vec<Candidate>,
    pub stats: Stats,
}

/// What is known of all plans of a space.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stats {
    /// Seconds that none of them can beat.
    pub bound: f64,
    /// Decisions, their choices in all, sums that were looked at, and how long that took.
    pub decisions: usize,
    pub choices: usize,
    pub sums: f64,
    pub seconds: f64,
}

/// A plan that costs least under some weights, and what it comes to.
pub struct Candidate {
    pub plan: Plan,
    pub claim: Claim,
}

/// What is claimed of a plan.
#[derive(Clone, Copy, Debug)]
pub struct Claim {
    pub totals: Totals,
    /// What it computes again, and what it is least in.
    pub(super) recomputed: Option<SetTerm>,
    pub(super) weights: Weights,
}

/// The best plans of one block, and what none can beat; once it is late, no further ones.
pub fn find(question: &Question<'_>) -> Result<Inside> {
    let digits = Digits::new(question.cluster, question.devices);
    let messages = Messages::new(question.cluster, &digits, Count::Alone);
    let operators = Operators::new(question);
    Spaces::new((&operators, &digits, &messages)).find(question, true)
}

/// The spaces of a model on some devices, which are the same however much memory there is.
pub(super) struct Spaces<'q> {
    ground: Ground<'q>,
    /// By what is recomputed; none where that is no plan.
    made: Vec<Option<(Space<'q>, Vec<Vec<OpId>>)>>,
}

impl<'q> Spaces<'q> {
    pub(super) const fn new(ground: Ground<'q>) -> Self {
        Self { ground, made: vec![] }
    }

    /// Makes the next one. None where it is late, or constraints leave a bundle no choice.
    fn make(&mut self, question: &Question<'q>) -> Option<()> {
        let spans = spans(question, recompute()[self.made.len()]);
        let space = match spans.filter(|spans| may_recompute(question, spans)) {
            Some(spans) => Some((Space::new(question, self.ground, &spans)?, spans)),
            None => None,
        };
        self.made.push(space);
        Some(())
    }

    /// The best plans, and what none can beat if that is asked for.
    pub(super) fn find(&mut self, question: &Question<'q>, with_bound: bool) -> Result<Inside> {
        let start = Instant::now();
        let mut inside = Inside::default();
        let floor = crate::bound(question)?;
        let (mut looked, mut promised) = (vec![], f64::INFINITY);
        for (at, &recomputed) in recompute().iter().enumerate() {
            if self.made.len() == at && self.make(question).is_none() {
                break;
            }
            let Some((space, spans)) = &mut self.made[at] else { continue };
            space.question = *question;
            let inside = &mut inside;
            let (promised_before, stretches) =
                ((0.0, None), Stretches::of_model(&space.bundles, &space.edges));
            let mut fallback =
                Fallback { space, stretches, spans, recomputed, floor, inside, promised: promised_before };
            let is_tight = fallback.climb()?;
            promised = promised.min(fallback.promised.0);
            looked.push(Searched { weights: fallback.promised.1, is_tight, spans: spans.clone() });
            let best = inside.plans.iter().map(|it| it.claim.totals.least()).fold(f64::INFINITY, f64::min);
            // Who computes more again takes no less.
            if !is_tight && best <= ENOUGH * promised || question.stop.is_late() {
                break;
            }
        }
        if with_bound && is_plain(question) && !question.stop.is_late() {
            let (operators, digits, _) = self.ground;
            let bound = bound(question, operators, digits, &looked, &mut inside.stats.sums)?.max(floor);
            // Of what was stopped on the way nothing is known.
            inside.stats.bound = if question.stop.is_late() { 0.0 } else { bound };
        }
        inside.stats.seconds = start.elapsed().as_secs_f64();
        Ok(inside)
    }

    /// The best plan if nothing of what is sent were hidden, in the spaces that are made.
    pub(super) fn exposed(&mut self, question: &Question<'q>) -> Result<Option<Candidate>> {
        let mut inside = Inside::default();
        let floor = crate::bound(question)?;
        for (made, &recomputed) in self.made.iter_mut().zip(recompute()) {
            let Some((space, spans)) = made else { continue };
            space.question = *question;
            let (promised, stretches) = ((0.0, None), Stretches::of_model(&space.bundles, &space.edges));
            let inside = &mut inside;
            let mut fallback = Fallback { space, stretches, spans, recomputed, floor, inside, promised };
            if let Some(solution) = fallback.cheapest(EXPOSED, limit(question) as f64)? {
                fallback.keep(&solution)?;
            }
        }
        let seconds = |candidate: &Candidate| candidate.claim.totals.exposed();
        Ok(inside.plans.into_iter().min_by(|a, b| seconds(a).total_cmp(&seconds(b))))
    }
}

/// Whether a bound can be claimed. Of devices or nodes that differ, who is slowest in one thing may be the quickest in
/// another; and of messages that were measured, several may take less together than one by one.
fn is_plain(question: &Question<'_>) -> bool {
    let (nodes, network) = (&question.cluster.nodes, &question.cluster.network);
    let kinds = kinds(question.cluster, question.devices);
    let formulas = nodes[0].link.measured.is_empty() && network.measured.is_empty();
    kinds.len() == 1 && nodes.iter().all(|node| *node == nodes[0]) && formulas
}

/// All plans that compute the same again.
struct Fallback<'r, 'q> {
    space: &'r Space<'q>,
    spans: &'r [Vec<OpId>],
    recomputed: Option<SetTerm>,
    /// Seconds that no plan can beat.
    floor: f64,
    inside: &'r mut Inside,
    /// About the seconds below which no plan is, as costs are counted here, and the weights by which that was found: layers in
    /// the middle of alike ones are divided alike, and while a price is looked for few values count. Nothing is claimed by it.
    promised: (f64, Option<Weights>),
    stretches: Stretches,
}

/// Of which values the least is looked for: of all, or of those that promise most, while the price of a byte is looked for.
#[derive(Clone, Copy, PartialEq)]
enum Among {
    All,
    Few,
}

/// So many values of each bundle count then.
const FEW: usize = 16;

/// The least under some weights.
struct Found {
    least: Least,
    weights: Weights,
    totals: Totals,
    /// By how much it costs more than the least of those that fit, at most, as a share of that.
    over: f64,
    /// Whether memory had a price.
    is_tight: bool,
}

impl Found {
    /// Without the price of bytes.
    fn time(&self) -> f64 {
        self.least.cost - self.weights.byte * self.totals.bytes
    }
}

impl Fallback<'_, '_> {
    /// Looks at what binds the plans that are found, a few times. Gives whether memory did.
    fn climb(&mut self) -> Result<bool> {
        let deciding = || self.space.ties.deciding();
        self.inside.stats.decisions = deciding().count();
        self.inside.stats.choices = deciding().map(|at| self.space.bundles[at].choices.len()).sum();
        let (limit, mut is_tight) = (limit(&self.space.question) as f64, false);
        let mut looks = VecDeque::from(FIRST);
        for _ in 0..LOOKS {
            let Some(look) = looks.pop_front() else { break };
            let cheapest = self.cheapest(look, limit)?;
            is_tight |= cheapest.as_ref().is_none_or(|solution| solution.is_tight);
            let Some(solution) = cheapest else { continue };
            self.keep(&solution)?;
            if self.space.question.stop.is_late() {
                break;
            }
            if !solution.is_tight && look.is_only(solution.totals.binds()) {
                // None takes less.
                break;
            }
            if looks.is_empty() {
                looks.extend(look.towards(solution.totals.binds()));
            }
        }
        Ok(is_tight)
    }

    /// The least that fits with a price for bytes that is just enough, or as good as nothing.
    fn cheapest(&mut self, look: Look, limit: f64) -> Result<Option<Found>> {
        let nothing = self.floor / UNIT * NOTHING / limit.max(1.0);
        let (mut lower, mut moved): (f64, _) = (0.0, Moved::default());
        let mut at = |byte: f64, among: Among| -> Result<Option<Found>> {
            let solution = self.least(Weights { look, byte }, among, &mut moved)?;
            let exact = solution.iter().filter(|it| it.least.is_least || among == Among::Few);
            lower = exact.map(|it| it.least.cost - byte * limit).fold(lower, f64::max);
            if lower * UNIT > self.promised.0 {
                self.promised = (lower * UNIT, Some(Weights { look, byte }));
            }
            Ok(solution.map(|solved| Found { over: solved.time() / lower - 1.0, ..solved }))
        };
        let fits = |solution: &Found| solution.totals.bytes <= limit;
        let Some(first) = at(nothing, Among::All)? else { return Ok(None) };
        if fits(&first) {
            return Ok(Some(first));
        }
        // So dear that a byte too many costs all the time there is.
        let (mut low, mut high) = (nothing, 16.0 * first.least.cost / limit.max(1.0));
        let mut best = at(high, Among::Few)?.filter(fits);
        if best.is_none() {
            best = at(high, Among::All)?.filter(fits);
        }
        let Some(mut best) = best else { return Ok(None) };
        for _ in 0..HALVINGS {
            if best.over <= NEAR {
                break;
            }
            let middle = (low * high).sqrt();
            match at(middle, Among::Few)? {
                Some(solution) if fits(&solution) => (best, high) = (solution, middle),
                _ => low = middle,
            }
        }
        let exact = at(best.weights.byte, Among::All)?.filter(fits);
        let best = exact.filter(|exact| exact.time() <= best.time()).unwrap_or(best);
        Ok(Some(Found { is_tight: true, ..best }))
    }

    fn least(&mut self, weights: Weights, among: Among, moved: &mut Moved) -> Result<Option<Found>> {
        let objective = Objective::new(self.space, weights)?;
        let problem = objective.problem_with(moved);
        let Some(mut least) = self.solved(&problem, among) else { return Ok(None) };
        self.inside.stats.sums += least.sums.0;
        if least.cost == NEVER {
            return Ok(None);
        }
        least.values = self.space.ties.expand(&least.values);
        let totals = objective.totals(&least.values);
        Ok(Some(Found { least, weights, totals, over: f64::INFINITY, is_tight: false }))
    }

    /// The least of a problem, where layers in the middle of alike ones are divided alike.
    fn solved(&mut self, problem: &Problem, among: Among) -> Option<Least> {
        let question = &self.space.question;
        // Where bundles are tied, variables are others.
        let is_free = self.space.ties.deciding().count() == self.space.bundles.len();
        let short = if is_free { self.stretches.short_model(problem) } else { None };
        let solved = |problem: &Problem| match among {
            Among::All => solved_nearly(question, problem),
            Among::Few => solved_among(question, problem, FEW),
        };
        match short {
            Some(short) => solved(&short.problem).map(|minimum| short.stretched(&minimum)),
            None => solved(problem),
        }
    }

    fn keep(&mut self, solution: &Found) -> Result<()> {
        let objective = Objective::new(self.space, solution.weights)?;
        let plan = plan(&objective, &solution.least.values, self.recomputed, self.spans)?;
        if !self.inside.plans.iter().any(|other| is_one(&other.plan, &plan)) {
            let claim =
                Claim { totals: solution.totals, recomputed: self.recomputed, weights: solution.weights };
            self.inside.plans.push(Candidate { plan, claim });
        }
        Ok(())
    }
}

/// Whether two plans of this space are one.
pub(super) fn is_one(one: &Plan, other: &Plan) -> bool {
    one.ops == other.ops && one.param_shardings == other.param_shardings && one.recompute == other.recompute
}

/// The plan that choices mean.
fn plan(
    objective: &Objective<'_>,
    values: &[usize],
    recomputed: Option<SetTerm>,
    spans: &[Vec<OpId>],
) -> Result<Plan> {
    let question = &objective.space.question;
    let name = Title::auto(recomputed).to_string();
    let mut draft = Draft::new(question.graph, question.analysis, &name, question.devices);
    for (bundle, value) in values.iter().enumerate() {
        write(objective, &mut draft, bundle, *value, 0)?;
    }
    spans.iter().for_each(|span| draft.recompute(span.clone()));
    draft.finish()
}

/// Writes what a choice means for a bundle, on devices from `first` on.
pub(super) fn write(
    objective: &Objective<'_>,
    draft: &mut Draft<'_>,
    bundle: usize,
    value: usize,
    first: u32,
) -> Result<()> {
    let space = objective.space;
    let bundle = &space.bundles[bundle];
    let devices: Arc<[u32]> = (first..first + space.question.devices).collect();
    for op in &bundle.ops {
        let mut splits = splits(space.digits, &space.loops(*op, &bundle.choices[value]));
        splits.retain(|split| split.parts > 1);
        draft.set(*op, splits);
        draft.place(*op, Arc::clone(&devices))?;
    }
    let groups = |way: ParamChoice| {
        let relative = space.digits.groups(way.over).into_iter();
        relative
            .map(|group| group.into_iter().map(|device| first + device).collect())
            .collect::<Vec<Vec<u32>>>()
    };
    for (tensor, held) in bundle.params.iter().zip(&bundle.unary[value].held) {
        let sharding = objective.way(held).map(|way| ParamSharding {
            groups: Arc::from(groups(way)),
            dim: None,
            gather: way.gather,
            reduce: way.reduce,
        });
        draft.sharding(*tensor, sharding);
    }
    Ok(())
}

/// Any plan of the space: `pick` gives the number of one of so many choices. With the price of a byte that parameters are
/// held by.
pub fn member(
    question: &Question<'_>,
    recomputed: Option<SetTerm>,
    byte: f64,
    count: Count,
    pick: &mut dyn FnMut(usize) -> usize,
) -> Result<Option<Candidate>> {
    let digits = Digits::new(question.cluster, question.devices);
    let messages = Messages::new(question.cluster, &digits, count);
    let operators = Operators::new(question);
    let Some(spans) = spans(question, recomputed) else { return Ok(None) };
    let Some(space) = Space::new(question, (&operators, &digits, &messages), &spans) else { return Ok(None) };
    let values: Vec<usize> = space.bundles.iter().map(|bundle| pick(bundle.choices.len())).collect();
    let values = space.ties.expand(&values);
    let weights = Weights { look: FIRST[1], byte };
    let objective = Objective::new(&space, weights)?;
    let plan = plan(&objective, &values, recomputed, &spans)?;
    let claim = Claim { totals: objective.totals(&values), recomputed, weights };
    Ok(Some(Candidate { plan, claim }))
}
