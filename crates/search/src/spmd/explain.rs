//! Why an operator is divided so: what each other way would cost, everything else at its best with it.

use std::collections::BTreeSet;

use diag::Result;
use elimination::{NEVER, Problem, Solver, Term};
use graph::OpId;
use plan::dim_names::DimNames;

use super::choices::Choice;
use super::digits::Digits;
use super::maker::Operators;
use super::messages::{Count, Messages};
use super::objective::{Objective, Totals, UNIT};
use super::recomputed::spans;
use super::solution::Claim;
use super::solved::MOST;
use super::space::Space;
use crate::Question;

/// Nothing is so many times what it is.
const MOST_TIMES: f64 = 1000.0;

/// What is on one device.
const WHOLE: &str = "whole";

/// Why some operators are divided as they are.
pub struct Explanation {
    /// Those that are one decision.
    pub ops: Vec<OpId>,
    /// What was chosen, and then the others, the best first.
    pub ways: Vec<Alternative>,
}

/// A way to divide them, with all others as is best beside it.
#[derive(Clone, Debug)]
pub struct Alternative {
    /// For example `batch 8 x heads 4`, of devices of several nodes first what is between these.
    pub name: String,
    /// Seconds that the best plan with it costs more.
    pub more: f64,
    pub totals: Totals,
    /// Bytes from and to other blocks.
    pub crossing: f64,
}

/// For an operator under a plan that was found: of the ways along the same dims the best, and at most so many.
pub fn explain(question: &Question<'_>, claim: &Claim, op: OpId, most: usize) -> Result<Option<Explanation>> {
    let digits = Digits::new(question.cluster, question.devices);
    let messages = Messages::new(question.cluster, &digits, Count::Alone);
    let operators = Operators::new(question);
    let Some(spans) = spans(question, claim.recomputed) else { return Ok(None) };
    let Some(space) = Space::new(question, (&operators, &digits, &messages), &spans) else { return Ok(None) };
    let objective = Objective::new(&space, claim.weights)?;
    let problem = objective.problem();
    let member = space.bundles.iter().position(|it| it.ops.contains(&op)).expect("each operator is in one");
    let bundle = space.ties.of[member];
    let totals = |values: &[usize]| Ok((objective.totals(&space.ties.expand(values)), 0.0));
    let ways = ways(&space, &problem, bundle, bundle, &totals, most)?;
    Ok(ways.map(|ways| Explanation { ops: space.bundles[member].ops.clone(), ways }))
}

/// What values of all variables come to, and the bytes from and to other blocks.
type Coming<'t> = &'t dyn Fn(&[usize]) -> Result<(Totals, f64)>;

/// The ways of a bundle, which is a variable of a problem.
pub(super) fn ways(
    space: &Space<'_>,
    problem: &Problem,
    bundle: usize,
    variable: usize,
    totals: Coming<'_>,
    most: usize,
) -> Result<Option<Vec<Alternative>>> {
    let Some(each) = Solver::default().each(problem, variable, MOST) else { return Ok(None) };
    let Some(least) = Solver::default().solve(problem, MOST) else { return Ok(None) };
    let chosen = least.values[variable];
    let mut order: Vec<usize> = (0..each.len()).filter(|at| each[*at] < NEVER).collect();
    order.sort_by(|a, b| {
        (*a != chosen).cmp(&(*b != chosen)).then(each[*a].total_cmp(&each[*b])).then(a.cmp(b))
    });
    let names = DimNames::new(space.question.graph, space.question.analysis);
    let mut ways: Vec<Alternative> = vec![];
    let mut known = BTreeSet::new();
    for at in order {
        let choice = &space.bundles[bundle].choices[at];
        let along: BTreeSet<Option<usize>> = choice.iter().copied().collect();
        if ways.len() == most || !known.insert(along) {
            continue;
        }
        let name = named(space, &names, bundle, choice);
        // Of several that cost the same it is the one that was chosen.
        let values = if at == chosen { Some(least.values.clone()) } else { best_with(problem, variable, at) };
        let Some(values) = values else { continue };
        let more = (each[at] - each.iter().copied().fold(NEVER, f64::min)) * UNIT;
        let (totals, crossing) = totals(&values)?;
        ways.push(Alternative { name, more, totals, crossing });
    }
    Ok(Some(ways))
}

/// The best values with one that is given.
fn best_with(problem: &Problem, variable: usize, value: usize) -> Option<Vec<usize>> {
    let only = (0..problem.sizes[variable]).map(|at| if at == value { 0.0 } else { NEVER });
    let mut fixed = problem.clone();
    fixed.terms.push(Term { scope: vec![variable], costs: only.collect() });
    Solver::default().solve(&fixed, MOST).map(|least| least.values)
}

/// A choice in the words of people: how often it divides which dim, between nodes and inside of them.
fn named(space: &Space<'_>, names: &DimNames, bundle: usize, choice: &Choice) -> String {
    let level = |from: usize, to: usize| {
        let mut words: Vec<(String, u32)> = vec![];
        for (dim, size) in choice[from..to].iter().zip(&space.digits.sizes[from..to]) {
            let word = dim.map_or_else(|| "copies".to_owned(), |dim| word(space, names, bundle, dim));
            match words.last_mut() {
                Some((last, parts)) if *last == word => *parts *= size,
                _ => words.push((word, *size)),
            }
        }
        words.iter().map(|(word, parts)| format!("{word} {parts}")).collect::<Vec<_>>().join(" x ")
    };
    let (outside, all) = (space.digits.outside, space.digits.len());
    match outside {
        _ if all == 0 => WHOLE.to_owned(),
        0 => level(0, all),
        _ => format!("{} between nodes, {} inside", level(0, outside), level(outside, all)),
    }
}

fn word(space: &Space<'_>, names: &DimNames, bundle: usize, dim: usize) -> String {
    let analysis = space.question.analysis;
    let ops = &space.bundles[bundle].ops;
    let loop_of = |op: &OpId| Some((*op, space.classes.open_loop(analysis, *op, dim)?));
    let Some((op, index)) = ops.iter().find_map(loop_of) else { return "copies".to_owned() };
    names.of_loop(op, index).map_or_else(|| analysis.op(op).loops[index].name.clone(), str::to_owned)
}

impl Alternative {
    /// What would have to change for it to be better than what was chosen, as far as one thing alone can do it.
    pub fn wins_if(&self, chosen: &Self, limit: f64) -> Option<String> {
        let (totals, other) = (&self.totals, &chosen.totals);
        let measures = |it: &Self| {
            let Totals { works, waits, last, sends, late, updates, bytes, .. } = it.totals;
            // What is sent in the last backward hides what comes late.
            [works, waits, -last, sends, late, updates, bytes, it.crossing]
        };
        if totals != other && measures(self).iter().zip(measures(chosen)).all(|(this, other)| *this >= other)
        {
            return Some("never: it is not cheaper in anything".to_owned());
        }
        let computes = other.works + other.updates - totals.works - totals.updates;
        let waits = totals.waits - other.waits;
        if waits > 0.0 && (1.0..MOST_TIMES).contains(&(waits / computes)) {
            return Some(format!("links were {:.1} times as fast", waits / computes));
        }
        if totals.bytes > limit {
            return Some(format!("each device had {} more", compiler::size((totals.bytes - limit) as u64)));
        }
        let sends = totals.sends - other.sends;
        let rest = computes - waits;
        if sends > 0.0 && (1.0..MOST_TIMES).contains(&(sends / rest)) {
            return Some(format!("the step had {:.1} times as many micro-batches", sends / rest));
        }
        None
    }
}
