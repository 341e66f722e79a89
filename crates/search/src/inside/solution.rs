//! The least sums, and the plans that have them.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use compiler::{states, updated};
use diag::Result;
use elimination::{Least, Problem, Solver, Term};
use graph::OpId;
use plan::{Draft, Home, Plan, sets};

use super::digits::Digits;
use super::homes::{Terms, Way, ways};
use super::messages::{Messages, Price};
use super::space::{Bundle, Space, Unary};
use super::spread::splits;
use crate::Question;

/// Shares of what is sent meanwhile.
const SHARES: [f64; 4] = [0.0, 0.125, 0.25, 0.5];
/// The entries of a table are no more than this.
const MOST: f64 = 4e8;
/// Costs are whole numbers of this unit: of a second.
const UNIT: f64 = 1e-12;
/// How often the price of a byte is halved until memory is just enough.
const HALVINGS: usize = 10;
/// What is computed again, from nothing to everything.
const AGAIN: [&str; 3] = ["", "recompute:selective", "recompute"];

/// What was found.
pub struct Inside {
    pub plans: Vec<Plan>,
    /// Seconds that no plan of the space can beat.
    pub bound: f64,
    /// Decisions, their choices in all, and sums that were looked at.
    pub decisions: usize,
    pub choices: usize,
    pub sums: f64,
}

/// What a plan is asked to be least in: the share of what is sent meanwhile, and the price of a byte.
#[derive(Clone, Copy)]
struct Weights {
    share: f64,
    byte: f64,
}

/// What values of a space come to.
#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    /// Seconds in which a device computes or waits at once, and in which its line is busy meanwhile.
    bytes: f64,
}

/// The best plans of one block, and what none can beat.
pub fn find(question: &Question<'_>) -> Result<Inside> {
    let digits = Digits::of(question.cluster, question.devices);
    let messages = Messages::new(question.cluster, &digits);
    let mut inside = Inside { plans: vec![], bound: f64::INFINITY, decisions: 0, choices: 0, sums: 0.0 };
    for again in AGAIN {
        let Some(spans) = spans(question, again) else { continue };
        let space = Space::new(question, &digits, &messages, &spans)?;
        let mut rung = Rung { space: &space, spans: &spans, again, solver: Solver::default(), inside: &mut inside };
        rung.climb()?;
    }
    Ok(inside)
}

/// What backward computes again; none where the model has no layers for it.
fn spans(question: &Question<'_>, again: &str) -> Option<Vec<Vec<OpId>>> {
    let name = if again.is_empty() { "replicate".to_owned() } else { format!("replicate x {again}") };
    sets::named(&name, question.graph, question.analysis, 1).ok().map(|plan| plan.recompute)
}

/// All plans that compute the same again.
struct Rung<'r, 'q> {
    space: &'r Space<'q>,
    spans: &'r [Vec<OpId>],
    again: &'r str,
    solver: Solver,
    inside: &'r mut Inside,
}

impl Rung<'_, '_> {
    fn climb(&mut self) -> Result<()> {
        self.inside.decisions = self.space.bundles.len();
        self.inside.choices = self.space.bundles.iter().map(|bundle| bundle.choices.len()).sum();
        let mut bound: f64 = 0.0;
        let limit = self.limit();
        for share in SHARES {
            let mut weights = Weights { share, byte: 0.0 };
            let Some((least, totals)) = self.least(weights)? else { continue };
            bound = bound.max(least.cost * UNIT);
            if totals.bytes <= limit {
                self.keep(&least, weights)?;
                continue;
            }
            // So dear that a byte too many costs all the time there is.
            let (mut low, mut high) = (0.0, least.cost / limit * 16.0);
            let mut fitting = None;
            for _ in 0..HALVINGS {
                weights.byte = if fitting.is_none() { high } else { f64::midpoint(low, high) };
                let Some((least, totals)) = self.least(weights)? else { break };
                bound = bound.max((least.cost - weights.byte * limit) * UNIT);
                if totals.bytes <= limit {
                    (fitting, high) = (Some((least, weights)), weights.byte);
                } else if fitting.is_none() {
                    break;
                } else {
                    low = weights.byte;
                }
            }
            if let Some((least, weights)) = fitting {
                self.keep(&least, weights)?;
            }
        }
        self.inside.bound = self.inside.bound.min(bound);
        Ok(())
    }

    /// Bytes of the device that has fewest.
    fn limit(&self) -> f64 {
        let question = &self.space.question;
        let of = |rank| question.memory.unwrap_or(question.cluster.device(rank).memory);
        (0..question.devices).map(of).min().unwrap_or(0) as f64
    }

    fn terms(&self) -> Result<Terms<'_, '_>> {
        let question = &self.space.question;
        let passes = updated(1, question.optimizer)? as f64;
        let slowest = question.cluster.kinds.iter().map(|kind| kind.bandwidth * kind.reached.1).fold(f64::INFINITY, f64::min);
        Ok(Terms {
            messages: self.space.messages,
            batches: f64::from(question.batches),
            states: states(question.optimizer)? as f64,
            update: passes / slowest,
        })
    }

    fn least(&mut self, weights: Weights) -> Result<Option<(Least, Totals)>> {
        let problem = self.problem(weights)?;
        let Some(least) = self.solver.solve(&problem, MOST) else { return Ok(None) };
        self.inside.sums += least.sums.0;
        let terms = self.terms()?;
        let bytes = |(bundle, value): (&Bundle, &usize)| {
            let unary = &bundle.unary[*value];
            let held = |held| {
                let way = self.way(&terms, held, weights);
                terms.costs(held, way).bytes
            };
            unary.kept + unary.held.iter().map(held).sum::<f64>()
        };
        let bytes = self.space.bundles.iter().zip(&least.values).map(bytes).sum();
        Ok(Some((least, Totals { bytes })))
    }

    fn problem(&self, weights: Weights) -> Result<Problem> {
        let (space, terms) = (self.space, self.terms()?);
        let batches = f64::from(space.question.batches) / UNIT;
        let moved = |price: &Price| (((1.0 - weights.share) * price.work + price.line) * batches).floor();
        let mut known: BTreeMap<usize, Rc<[f64]>> = BTreeMap::new();
        let mut all = vec![];
        for (number, bundle) in space.bundles.iter().enumerate() {
            let of = |unary: &Unary| {
                let held: f64 = unary.held.iter().map(|held| {
                    let way = self.way(&terms, held, weights);
                    weighted(&terms, held, way, weights).floor()
                }).sum();
                moved(&unary.price) + held + (unary.kept * weights.byte).floor()
            };
            let at = Rc::as_ptr(&bundle.unary) as usize;
            let costs = known.entry(at).or_insert_with(|| bundle.unary.iter().map(of).collect());
            all.push(Term { scope: vec![number], costs: Rc::clone(costs) });
        }
        for edge in &space.edges {
            let at = Rc::as_ptr(&edge.prices) as usize;
            let costs = known.entry(at).or_insert_with(|| edge.prices.iter().map(moved).collect());
            all.push(Term { scope: vec![edge.ends.0, edge.ends.1], costs: Rc::clone(costs) });
        }
        Ok(Problem { sizes: space.bundles.iter().map(|bundle| bundle.choices.len()).collect(), terms: all })
    }

    /// The way to hold a parameter that costs least.
    fn way(&self, terms: &Terms<'_, '_>, held: &super::homes::Held, weights: Weights) -> Option<Way> {
        let all = ways(self.space.digits, held).into_iter();
        let costs = all.map(|way| (weighted(terms, held, way, weights), way));
        costs.min_by(|a, b| a.0.total_cmp(&b.0)).and_then(|found| found.1)
    }

    fn keep(&mut self, least: &Least, weights: Weights) -> Result<()> {
        let plan = self.plan(least, weights)?;
        let same = |other: &Plan| other.ops == plan.ops && other.homes == plan.homes && other.recompute == plan.recompute;
        if !self.inside.plans.iter().any(same) {
            self.inside.plans.push(plan);
        }
        Ok(())
    }

    fn plan(&self, least: &Least, weights: Weights) -> Result<Plan> {
        let (space, question, terms) = (self.space, &self.space.question, self.terms()?);
        let name = if self.again.is_empty() { "auto".to_owned() } else { format!("auto x {}", self.again) };
        let mut draft = Draft::new(question.graph, question.analysis, &name, question.devices);
        let devices: Vec<u32> = (0..question.devices).collect();
        for (bundle, value) in space.bundles.iter().zip(&least.values) {
            for op in &bundle.ops {
                let mut found = splits(space.digits, &space.loops(*op, &bundle.choices[*value]));
                found.retain(|split| split.parts > 1);
                draft.set(*op, found);
                draft.place(*op, &devices)?;
            }
            for (tensor, held) in bundle.params.iter().zip(&bundle.unary[*value].held) {
                let home = self.way(&terms, held, weights).map(|way| Home {
                    groups: Arc::from(space.digits.groups(way.over)),
                    dim: None,
                    gather: way.gather,
                    reduce: way.reduce,
                });
                draft.home(*tensor, home);
            }
        }
        self.spans.iter().for_each(|span| draft.recompute(span.clone()));
        draft.finish()
    }
}

fn weighted(terms: &Terms<'_, '_>, held: &super::homes::Held, way: Option<Way>, weights: Weights) -> f64 {
    let costs = terms.costs(held, way);
    (weights.share * costs.sent + (1.0 - weights.share) * costs.updated) / UNIT + weights.byte * costs.bytes
}
