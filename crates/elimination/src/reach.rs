//! Values that can be left out, because with them a sum is larger than one that is known.
//!
//! A variable with a value costs at least what that costs by itself and half of the least that it costs with each
//! neighbour: together these are no more than any sum. A sum that is known comes from the values that promise most by that.
//! What with its own difference to the least is above it is in no least sum.

use std::collections::HashMap;
use std::rc::Rc;

use crate::{NEVER, Problem, Term};

/// Shares of whole numbers are none; what they come to is off by less than this.
const ROUNDING: f64 = 1e-9;

/// Values of a variable, in ascending order.
type KeptValues = Rc<[usize]>;

/// A problem with fewer values, and which of the original ones they are.
pub(crate) struct Smaller {
    pub(crate) problem: Problem,
    pub(crate) kept: Vec<KeptValues>,
}

/// For each variable and value what it costs at least.
pub(crate) type Promises = [Rc<[f64]>];

/// What tables promise, by where they lie, the sizes of their axes, and one of these; with the table, so that nothing else
/// comes to lie there.
pub(crate) type Known = HashMap<(usize, Vec<usize>, usize), (Rc<[f64]>, Rc<[f64]>)>;

pub(crate) fn promises(problem: &Problem, known: &mut Known) -> Vec<Rc<[f64]>> {
    let mut all: Vec<Vec<Rc<[f64]>>> = vec![vec![]; problem.sizes.len()];
    for term in &problem.terms {
        let sizes: Vec<usize> = term.scope.iter().map(|one| problem.sizes[*one]).collect();
        for (axis, variable) in term.scope.iter().enumerate() {
            let key = (term.costs.as_ptr() as usize, sizes.clone(), axis);
            let made = || (Rc::clone(&term.costs), least(&term.costs, &sizes, axis));
            let (_, least) = known.entry(key).or_insert_with(made);
            all[*variable].push(Rc::clone(least));
        }
    }
    let sum = |(variable, each): (usize, Vec<Rc<[f64]>>)| {
        let mut sum = vec![0.0; problem.sizes[variable]];
        each.iter().for_each(|it| sum.iter_mut().zip(it.iter()).for_each(|(sum, it)| *sum += it));
        Rc::from(sum)
    };
    all.into_iter().enumerate().map(sum).collect()
}

/// The share of one of its variables in the least that a table has for each value.
fn least(costs: &[f64], sizes: &[usize], axis: usize) -> Rc<[f64]> {
    let (values, inner) = (sizes[axis], sizes[axis + 1..].iter().product::<usize>());
    let mut found = vec![NEVER; values];
    for (at, row) in costs.chunks(inner.max(1)).enumerate() {
        let least = &mut found[at % values];
        *least = row.iter().copied().fold(*least, f64::min);
    }
    let share = 1.0 / sizes.len() as f64;
    found.into_iter().map(|it| it * share).collect()
}

/// So many values of each variable: those that promise most.
pub(crate) fn first(problem: &Problem, promises: &Promises, count: usize) -> Smaller {
    let of = |variable: usize| {
        let promises = &promises[variable];
        let mut order: Vec<usize> = (0..promises.len()).collect();
        order.sort_by(|a, b| promises[*a].total_cmp(&promises[*b]).then(a.cmp(b)));
        order.truncate(count);
        order.sort_unstable();
        order
    };
    part(problem, of)
}

/// The values with which a sum can be no more than so much.
pub(crate) fn within(problem: &Problem, promises: &Promises, most: f64) -> Smaller {
    let least: Vec<f64> = promises.iter().map(|each| each.iter().copied().fold(NEVER, f64::min)).collect();
    let all: f64 = least.iter().sum();
    let of = |variable: usize| {
        let more = |at: &usize| promises[variable][*at] - least[variable];
        (0..promises[variable].len()).filter(|at| all + more(at) <= most + ROUNDING * most.abs()).collect()
    };
    part(problem, of)
}

fn part(problem: &Problem, of: impl Fn(usize) -> Vec<usize>) -> Smaller {
    let kept: Vec<KeptValues> = (0..problem.sizes.len()).map(|variable| Rc::from(of(variable))).collect();
    let mut known: HashMap<(usize, Vec<KeptValues>), Rc<[f64]>> = HashMap::new();
    let mut terms = vec![];
    for term in &problem.terms {
        let own: Vec<KeptValues> = term.scope.iter().map(|one| Rc::clone(&kept[*one])).collect();
        let sizes = term.scope.iter().map(|one| problem.sizes[*one]);
        let key = (term.costs.as_ptr() as usize, own);
        let costs = known.entry(key).or_insert_with_key(|(_, own)| entries(&term.costs, sizes, own));
        terms.push(Term { scope: term.scope.clone(), costs: Rc::clone(costs) });
    }
    let sizes = kept.iter().map(|kept| kept.len()).collect();
    Smaller { problem: Problem { sizes, terms }, kept }
}

/// Of a table those of some values.
fn entries(costs: &Rc<[f64]>, sizes: impl Iterator<Item = usize>, kept: &[KeptValues]) -> Rc<[f64]> {
    let mut places = vec![0];
    for (size, kept) in sizes.zip(kept) {
        places = places.iter().flat_map(|at| kept.iter().map(move |value| at * size + value)).collect();
    }
    if places.len() == costs.len() {
        Rc::clone(costs)
    } else {
        places.into_iter().map(|at| costs[at]).collect()
    }
}
