//! The steady state: the times of one micro-batch's blocks, when the next ones follow as soon as they can.
//!
//! If micro-batches can follow each other every `p`, they can every `p + 1`: a pause for all devices between two periods breaks
//! nothing. So each answer is one for all shorter periods, or for all longer ones.

use std::time::Instant;

use diag::Error;

use crate::bounds::period_bound;
use crate::net::FAR;
use crate::problem::Problem;
use crate::search::Ask;
use crate::solve::{Answer, Budget, is_refuted, solve};
use crate::valid::fault;

/// How much may be searched.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// So many nodes, of which the same are visited each time.
    pub nodes: u64,
    /// Until then; what is found depends on the machine.
    pub until: Option<Instant>,
    /// The most micro-batches that are under way at a time; else twice as many as there are blocks. One of them follows the other.
    pub in_flight: Option<i64>,
}

impl Default for Limits {
    fn default() -> Self {
        Self { nodes: 20_000, until: None, in_flight: None }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repetend {
    /// So many micro-batches begin in a period, after which all begins again for the next ones.
    pub group: usize,
    pub period: i64,
    /// No shorter period of so many micro-batches is possible.
    pub bound: i64,
    /// When each block begins, for each of them.
    pub times: Vec<Vec<i64>>,
    /// What was looked at to find it.
    pub nodes: u64,
}

impl Repetend {
    /// How long the busiest device waits in a period.
    pub fn bubbles(&self, problem: &Problem) -> i64 {
        self.period - self.group as i64 * problem.most_work()
    }

    /// Whether it is proved that there is no shorter one.
    pub fn is_shortest(&self) -> bool {
        self.period == self.bound
    }

    /// How many micro-batches are under way at the same time.
    pub fn in_flight(&self, problem: &Problem) -> i64 {
        let ends =
            |row: &[i64]| row.iter().zip(&problem.blocks).map(|(at, it)| at + it.time).max().unwrap_or(0);
        let first = |row: &[i64]| row.iter().copied().min().unwrap_or(0);
        let begun = |now: i64, time: i64| (now - time).div_euclid(self.period);
        let at = |now: i64| self.times.iter().map(|row| begun(now, first(row)) - begun(now, ends(row))).sum();
        self.times.iter().map(|row| at(first(row))).max().unwrap_or(0)
    }

    /// When a block begins for a micro-batch.
    pub(crate) fn time(&self, batch: usize, block: usize) -> i64 {
        self.times[batch % self.group][block] + (batch / self.group) as i64 * self.period
    }
}

/// The most micro-batches of a period, and the most blocks of them all.
const MOST_GROUP: usize = 4;
const MOST_BLOCKS: usize = 64;

/// The shortest period that is found, and of the times that have it some with a short span. Where it has bubbles, several micro-batches
/// may have fewer together. None if there are none at all, or none is found.
pub fn repetend(problem: &Problem, limits: &Limits) -> Option<Repetend> {
    let mut best = pattern(problem, 1, limits)?;
    for group in 2..=MOST_GROUP {
        if best.bubbles(problem) == 0
            || limits.in_flight.is_some()
            || group * problem.blocks.len() > MOST_BLOCKS
        {
            break;
        }
        let Some(candidate) = pattern(problem, group, &Limits { nodes: limits.nodes / 4, ..*limits }) else {
            continue;
        };
        let nodes = best.nodes + candidate.nodes;
        if candidate.period * (best.group as i64) < best.period * group as i64 {
            best = candidate;
        }
        best.nodes = nodes;
    }
    Some(best)
}

/// Of so many micro-batches in a period.
fn pattern(problem: &Problem, group: usize, limits: &Limits) -> Option<Repetend> {
    let (all, count) = (problem.copies(group), problem.blocks.len());
    let longest: i64 = all.blocks.iter().map(|block| block.time).sum();
    let most = (FAR / 2 / longest.max(1)).max(1);
    let iterations: Vec<(usize, usize)> = (0..count).map(|it| (it, (group - 1) * count + it)).collect();
    let mut search = Periods {
        problem: &all,
        iterations: if group == 1 { &[] } else { &iterations },
        in_flight: limits.in_flight.unwrap_or(2 * all.blocks.len() as i64).clamp(1, most),
        least: period_bound(problem, group),
        budget: Budget { nodes: 0, most: limits.nodes, until: limits.until },
        bound: 0,
        best: None,
    };
    search.bound = search.plain_bound();
    search.shorten();
    search.best = search.best.take().or_else(|| search.one_by_one());
    search.straighten();
    let (bound, nodes) = (search.bound, search.budget.nodes);
    let rows = |times: Vec<i64>| times.chunks(count).map(<[i64]>::to_vec).collect();
    search.best.map(|(period, times)| Repetend { group, period, bound, times: rows(times), nodes })
}

fn span(problem: &Problem, times: &[i64]) -> i64 {
    let ends = times.iter().zip(&problem.blocks).map(|(time, block)| time + block.time);
    ends.max().unwrap_or(0) - times.iter().min().unwrap_or(&0)
}

/// Why there is no repetend.
pub(crate) fn none_found(problem: &Problem, limits: &Limits) -> Error {
    let alone: i64 = problem.blocks.iter().map(|block| block.time).sum();
    let in_flight = limits.in_flight.unwrap_or(2 * problem.blocks.len() as i64).max(1);
    Error::new("SW0373", "no order was found that repeats for any number of micro-batches")
        .why(format!(
            "with at most {in_flight} micro-batches in flight, one at least every {alone} units of time, \
             devices run out of room, or the search ended first"
        ))
        .fix("give devices more room (`--memory`), or the search more time (`--deadline`)")
}

struct Periods<'p> {
    problem: &'p Problem,
    iterations: &'p [(usize, usize)],
    /// No period is shorter, whatever is tried.
    least: i64,
    in_flight: i64,
    budget: Budget,
    /// No shorter period is possible.
    bound: i64,
    best: Option<(i64, Vec<i64>)>,
}

impl<'p> Periods<'p> {
    fn ask(&self, period: i64) -> Ask<'p> {
        Ask { problem: self.problem, iterations: self.iterations, period, span: self.in_flight * period }
    }

    /// One block after the other.
    fn longest(&self) -> i64 {
        self.problem.blocks.iter().map(|block| block.time).sum()
    }

    /// What there is if the search ends before it finds anything.
    fn one_by_one(&self) -> Option<(i64, Vec<i64>)> {
        let mut times = vec![0; self.problem.blocks.len()];
        let mut now = 0;
        for block in self.problem.in_order()? {
            times[block] = now;
            now += self.problem.blocks[block].time;
        }
        fault(self.problem, std::slice::from_ref(&times)).is_none().then_some((now, times))
    }

    /// The shortest period that is not refuted before anything is tried.
    fn plain_bound(&self) -> i64 {
        let (mut low, mut high) = (self.least, self.longest());
        while low < high {
            let middle = (low + high).div_euclid(2);
            match is_refuted(self.ask(middle)) {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        low
    }

    /// Tries a period, with some of the nodes that are left.
    fn is_found(&mut self, period: i64, share: u64) -> bool {
        let left = self.budget.most.saturating_sub(self.budget.nodes);
        let mut trial_budget = Budget { nodes: 0, most: left / share, ..self.budget };
        let answer = solve(self.ask(period), &mut trial_budget);
        self.budget.nodes += trial_budget.nodes;
        match answer {
            Answer::Times(times) => self.best = Some((period, times)),
            Answer::No => self.bound = self.bound.max(period + 1),
            Answer::Unknown => {}
        }
        self.best.as_ref().is_some_and(|best| best.0 == period)
    }

    /// From the bound on in longer and longer steps until there is an answer, and then between the last two.
    fn shorten(&mut self) {
        let (mut low, mut step) = (self.bound, 1);
        let mut period = low;
        while !self.is_found(period, 2) {
            if period >= self.longest() {
                return;
            }
            low = period + 1;
            period = (period + step).min(self.longest());
            step *= 2;
        }
        let mut high = period;
        while low.max(self.bound) < high {
            low = low.max(self.bound);
            let middle = (low + high).div_euclid(2);
            match self.is_found(middle, 4) {
                true => high = middle,
                false => low = middle + 1,
            }
        }
    }

    /// A shorter way from the first block to the last one: then the beginning and the end of a step take less.
    fn straighten(&mut self) {
        let Some((period, mut times)) = self.best.take() else { return };
        let mut low =
            self.problem.heads().into_iter().zip(&self.problem.blocks).map(|(at, it)| at + it.time).max();
        while let Some(least) = low.filter(|low| *low < span(self.problem, &times)) {
            let middle = (least + span(self.problem, &times)) / 2;
            let ask = Ask { span: middle, ..self.ask(period) };
            let mut trial_budget = Budget { nodes: 0, most: STRAIGHTEN, ..self.budget };
            match if is_refuted(ask) { Answer::No } else { solve(ask, &mut trial_budget) } {
                Answer::Times(shorter) => times = shorter,
                Answer::No | Answer::Unknown => low = Some(middle + 1),
            }
            self.budget.nodes += trial_budget.nodes;
        }
        self.best = Some((period, times));
    }
}

/// The nodes for each try at a shorter span.
const STRAIGHTEN: u64 = 600;
