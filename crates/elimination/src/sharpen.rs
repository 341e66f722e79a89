//! What a variable's values cost at least, with what they lead to elsewhere.
//!
//! Costs are moved between tables of two variables and the variables, which changes no sum: from the first variable to the
//! last one, and back. When a variable is visited, it gets all that the tables around it have for it. What it has then,
//! and the least of everything else, is no more than any sum with that value. It passes on an even share to each table
//! that leads on. (Sequential tree-reweighted message passing, by Kolmogorov.)

use crate::Problem;
use crate::least::{lesser, min_pair};

/// In the place of what cannot be: what is more than this is no difference of costs.
const MUCH: f64 = 1e30;

/// A table over two variables, and what was taken of it for each of their values.
struct PairTable<'p> {
    ends: [usize; 2],
    costs: &'p [f64],
    moved: [Vec<f64>; 2],
    /// The least that is left in it.
    min: f64,
}

struct Sharpening<'p> {
    pairs: Vec<PairTable<'p>>,
    /// The tables around each variable.
    around: Vec<Vec<usize>>,
    /// What each value of each variable has.
    costs: Vec<Vec<f64>>,
    /// The least of all variables and tables.
    total: f64,
    bounds: Vec<Vec<f64>>,
}

/// For each variable and value what any sum with it is at least, after so many rounds.
pub(crate) fn sharpened(problem: &Problem, rounds: usize) -> Vec<Vec<f64>> {
    let mut all = Sharpening::new(problem);
    let count = problem.sizes.len();
    for _ in 0..rounds {
        (0..count).for_each(|variable| all.visit(variable, |other| other > variable));
        (0..count).rev().for_each(|variable| all.visit(variable, |other| other < variable));
    }
    all.bounds
}

impl<'p> Sharpening<'p> {
    fn new(problem: &'p Problem) -> Self {
        let mut costs: Vec<Vec<f64>> = problem.sizes.iter().map(|size| vec![0.0; *size]).collect();
        let (mut pairs, mut around) = (vec![], vec![vec![]; costs.len()]);
        let mut total = 0.0;
        for term in &problem.terms {
            match term.scope[..] {
                [one] => {
                    costs[one].iter_mut().zip(term.costs.iter()).for_each(|(cost, it)| *cost += it.min(MUCH));
                }
                [one, other] => {
                    [one, other].iter().for_each(|it| around[*it].push(pairs.len()));
                    let moved = [one, other].map(|it| vec![0.0; problem.sizes[it]]);
                    let min = min_of(&term.costs);
                    total += min;
                    pairs.push(PairTable { ends: [one, other], costs: &term.costs, moved, min });
                }
                // Of what many variables say together the least counts.
                _ => total += min_of(&term.costs),
            }
        }
        total += costs.iter().map(|costs| min_of(costs)).sum::<f64>();
        let bounds = costs.iter().map(|costs| vec![f64::NEG_INFINITY; costs.len()]).collect();
        Self { pairs, around, costs, total, bounds }
    }

    /// Gives a variable what the tables around it have for it, and passes that on to those that lead to some others.
    fn visit(&mut self, variable: usize, leads_on: impl Fn(usize) -> bool) {
        let costs = &mut self.costs[variable];
        self.total -= min_of(costs);
        let mut on = vec![];
        for at in &self.around[variable] {
            let pair = &mut self.pairs[*at];
            self.total -= pair.min;
            let side = usize::from(pair.ends[1] == variable);
            let most = pair.take(side);
            costs.iter_mut().zip(&most).for_each(|(cost, it)| *cost += it);
            if leads_on(pair.ends[1 - side]) {
                on.push((*at, side));
            }
        }
        for (bound, cost) in self.bounds[variable].iter_mut().zip(costs.iter()) {
            *bound = bound.max(self.total + cost);
        }
        let ways = on.len().max(self.around[variable].len() - on.len()).max(1) as f64;
        for (at, side) in &on {
            let pair = &mut self.pairs[*at];
            pair.moved[*side].iter_mut().zip(costs.iter()).for_each(|(moved, cost)| *moved -= cost / ways);
            pair.min = min_of(costs) / ways;
            self.total += pair.min;
        }
        let stays = 1.0 - on.len() as f64 / ways;
        costs.iter_mut().for_each(|cost| *cost *= stays);
        self.total += min_of(costs);
    }
}

impl PairTable<'_> {
    /// The least that it has for each value of one of its variables, which is taken of it.
    fn take(&mut self, side: usize) -> Vec<f64> {
        let [first, second] = &self.moved;
        let chunks = self.costs.chunks_exact(second.len());
        let mut min = match side {
            0 => chunks.map(|entries| min_pair(entries, second, |it, moved| it - moved)).collect(),
            _ => {
                let mut min = vec![MUCH; second.len()];
                for (entries, moved) in chunks.zip(first) {
                    min.iter_mut().zip(entries).for_each(|(min, it)| *min = lesser(it - moved, *min));
                }
                min
            }
        };
        min.iter_mut().zip(&mut self.moved[side]).for_each(|(min, moved)| {
            *min = min.min(MUCH) - *moved;
            *moved += *min;
        });
        self.min = 0.0;
        min
    }
}

fn min_of(all: &[f64]) -> f64 {
    all.iter().copied().fold(MUCH, f64::min)
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;
    use crate::{NEVER, Term};

    const SIZE: usize = 4;

    fn problem(scopes: &[&[usize]], variables: usize) -> Problem {
        let cost = |at: usize, entry: usize| ((entry * 7919 + at * 104_729 + 13) % 97) as f64;
        let term = |(at, scope): (usize, &&[usize])| {
            let costs: Rc<[f64]> =
                (0..SIZE.pow(scope.len() as u32)).map(|entry| cost(at + 1, entry)).collect();
            Term { scope: scope.to_vec(), costs }
        };
        Problem { sizes: vec![SIZE; variables], terms: scopes.iter().enumerate().map(term).collect() }
    }

    /// The least sum with each value of each variable, by trying all.
    fn min_with(problem: &Problem) -> Vec<Vec<f64>> {
        let count = problem.sizes.len();
        let mut min = vec![vec![NEVER; SIZE]; count];
        for at in 0..SIZE.pow(count as u32) {
            let values: Vec<usize> = (0..count).map(|it| at / SIZE.pow(it as u32) % SIZE).collect();
            let cost = problem.cost(&values);
            for (min, value) in min.iter_mut().zip(&values) {
                min[*value] = min[*value].min(cost);
            }
        }
        min
    }

    #[test]
    fn it_is_exact_along_a_chain() {
        let problem = problem(&[&[0], &[0, 1], &[2, 1], &[2], &[2, 3], &[3, 4]], 5);
        for (bound, min) in sharpened(&problem, 1).iter().zip(min_with(&problem)) {
            assert!(bound.iter().zip(&min).all(|(bound, min)| (bound - min).abs() < 1e-9));
        }
    }

    #[test]
    fn it_is_no_more_than_any_sum_and_hardly_less() {
        let scopes: [&[usize]; 8] = [&[0, 1], &[1, 2], &[0, 2], &[2, 3], &[3, 4], &[4, 0], &[1], &[1, 3, 4]];
        let problem = problem(&scopes, 5);
        let mut closest = 0.0_f64;
        for (bound, min) in sharpened(&problem, 1).iter().zip(min_with(&problem)) {
            for (bound, min) in bound.iter().zip(&min) {
                assert!(*bound <= min + 1e-9, "{bound} {min}");
                closest = closest.max(bound / min);
            }
        }
        assert!(closest > 0.8, "{closest}");
    }
}
