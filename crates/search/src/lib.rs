//! Chooses a plan for a model on a cluster, and says how far from the best it can be.
//!
//! The space is that of the well-known plans in all their shapes ([`space`]): so many stages, copies and ways of
//! `megatron` as fill the devices, with parameters whole or divided, and as little recomputed as fits. Each is lowered
//! and simulated: what is claimed of a plan is what its program takes. That of the quickest is proved. Where only the quickest are wanted, plans are
//! passed over of which it is known before ([`lower_bound`]) that they are not among them ([`best_first`]). Plans of one block that have
//! no name are found operator by operator ([`spmd`]), and the best pipelines in orders that have none ([`schedule_orders`]). [`bound()`] is what no plan can beat, in this space or any other, under
//! the same costs.

mod ahead;
mod best_first;
mod bound;
mod constraints;
mod few_layers;
mod layers;
mod lower_bound;
mod offload;
mod partial_recompute;
pub mod pipeline;
mod reason;
mod schedule_orders;
mod space;
pub mod spmd;
mod state_on_host;
mod stop;
mod title;

use std::cell::RefCell;
use std::time::Duration;

use check::{Masters, Memory, Purpose};
use cluster::Cluster;
use compiler::{Estimate, Setting, estimate, estimate_unproved, require_batches};
use diag::{Error, Result};
use graph::Graph;
use plan::Plan;
use program::{Boundary, Inputs};
use rules::Analysis;

pub use bound::bound;
pub use constraints::Constraints;
pub use lower_bound::{LowerBound, LowerBounds};
pub use reason::{Reason, Why, why};
pub use space::{Shape, shapes};
pub use spmd::{Claim, Stats};
pub use stop::Stop;

/// What is asked.
#[derive(Clone, Copy)]
pub struct Question<'q> {
    pub graph: &'q Graph,
    pub analysis: &'q Analysis,
    pub boundary: &'q Boundary,
    pub masters: &'q Masters,
    pub cluster: &'q Cluster,
    /// So many of the cluster's devices, the first ones.
    pub devices: u32,
    /// Micro-batches of a step, each as large as the graph's inputs.
    pub batches: u32,
    pub optimizer: &'q str,
    /// Of each device, where that is not what the cluster says.
    pub memory: Option<u64>,
    /// What all plans must respect.
    pub constraints: Option<&'q Constraints>,
    /// When to stop looking, and to give what is best so far.
    pub stop: Stop<'q>,
    /// So many plans may be evaluated at the same time. What is found does not depend on it.
    pub threads: usize,
}

#[cfg(test)]
impl<'q> Question<'q> {
    /// Of four micro-batches on all devices, as tests ask.
    pub(crate) fn of_tests(
        graph: &'q Graph,
        analysis: &'q Analysis,
        boundary: &'q Boundary,
        masters: &'q Masters,
        cluster: &'q Cluster,
    ) -> Self {
        Self {
            graph,
            analysis,
            boundary,
            masters,
            cluster,
            devices: cluster.devices(),
            batches: 4,
            optimizer: "adamw",
            memory: None,
            constraints: None,
            stop: Stop::default(),
            threads: 1,
        }
    }
}

impl Question<'_> {
    /// Bytes of memory that a rank may use.
    pub(crate) fn there(&self, rank: u32) -> u64 {
        let memory = self.memory.unwrap_or_else(|| self.cluster.device(rank).memory);
        self.constraints.and_then(|it| it.memory).map_or(memory, |limit| limit.min(memory))
    }

    /// The most that any rank may use.
    pub(crate) fn most(&self) -> u64 {
        (0..self.devices).map(|rank| self.there(rank)).max().unwrap_or(0)
    }

    pub(crate) fn setting(&self) -> Setting<'_> {
        Setting {
            cluster: self.cluster,
            batches: self.batches,
            optimizer: self.optimizer,
            masters: self.masters,
            compiled: false,
        }
    }

    /// A plan, if it respects the constraints; else the first that it does not.
    pub(crate) fn respected(&self, plan: Plan) -> Result<Plan> {
        let Some(constraints) = self.constraints else { return Ok(plan) };
        match constraints.broken(&plan, self.graph, self.analysis).first() {
            None => Ok(plan),
            Some(number) => {
                let broken = &constraints.all[*number];
                Err(Error::new("SW0333", format!("it breaks `{}` ({})", broken.text, broken.place)))
            }
        }
    }
}

/// A plan that was looked at.
#[derive(Clone, Debug)]
pub struct Evaluated {
    pub plan: Plan,
    pub estimate: Estimate,
    /// The rank that uses most of its memory: how much it needs, and how much there is.
    pub memory: (u32, u64, u64),
    /// The same of what it has on its host.
    pub host: (u32, u64, u64),
    /// What was claimed of it, if it has no name.
    pub claim: Option<Claim>,
    /// Seconds that a step takes at least, as it was told of a pipeline that was found.
    pub piped: Option<f64>,
    /// Why it is as it is, if it was found; of one that was changed, what it was.
    pub reason: Option<Reason>,
    /// Where an order of its blocks was searched: seconds that these take at least, in whatever order.
    pub order: Option<f64>,
}

/// What was found.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// What fits before what does not, and the quickest first.
    pub rows: Vec<Evaluated>,
    /// Plans of the space that are none for this model, and why.
    pub passed_over: Vec<(String, String)>,
    /// Seconds of a step that no plan can beat.
    pub bound: f64,
    /// How many shapes were looked at, of how many.
    pub tried: (usize, usize),
    /// Of plans of one block, operator by operator, if these were looked at.
    pub inside: Option<Stats>,
    /// Of pipelines whose stages are found, if these were looked at.
    pub stages: Option<pipeline::Stats>,
    /// How many plans were not lowered, because they are not among those that were wanted.
    pub left_out: usize,
    /// How many constraints all of them respect.
    pub constraints: usize,
}

/// Which plans are wanted: so many of the quickest that fit, of those that are below so many seconds.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    pub count: usize,
    pub below: f64,
}

/// Where several plans are wanted, pipelines that take more than so many times what a plan of one block does are not looked at.
const FARTHEST: f64 = 4.0;

impl Wanted {
    pub const ALL: Self = Self { count: usize::MAX, below: f64::INFINITY };
}

impl Evaluated {
    pub fn seconds(&self) -> f64 {
        self.estimate.simulation.seconds
    }

    pub fn fits(&self) -> bool {
        self.memory.1 <= self.memory.2 && self.host.1 <= self.host.2
    }

    /// Whether it could fit if it needed nothing for some purposes. A little more may be held besides where less is kept.
    pub(crate) fn could_fit_without(&self, saved: &[Purpose]) -> bool {
        let (rank, needed, there) = self.memory;
        let memory = &self.estimate.memory[rank as usize];
        let saved: u64 = saved.iter().map(|purpose| memory.peak[*purpose as usize]).sum();
        (needed - saved) as f64 <= SURELY * there as f64
    }

    /// Proves the program, so that what is told of it is what a proved one takes.
    fn prove(&mut self, question: &Question<'_>) -> Result<()> {
        let setting = question.setting();
        let proved = estimate(question.graph, question.analysis, &self.plan, question.boundary, &setting)?;
        debug_assert_eq!(proved.simulation.seconds.to_bits(), self.seconds().to_bits(), "{}", self.plan.name);
        self.estimate = proved;
        Ok(())
    }

    /// Seconds in which some rank computes again, at most.
    fn recomputed(&self) -> f64 {
        self.estimate.simulation.ranks.iter().map(|rank| rank.recomputed).fold(0.0, f64::max)
    }
}

/// What needs more than so many times the memory there without what is saved, does not fit.
const SURELY: f64 = 1.1;

/// Seconds of the quickest that fits.
pub(crate) fn least_of(rows: &[Evaluated]) -> f64 {
    rows.iter().filter(|candidate| candidate.fits()).map(Evaluated::seconds).fold(f64::INFINITY, f64::min)
}

/// Looks at all plans of the space, until the deadline; `watch` is told each by name.
pub fn compare(
    question: &Question<'_>,
    deadline: Option<Duration>,
    watch: &mut dyn FnMut(&str),
) -> Result<Found> {
    quickest(question, Wanted::ALL, deadline, watch)
}

/// The same, for the plans that are wanted. Of others some may be there, too.
pub fn quickest(
    question: &Question<'_>,
    wanted: Wanted,
    deadline: Option<Duration>,
    watch: &mut dyn FnMut(&str),
) -> Result<Found> {
    refuse_numbers(question)?;
    let stop = deadline.map_or(question.stop, |deadline| question.stop.after(deadline));
    let mut result = looked_for(&Question { stop, ..*question }, wanted, watch)?;
    if let Some(first) = result.rows.first_mut().filter(|first| first.fits()) {
        first.prove(question)?;
    }
    result.constraints = question.constraints.map_or(0, |it| it.all.len());
    match question.constraints.filter(|_| result.rows.is_empty() && wanted.below == f64::INFINITY) {
        Some(constraints) => Err(constraints::clash::clash(question, constraints)?),
        None => Ok(result),
    }
}

fn looked_for(question: &Question<'_>, wanted: Wanted, watch: &mut dyn FnMut(&str)) -> Result<Found> {
    let mut result = of_all_kinds(question, wanted, watch)?;
    // Of those that were found operator by operator that was looked at before.
    let others = result.rows.iter().filter(|candidate| candidate.claim.is_none());
    let offload = offload::rows(question, others, least_of(&result.rows), watch)?;
    result.rows.extend(offload);
    let with_state = state_on_host::rows(question, &result.rows, least_of(&result.rows), watch)?;
    result.rows.extend(with_state);
    result.rows.extend(partial_recompute::rows(question, &result.rows, watch)?);
    let ordered = schedule_orders::rows(question, &result.rows, watch)?;
    result.rows.extend(ordered.rows);
    result.passed_over.extend(ordered.passed_over);
    result.rows.sort_by(|a, b| b.fits().cmp(&a.fits()).then(a.seconds().total_cmp(&b.seconds())));
    Ok(result)
}

/// Of those that compute all layers again that are alike, or none.
fn of_all_kinds(question: &Question<'_>, wanted: Wanted, watch: &mut dyn FnMut(&str)) -> Result<Found> {
    // Ranks that are given their own rows of a batch can run plans with names: others may read any part of it.
    if question.devices == 1 || question.boundary.inputs == Inputs::Local {
        return best_first::search(question, wanted, watch);
    }
    let (mut looked, stats) = spmd::rows(question, watch)?;
    let offload = offload::rows(question, looked.rows.iter(), least_of(&looked.rows), watch)?;
    looked.rows.extend(offload);
    let only_one = wanted.count == 1;
    let best = wanted.below.min(least_of(&looked.rows));
    let below = if only_one { best } else { wanted.below };
    let watch = RefCell::new(watch);
    let mut tell = |name: &str| watch.borrow_mut()(name);
    let is_enough = |looked: &Evaluations| question.stop.is_late() && looked.rows.iter().any(Evaluated::fits);
    let mut named = match is_enough(&looked) {
        true => None,
        false => Some(best_first::Search::new(question, Wanted { below, ..wanted }, &mut tell)?),
    };
    let with_stages = question.constraints.and_then(Constraints::stages).is_none_or(|most| most > 1);
    if let Some(named) = named.as_mut().filter(|_| only_one && with_stages) {
        named.until_piped()?;
    }
    let mut stages = None;
    if with_stages {
        // If one is wanted, another one is only if it is quicker.
        let times = if only_one { 1.0 } else { FARTHEST };
        let known = named.as_ref().map_or(best, |named| best.min(named.quickest()));
        let mut tell = |name: &str| watch.borrow_mut()(name);
        let (more, stats) = pipeline::rows(question, wanted.below.min(times * known), &mut tell)?;
        stages = Some(stats);
        looked.rows.extend(more.rows);
        looked.passed_over.extend(more.passed_over);
    }
    let below = if only_one { best.min(least_of(&looked.rows)) } else { wanted.below };
    let mut result = match named {
        Some(named) if is_enough(&looked) => named.so_far(),
        Some(named) => named.finish(below)?,
        None => best_first::nothing(question)?,
    };
    result.rows.extend(looked.rows);
    result.passed_over.extend(looked.passed_over);
    Ok(Found { inside: Some(stats), stages, ..result })
}

/// Refuses no devices, and more than there are; and as many micro-batches as no step has.
pub(crate) fn refuse_numbers(question: &Question<'_>) -> Result<()> {
    let there = question.cluster.devices();
    if question.devices == 0 || question.devices > there {
        let cluster = &question.cluster.name;
        return Err(Error::new(
            "SW0921",
            format!("{} devices of the {there} of {cluster} were asked for", question.devices),
        )
        .why("a plan has at least one device, and each is one of the cluster's")
        .fix(format!("give a number from 1 to {there}, or name a larger cluster")));
    }
    require_batches(question.batches)
}

/// The quickest plan that fits.
pub fn best(
    question: &Question<'_>,
    deadline: Option<Duration>,
    watch: &mut dyn FnMut(&str),
) -> Result<Found> {
    let result = quickest(question, Wanted { count: 1, below: f64::INFINITY }, deadline, watch)?;
    let Some(first) = result.rows.first() else {
        let why =
            result.passed_over.first().map_or_else(String::new, |(name, why)| format!("`{name}`: {why}"));
        let what = format!("no plan was found for {} on {} devices", question.graph.model, question.devices);
        return Err(Error::new("SW0922", what).why(why).fix("name a plan, or write one"));
    };
    if first.fits() {
        return Ok(result);
    }
    if let Some(constraints) = question.constraints {
        if let Some(error) = constraints::clash::too_tight(question, constraints)? {
            return Err(error);
        }
    }
    let over = |candidate: &&Evaluated| (candidate.memory.1 <= candidate.memory.2, candidate.memory.1);
    let lightest = result.rows.iter().min_by_key(over).expect("there is one");
    Err(fits_in_no_way(question, lightest, result.tried))
}

const MORE: &str = "more devices or devices with more memory, or smaller micro-batches";

/// `tried` are the shapes that were looked at, of how many.
fn fits_in_no_way(question: &Question<'_>, least: &Evaluated, (tried, all): (usize, usize)) -> Error {
    let on_device = least.memory.1 > least.memory.2;
    let (rank, needed, there) = if on_device { least.memory } else { least.host };
    let size = compiler::size;
    let place = if on_device { "" } else { "the host of " };
    let what = format!(
        "no plan of {} that was tried fits into memory: the smallest needs {} on {place}rank {rank}, \
         which has {}",
        question.graph.model,
        size(needed),
        size(there)
    );
    let error = Error::new("SW0920", what)
        .why(format!(
            "under `{}`: {}",
            least.plan.name,
            compiler::uses(&least.estimate.memory[rank as usize], question.optimizer)
        ))
        .fix(match tried < all {
            true => {
                format!(
                    "{tried} of {all} shapes were evaluated before the deadline: give a longer \
                         deadline, or {MORE}"
                )
            }
            false => format!("give {MORE}"),
        });
    match &least.estimate.memory[rank as usize].at {
        Some(at) => error.at(at.to_string()),
        None => error,
    }
}

/// A plan that was found, what is claimed of it, and what of a pipeline.
#[derive(Clone)]
pub(crate) struct Own {
    pub(crate) plan: Plan,
    pub(crate) claim: Option<Claim>,
    pub(crate) piped: Option<f64>,
    pub(crate) reason: Option<Reason>,
}

impl Own {
    /// A plan of which nothing is claimed.
    pub(crate) const fn new(plan: Plan) -> Self {
        Self { plan, claim: None, piped: None, reason: None }
    }
}

impl Evaluated {
    /// Another plan, which is this one changed.
    pub(crate) fn with(&self, plan: Plan) -> Own {
        Own { reason: self.reason.clone(), ..Own::new(plan) }
    }
}

/// Plans that were looked at, and those that are none for the model, and why.
#[derive(Default)]
pub struct Evaluations {
    pub rows: Vec<Evaluated>,
    pub passed_over: Vec<(String, String)>,
}

impl Evaluations {
    /// Lowers and simulates plans, where it is late no more than one in all; `watch` is told each.
    pub(crate) fn at(
        &mut self,
        question: &Question<'_>,
        plans: impl Iterator<Item = Own>,
        watch: &mut dyn FnMut(&str),
    ) -> Result<()> {
        let mut plans = plans.peekable();
        while plans.peek().is_some() && (!question.stop.is_late() || self.rows.is_empty()) {
            // Where it is late, it is late for all but the first.
            let count = if question.stop.is_late() { 1 } else { question.threads.max(1) };
            let some: Vec<Own> = plans.by_ref().take(count).collect();
            some.iter().for_each(|candidate| watch(&candidate.plan.name));
            let evaluated =
                ahead::evaluated(question, some.iter().map(|candidate| candidate.plan.clone()).collect());
            for (Own { plan, claim, piped, reason }, evaluated) in some.into_iter().zip(evaluated) {
                match evaluated {
                    Err(error) if is_refusal(&error) => self.passed_over.push((plan.name, error.what)),
                    other => self.rows.push(Evaluated { claim, piped, reason, ..other? }),
                }
            }
        }
        Ok(())
    }
}

/// Whether a plan is none for the model; an own program that is refused is a bug.
pub(crate) fn is_refusal(error: &Error) -> bool {
    !error.code.starts_with("SW05")
}

/// What a plan takes, lowered and simulated.
fn estimated(question: &Question<'_>, plan: &Plan) -> Result<Estimate> {
    estimate_unproved(question.graph, question.analysis, plan, question.boundary, &question.setting())
}

/// A plan, lowered and simulated. One that does not respect the constraints is a bug of whoever made it.
pub(crate) fn candidate(question: &Question<'_>, plan: Plan) -> Result<Evaluated> {
    if let Some(constraints) = question.constraints {
        constraints.confirm(&plan, question.graph, question.analysis)?;
    }
    let estimate = estimated(question, &plan)?;
    let of_host = |rank: u32| question.cluster.device(rank).host_memory;
    let memory = fullest(&estimate.memory, Memory::total, |rank| question.there(rank));
    let host = fullest(&estimate.memory, |memory| memory.offloaded, of_host);
    Ok(Evaluated { plan, memory, host, estimate, claim: None, piped: None, reason: None, order: None })
}

/// The rank that needs most of what it has, with how much it needs and how much there is.
fn fullest(all: &[Memory], needed: impl Fn(&Memory) -> u64, there: impl Fn(u32) -> u64) -> (u32, u64, u64) {
    let used = |(rank, memory): (u32, &Memory)| (rank, needed(memory), there(rank));
    let share = |(_, needed, there): &(u32, u64, u64)| *needed as f64 / *there as f64;
    let most = (0..).zip(all).map(used).reduce(|a, b| if share(&b) > share(&a) { b } else { a });
    most.unwrap_or((0, 0, there(0)))
}
