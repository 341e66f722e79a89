//! What a variable's values cost at least, with what they lead to elsewhere.
//!
//! Costs are moved between tables of two variables and the variables, which changes no sum: from the first variable to the
//! last one, and back. When a variable is visited, it gets all that the tables around it have for it. What it has then,
//! and the least of everything else, is no more than any sum with that value. It passes on an even share to each table
//! that leads on. (Sequential tree-reweighted message passing, by Kolmogorov.)

use crate::{NEVER, Problem};

/// In the place of what cannot be: what is more than this is no difference of costs.
const MUCH: f64 = 1e30;

/// A table over two variables, and what was taken of it for each of their values.
struct Pair<'p> {
    ends: [usize; 2],
    costs: &'p [f64],
    moved: [Vec<f64>; 2],
    /// The least that is left in it.
    least: f64,
}

struct Sharpening<'p> {
    pairs: Vec<Pair<'p>>,
    /// The tables around each variable.
    around: Vec<Vec<usize>>,
    /// What each value of each variable has.
    own: Vec<Vec<f64>>,
    /// The least of all variables and tables.
    total: f64,
    found: Vec<Vec<f64>>,
}

/// For each variable and value what any sum with it is at least.
pub(crate) fn sharpened(problem: &Problem) -> Vec<Vec<f64>> {
    let mut all = Sharpening::new(problem);
    let count = problem.sizes.len();
    (0..count).for_each(|variable| all.visit(variable, |other| other > variable));
    (0..count).rev().for_each(|variable| all.visit(variable, |other| other < variable));
    all.found
}

impl<'p> Sharpening<'p> {
    fn new(problem: &'p Problem) -> Self {
        let mut own: Vec<Vec<f64>> = problem.sizes.iter().map(|size| vec![0.0; *size]).collect();
        let (mut pairs, mut around) = (vec![], vec![vec![]; own.len()]);
        let mut total = 0.0;
        for term in &problem.terms {
            match term.scope[..] {
                [one] => {
                    own[one].iter_mut().zip(term.costs.iter()).for_each(|(own, it)| *own += it.min(MUCH));
                }
                [one, other] => {
                    [one, other].iter().for_each(|it| around[*it].push(pairs.len()));
                    let moved = [one, other].map(|it| vec![0.0; problem.sizes[it]]);
                    let least = term.costs.iter().copied().fold(NEVER, f64::min).min(MUCH);
                    total += least;
                    pairs.push(Pair { ends: [one, other], costs: &term.costs, moved, least });
                }
                // Of what many variables say together the least counts.
                _ => total += term.costs.iter().copied().fold(NEVER, f64::min).min(MUCH),
            }
        }
        total += own.iter().map(|own| least_of(own)).sum::<f64>();
        let found = own.iter().map(|own| vec![f64::NEG_INFINITY; own.len()]).collect();
        Self { pairs, around, own, total, found }
    }

    /// Gives a variable what the tables around it have for it, and passes that on to those that lead to some others.
    fn visit(&mut self, variable: usize, leads_on: impl Fn(usize) -> bool) {
        let own = &mut self.own[variable];
        self.total -= least_of(own);
        let mut on = vec![];
        for at in &self.around[variable] {
            let pair = &mut self.pairs[*at];
            self.total -= pair.least;
            let side = usize::from(pair.ends[1] == variable);
            let most = pair.take(side);
            own.iter_mut().zip(&most).for_each(|(own, it)| *own += it);
            if leads_on(pair.ends[1 - side]) {
                on.push((*at, side));
            }
        }
        for (found, own) in self.found[variable].iter_mut().zip(own.iter()) {
            *found = found.max(self.total + own);
        }
        let ways = on.len().max(self.around[variable].len() - on.len()).max(1) as f64;
        for (at, side) in &on {
            let pair = &mut self.pairs[*at];
            pair.moved[*side].iter_mut().zip(own.iter()).for_each(|(moved, own)| *moved -= own / ways);
            pair.least = least_of(own) / ways;
            self.total += pair.least;
        }
        let stays = 1.0 - on.len() as f64 / ways;
        own.iter_mut().for_each(|own| *own *= stays);
        self.total += least_of(own);
    }
}

impl Pair<'_> {
    /// The least that it has for each value of one of its variables, which is taken of it.
    fn take(&mut self, side: usize) -> Vec<f64> {
        let [first, second] = &self.moved;
        let rows = self.costs.chunks_exact(second.len());
        let mut least = match side {
            0 => rows.map(|row| least_sum(row, second)).collect(),
            _ => {
                let mut least = vec![MUCH; second.len()];
                for (row, moved) in rows.zip(first) {
                    least.iter_mut().zip(row).for_each(|(least, it)| *least = least.min(it - moved));
                }
                least
            }
        };
        least.iter_mut().zip(&mut self.moved[side]).for_each(|(least, moved)| {
            *least = least.min(MUCH) - *moved;
            *moved += *least;
        });
        self.least = 0.0;
        least
    }
}

fn least_sum(row: &[f64], moved: &[f64]) -> f64 {
    row.iter().zip(moved).map(|(it, moved)| it - moved).fold(MUCH, f64::min)
}

fn least_of(all: &[f64]) -> f64 {
    all.iter().copied().fold(MUCH, f64::min)
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;
    use crate::Term;

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
    fn least_with(problem: &Problem) -> Vec<Vec<f64>> {
        let count = problem.sizes.len();
        let mut least = vec![vec![NEVER; SIZE]; count];
        for at in 0..SIZE.pow(count as u32) {
            let values: Vec<usize> = (0..count).map(|it| at / SIZE.pow(it as u32) % SIZE).collect();
            let cost = problem.cost(&values);
            for (least, value) in least.iter_mut().zip(&values) {
                least[*value] = least[*value].min(cost);
            }
        }
        least
    }

    #[test]
    fn it_is_exact_along_a_chain() {
        let problem = problem(&[&[0], &[0, 1], &[2, 1], &[2], &[2, 3], &[3, 4]], 5);
        for (found, least) in sharpened(&problem).iter().zip(least_with(&problem)) {
            assert!(found.iter().zip(&least).all(|(found, least)| (found - least).abs() < 1e-9));
        }
    }

    #[test]
    fn it_is_no_more_than_any_sum_and_hardly_less() {
        let scopes: [&[usize]; 8] = [&[0, 1], &[1, 2], &[0, 2], &[2, 3], &[3, 4], &[4, 0], &[1], &[1, 3, 4]];
        let problem = problem(&scopes, 5);
        let mut closest = 0.0_f64;
        for (found, least) in sharpened(&problem).iter().zip(least_with(&problem)) {
            for (found, least) in found.iter().zip(&least) {
                assert!(*found <= least + 1e-9, "{found} {least}");
                closest = closest.max(found / least);
            }
        }
        assert!(closest > 0.8, "{closest}");
    }
}
