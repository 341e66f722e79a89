//! Chooses a plan for a model on a cluster, and says how far from the best it can be.
//!
//! The space is that of the well-known plans in all their shapes ([`space`]): so many stages, copies and ways of
//! `megatron` as fill the devices, with parameters whole or divided, and as little recomputed as fits. Each is lowered,
//! proved and simulated: what is claimed of a plan is what its program takes. [`bound`] is what no plan can beat, in this
//! space or any other, under the same costs.

mod bound;
pub mod inside;
mod space;

use std::time::{Duration, Instant};

use check::{Masters, Memory};
use cluster::Cluster;
use compiler::{Estimate, Setting, estimate};
use diag::{Error, Result};
use graph::Graph;
use plan::{Plan, sets};
use program::Boundary;
use rules::Analysis;

pub use bound::bound;
pub use space::{Shape, shapes};

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
}

/// A plan that was looked at.
#[derive(Clone, Debug)]
pub struct Row {
    pub plan: Plan,
    pub estimate: Estimate,
    /// The rank that uses most of its memory: how much it needs, and how much there is.
    pub memory: (u32, u64, u64),
}

/// What was found.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// What fits before what does not, and the quickest first.
    pub rows: Vec<Row>,
    /// Plans of the space that are none for this model, and why.
    pub passed_over: Vec<(String, String)>,
    /// Seconds of a step that no plan can beat.
    pub bound: f64,
    /// How many shapes were looked at, of how many.
    pub tried: (usize, usize),
}

impl Row {
    pub fn seconds(&self) -> f64 {
        self.estimate.simulation.seconds
    }

    pub fn fits(&self) -> bool {
        self.memory.1 <= self.memory.2
    }
}

/// Looks at all plans of the space, until the deadline; `watch` is told each by name.
pub fn compare(
    question: &Question<'_>,
    deadline: Option<Duration>,
    watch: &mut dyn FnMut(&str),
) -> Result<Found> {
    search(question, deadline, false, watch)
}

/// With `prune` nothing is looked at that cannot be the quickest: who computes more again is no quicker.
fn search(
    question: &Question<'_>,
    deadline: Option<Duration>,
    prune: bool,
    watch: &mut dyn FnMut(&str),
) -> Result<Found> {
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
    let start = Instant::now();
    let shapes = shapes(question.devices, question.batches);
    let mut found = Found { bound: bound(question)?, tried: (0, shapes.len()), ..Found::default() };
    for shape in &shapes {
        let late = deadline.is_some_and(|deadline| start.elapsed() >= deadline);
        if late && !found.rows.is_empty() {
            break;
        }
        found.tried.0 += 1;
        look(question, shape, prune, &mut found, watch)?;
    }
    found.rows.sort_by(|a, b| b.fits().cmp(&a.fits()).then(a.seconds().total_cmp(&b.seconds())));
    Ok(found)
}

/// The quickest plan that fits.
pub fn best(
    question: &Question<'_>,
    deadline: Option<Duration>,
    watch: &mut dyn FnMut(&str),
) -> Result<Found> {
    let found = search(question, deadline, true, watch)?;
    let Some(first) = found.rows.first() else {
        let why =
            found.passed_over.first().map_or_else(String::new, |(name, why)| format!("`{name}`: {why}"));
        let what = format!("no plan was found for {} on {} devices", question.graph.model, question.devices);
        return Err(Error::new("SW0922", what).why(why).fix("name a plan, or write one"));
    };
    if first.fits() {
        return Ok(found);
    }
    let least = found.rows.iter().min_by_key(|row| row.memory.1).expect("there is one");
    Err(fits_in_no_way(question, least))
}

fn fits_in_no_way(question: &Question<'_>, least: &Row) -> Error {
    let (rank, needed, there) = least.memory;
    let size = compiler::size;
    let what = format!(
        "{} fits in no way that was tried: the least is {} on rank {rank}, which has {}",
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
        .fix("give more devices or devices with more memory, or smaller micro-batches");
    match &least.estimate.memory[rank as usize].at {
        Some(at) => error.at(at.to_string()),
        None => error,
    }
}

/// A shape in each of its ways to hold parameters, each with as little computed again as fits.
fn look(
    question: &Question<'_>,
    shape: &Shape,
    prune: bool,
    found: &mut Found,
    watch: &mut dyn FnMut(&str),
) -> Result<()> {
    for ladder in shape.ladders() {
        for name in ladder {
            watch(&name);
            let plan = match sets::named(&name, question.graph, question.analysis, question.devices) {
                Ok(plan) => plan,
                Err(error) => {
                    found.passed_over.push((name, error.what));
                    break;
                }
            };
            let row = row(question, plan)?;
            let known = found.rows.iter().any(|other| other.fits() && other.seconds() <= row.seconds());
            let over = row.fits() || prune && known;
            found.rows.push(row);
            if over {
                break;
            }
        }
    }
    Ok(())
}

fn row(question: &Question<'_>, plan: Plan) -> Result<Row> {
    let setting = Setting {
        cluster: question.cluster,
        batches: question.batches,
        optimizer: question.optimizer,
        masters: question.masters,
    };
    let estimate = estimate((question.graph, question.analysis), &plan, question.boundary, &setting)?;
    let there = |rank: u32| question.memory.unwrap_or(question.cluster.device(rank).memory);
    let used = |(rank, memory): (u32, &Memory)| (rank, memory.total(), there(rank));
    let share = |(_, needed, there): &(u32, u64, u64)| *needed as f64 / *there as f64;
    let most = (0..).zip(&estimate.memory).map(used).reduce(|a, b| if share(&b) > share(&a) { b } else { a });
    Ok(Row { plan, memory: most.unwrap_or((0, 0, there(0))), estimate })
}
