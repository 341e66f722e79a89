//! Values that can be left out, because with them a sum is larger than one that is known.
//!
//! A variable with a value costs at least what that costs by itself and half of the least that it costs with each
//! neighbour: together these are no more than any sum. A sum that is known comes from the values that promise most by that.
//! What with its own difference to the least is above it is in no least sum; nor is what is above it once costs are moved
//! to where they arise ([`sharpened`]).

use std::collections::HashMap;
use std::rc::Rc;

use crate::sharpen::sharpened;
use crate::{NEVER, Problem, Term};

/// Shares of whole numbers are none; what they come to is off by less than this.
const ROUNDING: f64 = 1e-9;

/// Where variables have so many values left on average, all of them are tried.
const FEW: usize = 4;

/// So often costs are moved through what is left: hardly a value more than the best ones stays then.
const ROUNDS: usize = 2;

/// Values of a variable, in ascending order.
type KeptValues = Rc<[usize]>;

/// A problem with fewer values, and which of the original ones they are.
pub(crate) struct Smaller {
    pub(crate) problem: Problem,
    pub(crate) kept: Vec<KeptValues>,
}

/// For each variable and value what it costs at least.
pub(crate) type Promises = [Rc<[f64]>];

/// A table, and the share of one of its variables.
type Shared = (Rc<[f64]>, Rc<[f64]>);

/// What was made of tables, for the next problem that has them. Tables are known by where they lie, and are held, so that
/// nothing else comes to lie there.
#[derive(Default)]
pub(crate) struct Known {
    /// By a table, the sizes of its axes, and one of these: its share.
    shares: HashMap<(usize, Vec<usize>, usize), Shared>,
    /// By the shares that speak of a variable what they come to.
    sums: HashMap<Vec<usize>, Rc<[f64]>>,
    /// By that, how many values, and which ones besides.
    orders: HashMap<(usize, usize, Vec<usize>), KeptValues>,
    restricted: Restricted,
}

/// Values that were kept, each list once, and what of tables is left with them.
#[derive(Default)]
struct Restricted {
    lists: HashMap<Vec<usize>, KeptValues>,
    tables: HashMap<(usize, Vec<usize>), Rc<[f64]>>,
}

pub(crate) fn promises(problem: &Problem, known: &mut Known) -> Vec<Rc<[f64]>> {
    let mut all: Vec<Vec<Rc<[f64]>>> = vec![vec![]; problem.sizes.len()];
    for term in &problem.terms {
        let sizes: Vec<usize> = term.scope.iter().map(|one| problem.sizes[*one]).collect();
        for (axis, variable) in term.scope.iter().enumerate() {
            let key = (address(&term.costs), sizes.clone(), axis);
            let made = || (Rc::clone(&term.costs), least(&term.costs, &sizes, axis));
            let (_, least) = known.shares.entry(key).or_insert_with(made);
            all[*variable].push(Rc::clone(least));
        }
    }
    let sum = |(variable, each): (usize, Vec<Rc<[f64]>>)| {
        let made = || {
            let mut sum = vec![0.0; problem.sizes[variable]];
            each.iter().for_each(|it| sum.iter_mut().zip(it.iter()).for_each(|(sum, it)| *sum += it));
            Rc::from(sum)
        };
        // A variable without a table is known by its number of values.
        let key = each.iter().map(address).chain(each.is_empty().then_some(problem.sizes[variable]));
        Rc::clone(known.sums.entry(key.collect()).or_insert_with(made))
    };
    all.into_iter().enumerate().map(sum).collect()
}

fn address(table: &Rc<[f64]>) -> usize {
    Rc::as_ptr(table).cast::<f64>() as usize
}

/// The share of one of its variables in the least that a table has for each value.
fn least(costs: &[f64], sizes: &[usize], axis: usize) -> Rc<[f64]> {
    let (values, inner) = (sizes[axis], sizes[axis + 1..].iter().product::<usize>());
    let mut minima = vec![NEVER; values];
    for (at, row) in costs.chunks(inner.max(1)).enumerate() {
        let minimum = &mut minima[at % values];
        *minimum = row.iter().copied().fold(*minimum, f64::min);
    }
    let share = 1.0 / sizes.len() as f64;
    minima.into_iter().map(|it| it * share).collect()
}

/// So many values of each variable, those that promise most, and some that are given for each.
pub(crate) fn among(
    problem: &Problem,
    promises: &Promises,
    count: usize,
    given: &[Vec<usize>],
    known: &mut Known,
) -> Smaller {
    let Known { orders, restricted, .. } = known;
    let mut promising = |variable: usize, restricted: &mut Restricted| {
        let (promises, given) = (&promises[variable], given.get(variable).cloned().unwrap_or_default());
        let made = |(_, _, given): &(usize, usize, Vec<usize>)| {
            let mut order: Vec<usize> = (0..promises.len()).collect();
            order.sort_by(|a, b| promises[*a].total_cmp(&promises[*b]).then(a.cmp(b)));
            order.truncate(count);
            order.extend(given);
            order.sort_unstable();
            order.dedup();
            restricted.list(order)
        };
        Rc::clone(orders.entry((address(promises), count, given)).or_insert_with_key(made))
    };
    let kept = (0..problem.sizes.len()).map(|variable| promising(variable, restricted)).collect();
    restrict(problem, kept, restricted)
}

/// A problem of which a sum is known, and for each value that may be in a lesser one what any sum with it is at least.
pub(crate) struct Bounded<'p> {
    problem: &'p Problem,
    kept: Vec<KeptValues>,
    bounds: Vec<Vec<f64>>,
    restricted: Restricted,
}

impl<'p> Bounded<'p> {
    pub(crate) fn new(problem: &'p Problem, promises: &Promises, most: f64) -> Self {
        let lowest: Vec<f64> =
            promises.iter().map(|each| each.iter().copied().fold(NEVER, f64::min)).collect();
        let all: f64 = lowest.iter().sum();
        let possible = |variable: usize| {
            let more = |at: &usize| promises[variable][*at] - lowest[variable];
            let values = 0..promises[variable].len();
            values.filter(|at| all + more(at) <= most + ROUNDING * most.abs()).collect()
        };
        let mut restricted = Restricted::default();
        let kept = (0..problem.sizes.len()).map(|variable| restricted.list(possible(variable))).collect();
        let Smaller { problem: smaller, kept } = restrict(problem, kept, &mut restricted);
        Self { problem, kept, bounds: sharpened(&smaller, 1), restricted }
    }

    /// So many values of each variable: those of the lowest bounds.
    pub(crate) fn lowest(&mut self, count: usize) -> Smaller {
        self.restrict(|bounds| {
            let mut order: Vec<usize> = (0..bounds.len()).collect();
            order.sort_by(|a, b| bounds[*a].total_cmp(&bounds[*b]).then(a.cmp(b)));
            order.truncate(count);
            order.sort_unstable();
            order
        })
    }

    /// Goes over what may be no more than so much again, which is fewer values by now.
    pub(crate) fn sharpen(&mut self, most: f64) {
        let Smaller { problem, kept } = self.within(most);
        if problem.sizes.iter().sum::<usize>() > FEW * problem.sizes.len() {
            (self.bounds, self.kept) = (sharpened(&problem, ROUNDS), kept);
        }
    }

    /// The values with which a sum can be no more than so much.
    pub(crate) fn within(&mut self, most: f64) -> Smaller {
        let limit = most + ROUNDING * most.abs();
        self.restrict(|bounds| (0..bounds.len()).filter(|at| bounds[*at] <= limit).collect())
    }

    fn restrict(&mut self, choose: impl Fn(&[f64]) -> Vec<usize>) -> Smaller {
        let Self { problem, kept, bounds, restricted } = self;
        let of_one = |(kept, bounds): (&KeptValues, &Vec<f64>)| {
            restricted.list(choose(bounds).into_iter().map(|at| kept[at]).collect())
        };
        let kept = kept.iter().zip(bounds.iter()).map(of_one).collect();
        restrict(problem, kept, restricted)
    }
}

fn restrict(problem: &Problem, kept: Vec<KeptValues>, restricted: &mut Restricted) -> Smaller {
    let restricted_term = |term: &Term| {
        let values: Vec<KeptValues> = term.scope.iter().map(|one| Rc::clone(&kept[*one])).collect();
        let sizes = term.scope.iter().map(|one| problem.sizes[*one]);
        let lists = values.iter().map(|list| Rc::as_ptr(list).cast::<usize>() as usize);
        let made = || entries(&term.costs, sizes, &values);
        let costs = restricted.tables.entry((address(&term.costs), lists.collect())).or_insert_with(made);
        Term { scope: term.scope.clone(), costs: Rc::clone(costs) }
    };
    let terms = problem.terms.iter().map(restricted_term).collect();
    let sizes = kept.iter().map(|kept| kept.len()).collect();
    Smaller { problem: Problem { sizes, terms }, kept }
}

impl Restricted {
    fn list(&mut self, values: Vec<usize>) -> KeptValues {
        let made = |values: &Vec<usize>| Rc::from(&values[..]);
        Rc::clone(self.lists.entry(values).or_insert_with_key(made))
    }
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
