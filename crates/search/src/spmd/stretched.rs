//! Long runs of layers that are alike, as few of them.
//!
//! In a long run the layers in the middle are divided alike: what is best for one of them beside its like is best for all. So
//! of each stretch of alike layers few are left. The middle one of these stands for all that are not there: it costs as much as
//! they do together. For runs that is rounded up to a power of two, so those that differ a little in their lengths are one
//! problem.

use std::collections::HashMap;
use std::rc::Rc;

use elimination::{Least, Problem, Term};

use super::bundles::{Bundle, Edge};

/// A layer has at most so many segments, or bundles.
const SEGMENTS: usize = 8;
const BUNDLES: usize = 64;
/// What more bundles than this read may come to all layers from one place.
const MANY: usize = 8;

/// Which segments are alike, with their edges from before; costs that count several times, and what was solved.
#[derive(Default)]
pub(super) struct Stretches {
    kinds: Vec<usize>,
    /// A layer has at most so many segments,
    longest: usize,
    /// and so many layers are left at each end of a stretch.
    ends: usize,
    /// By a table and how often it counts; by nothing its diagonal. With the table itself, so that nothing else comes to lie
    /// there.
    times: HashMap<(usize, u32), DerivedTable>,
    pub(super) solved: HashMap<ShortKey, Option<Least>>,
}

/// A table, and what was made of it.
type DerivedTable = (Rc<[f64]>, Rc<[f64]>);

/// The scopes of a problem's tables, and where these lie: who has them holds them.
type ShortKey = Vec<usize>;

/// A run with fewer segments: for each of its bundles the place of the one that it is decided with.
pub(super) struct Short {
    pub(super) problem: Problem,
    places: Vec<usize>,
    /// The bundles that are left, by their places in the run.
    pub(super) left: Vec<usize>,
}

impl Short {
    /// The same of all bundles.
    pub(super) fn stretched(&self, minimum: &Least) -> Least {
        let values = self.places.iter().map(|place| minimum.values[*place]).collect();
        Least { values, ..*minimum }
    }
}

impl Stretches {
    /// Of runs of segments.
    pub(super) fn of_runs(bundles: &[Bundle], edges: &[Edge], segments: &[usize]) -> Self {
        Self::new(bundles, edges, segments, SEGMENTS, 1)
    }

    /// Of a whole model, of which each bundle is a segment.
    pub(super) fn of_model(bundles: &[Bundle], edges: &[Edge]) -> Self {
        Self::new(bundles, edges, &(0..bundles.len()).collect::<Vec<_>>(), BUNDLES, 2)
    }

    fn new(bundles: &[Bundle], edges: &[Edge], segments: &[usize], longest: usize, ends: usize) -> Self {
        let count = segments.iter().max().map_or(0, |last| last + 1);
        let mut places = vec![0; bundles.len()];
        let mut texts: Vec<Vec<usize>> = vec![vec![]; count];
        for (bundle, segment) in segments.iter().enumerate() {
            places[bundle] = texts[*segment].len();
            texts[*segment].push(Rc::as_ptr(&bundles[bundle].unary) as usize);
        }
        let far = far_sources(edges, segments, longest.min(count / 2));
        for edge in edges {
            let (from, to) = edge.ends;
            let back = segments[to].abs_diff(segments[from]);
            let source = if far[from] { [usize::MAX, from] } else { [back, places[from]] };
            let prices = Rc::as_ptr(&edge.prices) as usize;
            texts[segments[to]].extend([usize::MAX, places[to], prices].into_iter().chain(source));
        }
        let mut known: HashMap<Vec<usize>, usize> = HashMap::new();
        let number = |text: Vec<usize>| {
            let next = known.len();
            *known.entry(text).or_insert(next)
        };
        let kinds = texts.into_iter().map(number).collect();
        Self { kinds, longest, ends, ..Self::default() }
    }

    /// For each segment of a run which one stands for it, if it is left out.
    fn left_out(&self, (from, to): (usize, usize)) -> Vec<Option<usize>> {
        let kinds = &self.kinds[from..to];
        let mut all = vec![None; kinds.len()];
        let mut at = 0;
        while at < kinds.len() {
            let layers = |period: usize| {
                let same = |layer: &usize| kinds[at..at + period] == kinds[at + layer * period..][..period];
                let most = (kinds.len() - at) / period;
                1 + (1..most).take_while(|layer| same(layer)).count()
            };
            let periods = 1..=self.longest.min(kinds.len() - at);
            let Some((period, layers)) = periods
                .map(|period| (period, layers(period)))
                .find(|(_, layers)| *layers > 2 * self.ends + 1)
            else {
                at += 1;
                continue;
            };
            let (stands, last) = (at + self.ends * period, at + (layers - self.ends) * period);
            for (copy, out) in all[stands + period..last].iter_mut().enumerate() {
                *out = Some(from + stands + copy % period);
            }
            at += layers * period;
        }
        all
    }

    /// A whole model with fewer layers, if there are any that can be left out.
    pub(super) fn short_model(&mut self, problem: &Problem) -> Option<Short> {
        let all: Vec<usize> = (0..self.kinds.len()).collect();
        self.short((0, all.len()), (&all, &all), problem, |times| times)
    }

    /// The same of a run. `members` are its bundles.
    pub(super) fn short_run(
        &mut self,
        run: (usize, usize),
        (members, segments): (&[usize], &[usize]),
        problem: &Problem,
    ) -> Option<Short> {
        let rounded = |times: u32| if times > 1 { times.next_power_of_two() } else { times };
        self.short(run, (members, segments), problem, rounded)
    }

    fn short(
        &mut self,
        run: (usize, usize),
        (members, segments): (&[usize], &[usize]),
        problem: &Problem,
        rounded: impl Fn(u32) -> u32,
    ) -> Option<Short> {
        let left_out = self.left_out(run);
        if left_out.iter().all(Option::is_none) {
            return None;
        }
        let mut of_segment: Vec<Vec<usize>> = vec![vec![]; left_out.len()];
        members
            .iter()
            .enumerate()
            .for_each(|(place, bundle)| of_segment[segments[*bundle] - run.0].push(place));
        let mut stands: Vec<usize> = (0..members.len()).collect();
        for (segment, by) in left_out.iter().enumerate() {
            let Some(by) = by else { continue };
            for (number, place) in of_segment[segment].iter().enumerate() {
                stands[*place] = of_segment[by - run.0][number];
            }
        }
        let left: Vec<usize> = (0..members.len()).filter(|place| stands[*place] == *place).collect();
        let mut numbers = vec![usize::MAX; members.len()];
        left.iter().enumerate().for_each(|(number, place)| numbers[*place] = number);
        let places: Vec<usize> = stands.iter().map(|place| numbers[*place]).collect();
        let mut order: Vec<(Vec<usize>, Rc<[f64]>, u32)> = vec![];
        let mut known: HashMap<(Vec<usize>, usize), usize> = HashMap::new();
        for term in &problem.terms {
            let mut scope: Vec<usize> = term.scope.iter().map(|one| places[*one]).collect();
            let mut costs = Rc::clone(&term.costs);
            // From a layer to the next one, both of which are one here.
            if let [one, other] = scope[..] {
                if one == other {
                    costs = self.diagonal(&costs, problem.sizes[term.scope[0]]);
                    scope.truncate(1);
                }
            }
            let key = (scope, Rc::as_ptr(&costs).cast::<f64>() as usize);
            let next_number = order.len();
            let at = *known.entry(key).or_insert_with_key(|(scope, _)| {
                order.push((scope.clone(), costs, 0));
                next_number
            });
            order[at].2 += 1;
        }
        let terms = order
            .into_iter()
            .map(|(scope, costs, times)| Term { scope, costs: self.times(&costs, rounded(times)) });
        let sizes = left.iter().map(|place| problem.sizes[*place]).collect();
        Some(Short { problem: Problem { sizes, terms: terms.collect() }, places, left })
    }

    /// What a table has where both of its variables choose the same.
    fn diagonal(&mut self, costs: &Rc<[f64]>, size: usize) -> Rc<[f64]> {
        let key = (Rc::as_ptr(costs).cast::<f64>() as usize, 0);
        let made = || (Rc::clone(costs), (0..size).map(|value| costs[value * size + value]).collect());
        Rc::clone(&self.times.entry(key).or_insert_with(made).1)
    }

    /// What problems are known by that are the same.
    pub(super) fn key(problem: &Problem) -> ShortKey {
        let term = |term: &Term| {
            let at = Rc::as_ptr(&term.costs).cast::<f64>() as usize;
            term.scope.iter().copied().chain([usize::MAX, at]).collect::<Vec<usize>>()
        };
        problem.terms.iter().flat_map(term).collect()
    }

    /// Costs that count so many times.
    fn times(&mut self, costs: &Rc<[f64]>, times: u32) -> Rc<[f64]> {
        if times == 1 {
            return Rc::clone(costs);
        }
        let key = (Rc::as_ptr(costs).cast::<f64>() as usize, times);
        let made = || (Rc::clone(costs), costs.iter().map(|cost| cost * f64::from(times)).collect());
        Rc::clone(&self.times.entry(key).or_insert_with(made).1)
    }
}

/// Which bundles are read by many others in segments that are far apart: for their readers it does not matter how far away
/// they are.
fn far_sources(edges: &[Edge], segments: &[usize], apart: usize) -> Vec<bool> {
    let mut readers: Vec<(usize, usize, usize)> = vec![(0, usize::MAX, 0); segments.len()];
    for Edge { ends: (from, to), .. } in edges {
        let (count, first, last) = &mut readers[*from];
        *count += 1;
        (*first, *last) = ((*first).min(segments[*to]), (*last).max(segments[*to]));
    }
    readers.into_iter().map(|(count, first, last)| count > MANY && last - first > apart).collect()
}

#[cfg(test)]
mod tests {
    use elimination::Solver;

    use super::super::bundles::{EdgePrices, Unary};

    use super::*;

    const SIZE: usize = 5;
    const WIDTH: usize = 2;

    fn table(seed: usize, entries: usize) -> Rc<[f64]> {
        (0..entries).map(|entry| ((entry * 7919 + seed * 104_729 + 13) % 101) as f64).collect()
    }

    /// A source that all layers read, so many alike layers of two bundles each, and one bundle behind them.
    struct Deep {
        bundles: Vec<Bundle>,
        edges: Vec<Edge>,
        problem: Problem,
    }

    fn deep(layers: usize) -> Deep {
        let kinds: Vec<Rc<Vec<Unary>>> = (0..4).map(|_| Rc::new(vec![Unary::default(); SIZE])).collect();
        let prices: Vec<Rc<EdgePrices>> = (0..5).map(|_| Rc::default()).collect();
        let (unaries, pairs): (Vec<_>, Vec<_>) = (
            (0..4).map(|at| table(at, SIZE)).collect(),
            (0..5).map(|at| table(at + 9, SIZE * SIZE)).collect(),
        );
        let bundle = |kind: usize| Bundle {
            ops: vec![],
            dims: vec![],
            choices: Rc::new(vec![vec![]; SIZE]),
            unary: Rc::clone(&kinds[kind]),
            params: vec![],
        };
        let mut all = vec![0];
        (0..layers).for_each(|_| all.extend([1, 2]));
        all.push(3);
        let mut between: Vec<((usize, usize), usize)> = vec![];
        for layer in 0..layers {
            let first = 1 + WIDTH * layer;
            between.extend([((0, first), 0), ((first, first + 1), 1)]);
            between.extend((layer > 0).then_some(((first - 1, first), 2)));
        }
        between.push(((all.len() - 2, all.len() - 1), 3));
        let edge =
            |(ends, kind): &((usize, usize), usize)| Edge { ends: *ends, prices: Rc::clone(&prices[*kind]) };
        let own = all.iter().enumerate();
        let own = own.map(|(at, kind)| Term { scope: vec![at], costs: Rc::clone(&unaries[*kind]) });
        let pairs = between
            .iter()
            .map(|((from, to), kind)| Term { scope: vec![*from, *to], costs: Rc::clone(&pairs[*kind]) });
        let problem = Problem { sizes: vec![SIZE; all.len()], terms: own.chain(pairs).collect() };
        Deep {
            bundles: all.iter().map(|kind| bundle(*kind)).collect(),
            edges: between.iter().map(edge).collect(),
            problem,
        }
    }

    fn least(problem: &Problem) -> Least {
        Solver::default().solve(problem, 1e9).expect("it is small")
    }

    #[test]
    fn few_layers_decide_for_many() {
        let Deep { bundles, edges, problem } = deep(40);
        let short = Stretches::of_model(&bundles, &edges).short_model(&problem).expect("layers are alike");
        assert!(short.left.len() < 40, "{}", short.left.len());
        let (all, few) = (least(&problem), least(&short.problem));
        // It is known what all of them take, where all between the ends choose the same.
        let stretched = short.stretched(&few);
        assert_eq!(problem.cost(&stretched.values), few.cost);
        assert!(few.cost >= all.cost && few.cost <= 1.02 * all.cost, "{} {}", few.cost, all.cost);
    }

    #[test]
    fn runs_that_differ_a_little_are_one_problem() {
        let Deep { bundles, edges, problem } = deep(40);
        let segments: Vec<usize> = (0..bundles.len()).collect();
        let mut stretches = Stretches::of_runs(&bundles, &edges, &segments);
        let mut key = |layers: usize| {
            let run = (1 + WIDTH * 9, 1 + WIDTH * (9 + layers));
            let members: Vec<usize> = (run.0..run.1).collect();
            let is_within = |term: &&Term| term.scope.iter().all(|one| (run.0..run.1).contains(one));
            let place = |term: &Term| Term {
                scope: term.scope.iter().map(|one| one - run.0).collect(),
                ..term.clone()
            };
            let terms = problem.terms.iter().filter(is_within).map(place).collect();
            let part = Problem { sizes: vec![SIZE; members.len()], terms };
            stretches.short_run(run, (&members, &segments), &part).map(|short| Stretches::key(&short.problem))
        };
        assert!(key(3).is_none());
        assert!(key(12).is_some() && key(12) == key(17) && key(12) != key(19));
    }

    #[test]
    fn layers_that_differ_are_all_there() {
        let Deep { mut bundles, edges, problem } = deep(6);
        for bundle in &mut bundles {
            bundle.unary = Rc::new(vec![Unary::default(); SIZE]);
        }
        assert!(Stretches::of_model(&bundles, &edges).short_model(&problem).is_none());
    }
}
