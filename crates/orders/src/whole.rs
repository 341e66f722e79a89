//! A whole step: when each block begins for each of so many micro-batches.
//!
//! Each device runs the blocks of all micro-batches in the order of the steady state, without what is for no micro-batch, and
//! each as soon as it can: that is the warm-up, the steady state and the cool-down. Where a step is small all orders are searched, too.

use diag::{Error, Result};

use crate::bounds::makespan_bound;
use crate::pack::{Starts, end_of, packed};
use crate::problem::Problem;
use crate::repetend::{Limits, Repetend, none_found, repetend};
use crate::search::Ask;
use crate::solve::{Answer, Budget, is_refuted, solve};
use crate::valid::fault;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Whole {
    /// For each micro-batch when each block begins.
    pub starts: Vec<Vec<i64>>,
    /// When all have ended.
    pub end: i64,
    /// No step of so many micro-batches ends sooner.
    pub bound: i64,
    /// Whether devices run it in the order of the steady state, which goes on for any number of micro-batches.
    pub in_turn: bool,
    pub nodes: u64,
}

impl Whole {
    pub fn batches(&self) -> usize {
        self.starts.len()
    }

    /// By which share it takes longer than the bound.
    pub fn gap(&self) -> f64 {
        self.end as f64 / self.bound.max(1) as f64 - 1.0
    }

    fn new(problem: &Problem, starts: Vec<Vec<i64>>, bound: i64) -> Self {
        let end = end_of(problem, &starts);
        Self { starts, end, bound, in_turn: true, nodes: 0 }
    }
}

/// So many blocks in a step, over all micro-batches, are few enough to search all orders.
const SMALL: usize = 96;

/// More blocks in a step take the order of the steady state, and no other one is tried.
const LARGE: usize = 1 << 14;

/// The most micro-batches of a step.
const MOST: usize = 4096;

/// The steady state, and the step around it.
pub fn found(problem: &Problem, batches: usize, limits: &Limits) -> Result<(Repetend, Whole)> {
    if !(1..=MOST).contains(&batches) {
        return Err(Error::new("SW0372", format!("a step of {batches} micro-batches cannot be searched"))
            .fix(format!("give a number from 1 to {MOST}; the steady state goes on for more")));
    }
    let steady = repetend(problem, limits);
    let all = steady.and_then(|steady| whole(problem, &steady, batches, limits).map(|step| (steady, step)));
    all.ok_or_else(|| none_found(problem, limits))
}

/// None if none is found that keeps to the devices' room.
pub fn whole(problem: &Problem, repetend: &Repetend, batches: usize, limits: &Limits) -> Option<Whole> {
    let (bound, count) = (makespan_bound(problem, batches), problem.blocks.len() * batches);
    let right = |starts: Starts, in_turn: bool| {
        fault(problem, &starts).is_none().then(|| Whole { in_turn, ..Whole::new(problem, starts, bound) })
    };
    let mut best = right(in_turn(problem, &by_time(problem, repetend, batches, EVEN)), true);
    if let Some(most) = limits.in_flight {
        let plain = || right(unmoved(repetend, batches), true);
        return best.filter(|it| under_way(problem, &it.starts) <= most).or_else(plain);
    }
    for by in STRETCHES.iter().filter(|_| count <= LARGE) {
        if best.as_ref().is_some_and(|best| best.end == bound) {
            break;
        }
        let starts = packed(problem, by_time(problem, repetend, batches, *by));
        let candidate = starts.and_then(|starts| right(starts, false));
        best = best.into_iter().chain(candidate).min_by_key(|it| it.end);
    }
    if count <= SMALL {
        search(problem, batches, limits, bound, &mut best);
    }
    best
}

/// As micro-batches come in the steady state: by four quarters of the period.
const EVEN: i64 = 4;
/// In which orders blocks are packed: as if micro-batches came by so many quarters.
const STRETCHES: [i64; 8] = [EVEN, 3, 5, 2, 6, 8, 16, 1];

/// The blocks of all micro-batches, by the times that they would have.
fn by_time(problem: &Problem, repetend: &Repetend, batches: usize, quarters: i64) -> Vec<(usize, usize)> {
    let later = |batch: usize| (batch / repetend.group) as i64 * repetend.period * (quarters - EVEN);
    let time = |&(batch, block): &(usize, usize)| EVEN * repetend.time(batch, block) + later(batch);
    let mut order: Vec<(usize, usize)> =
        (0..batches).flat_map(|batch| (0..problem.blocks.len()).map(move |block| (batch, block))).collect();
    order.sort_by_key(|it| (time(it), *it));
    order
}

/// Each as soon as the order allows.
fn in_turn(problem: &Problem, order: &[(usize, usize)]) -> Starts {
    let batches = order.iter().map(|it| it.0 + 1).max().unwrap_or(0);
    let mut starts = vec![vec![0; problem.blocks.len()]; batches];
    let mut free = vec![0; problem.devices()];
    for &(batch, at) in order {
        let block = &problem.blocks[at];
        let ends = block.after.iter().map(|it| starts[batch][*it] + problem.blocks[*it].time);
        let start = ends.chain(block.devices.iter().map(|it| free[*it])).max().unwrap_or(0);
        starts[batch][at] = start;
        block.devices.iter().for_each(|it| free[*it] = start + block.time);
    }
    starts
}

/// As in the steady state, from its first block on.
fn unmoved(repetend: &Repetend, batches: usize) -> Starts {
    let first = repetend.times.iter().flatten().min().copied().unwrap_or(0);
    let row =
        |batch: usize| (0..repetend.times[0].len()).map(|at| repetend.time(batch, at) - first).collect();
    (0..batches).map(row).collect()
}

/// The most micro-batches between their first beginning and their last end.
fn under_way(problem: &Problem, starts: &[Vec<i64>]) -> i64 {
    let end = |row: &Vec<i64>| row.iter().zip(&problem.blocks).map(|(at, it)| at + it.time).max();
    let spans: Vec<(i64, i64)> =
        starts.iter().filter_map(|row| Some((*row.iter().min()?, end(row)?))).collect();
    let at = |now: i64| spans.iter().filter(|span| span.0 <= now && now < span.1).count() as i64;
    spans.iter().map(|span| at(span.0)).max().unwrap_or(0)
}

/// All orders: the same search as for the steady state, of all micro-batches as if they were one, which nothing follows.
fn search(problem: &Problem, batches: usize, limits: &Limits, bound: i64, best: &mut Option<Whole>) {
    let all = problem.copies(batches);
    let longest: i64 = all.blocks.iter().map(|block| block.time).sum();
    let mut budget = Budget { nodes: 0, most: limits.nodes / 4, until: limits.until };
    let (mut low, mut proved) = (bound, bound);
    loop {
        let high = best.as_ref().map_or(longest + 1, |it| it.end);
        if low >= high {
            break;
        }
        let span = if best.is_some() { (low + high - 1) / 2 } else { longest };
        let ask = Ask { problem: &all, iterations: &[], period: 4 * longest, span };
        let mut trial_budget =
            Budget { nodes: 0, most: (budget.most.saturating_sub(budget.nodes)) / 2, ..budget };
        let answer = if is_refuted(ask) { Answer::No } else { solve(ask, &mut trial_budget) };
        budget.nodes += trial_budget.nodes;
        match answer {
            Answer::Times(times) => {
                let starts = times.chunks(problem.blocks.len()).map(<[i64]>::to_vec).collect();
                *best = Some(Whole { in_turn: false, ..Whole::new(problem, starts, bound) });
            }
            Answer::No => (low, proved) = (span + 1, proved.max(span + 1)),
            Answer::Unknown => low = span + 1,
        }
    }
    if let Some(best) = best {
        (best.bound, best.nodes) = (proved.min(best.end), budget.nodes);
    }
}
