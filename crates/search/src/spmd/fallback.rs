//! All runs of segments of which the same is computed again.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;

use diag::Result;
use elimination::{Least, NEVER, Problem, Solver, Term};
use graph::{OpId, TensorId};

use super::borders::Borders;
use super::bundles::{Bundle, Edge};
use super::inner::{Inner, InnerKey, LOOKS, PRICES, SENT};
use super::messages::MessagePrice;
use super::objective::{Moved, Objective, Totals, UNIT, Weights};
use super::param_sharding::Params;
use super::priced::{Priced, least_bytes, least_seconds};
use super::shared::SharedParams;
use super::space::{Begun, Rest, Space};
use super::stretched::Stretches;
use super::tied::{Divided, Mask, Tied};

/// No table has more entries than this times the values of a variable.
const MOST: f64 = 4e7;

/// Runs of so many segments are solved exactly: at ends of longer ones, the same choices are best.
const ENDS: usize = 4;

/// Of each bundle of a longer run so many choices count besides, those that promise most; fewer where tables are too large.
const COUNTS: [usize; 4] = [8, 4, 2, 1];

/// Runs of which the same is computed again.
pub(super) struct Fallback<'q> {
    pub(super) space: Space<'q>,
    /// What makes the edges of it, until they are there.
    rest: Option<Rest<'q>>,
    pub(super) spans: Vec<Vec<OpId>>,
    /// For each of them the segment in which it begins.
    span_segments: Vec<usize>,
    /// For each bundle the span of one of its operators.
    span_of: Vec<Option<usize>>,
    /// The segment of each bundle.
    pub(super) segments: Vec<usize>,
    /// Whether a span is in a segment and in the one before it.
    pub(super) is_spanned: Vec<bool>,
    /// Bytes of each segment that are there all the time, and of each micro-batch, at least.
    pub(super) bytes: Vec<(f64, f64)>,
    /// Seconds of a micro-batch that each segment takes at least without what is between bundles: in all, forward and
    /// backward.
    pub(super) least: Vec<[f64; 3]>,
    /// What comes to each segment and goes from it.
    pub(super) borders: Borders,
    shared: SharedParams,
    pub(super) tied: Tied,
    /// Runs by their tables, and what is known of each.
    pub(super) symmetric: HashMap<Vec<usize>, usize>,
    pub(super) numbers: HashMap<(usize, usize), usize>,
    pub(super) priced: HashMap<InnerKey, Priced>,
    /// For each look, what is between bundles.
    moved: [Moved; LOOKS.len()],
    pub(super) known: HashMap<(usize, InnerKey), Option<Inner>>,
    /// Which segments are alike, once edges are there.
    stretches: Option<Stretches>,
    /// The choices that are best in short runs, by what is asked and the kind of bundle.
    best: HashMap<(InnerKey, usize), BTreeSet<usize>>,
    /// Whether no table of a run was too large.
    pub(super) is_exact: bool,
}

/// What is to be least: of the bundles of a run and of the edges within it, which are terms of the problem.
pub(super) struct BundleTables {
    pub(super) members: Vec<usize>,
    pub(super) edges: Vec<usize>,
    pub(super) problem: Problem,
    pub(super) weights: Weights,
}

impl<'q> Fallback<'q> {
    pub(super) fn new(
        op_segments: &[usize],
        crossing: &[Option<TensorId>],
        spans: Vec<Vec<OpId>>,
        begun: Begun<'q>,
    ) -> Result<Self> {
        let Begun { space, rest } = begun;
        // What is made of weights alone goes with its reader, which comes later.
        let last = |ops: &Vec<OpId>| ops.iter().map(|op| op_segments[op.index()]).max().unwrap_or(0);
        let segments: Vec<usize> = space.bundles.iter().map(|bundle| last(&bundle.ops)).collect();
        let mut segment_of = op_segments.to_vec();
        for (bundle, segment) in space.bundles.iter().zip(&segments) {
            bundle.ops.iter().for_each(|op| segment_of[op.index()] = *segment);
        }
        let mut op_spans = vec![None; op_segments.len()];
        for (number, span) in spans.iter().enumerate() {
            span.iter().for_each(|op| op_spans[op.index()] = Some(number));
        }
        let span = |bundle: &Bundle| bundle.ops.iter().find_map(|op| op_spans[op.index()]);
        let span_of = space.bundles.iter().map(span).collect();
        let mut is_spanned = vec![false; crossing.len()];
        let mut span_segments = vec![];
        for span in &spans {
            let spanned = span.iter().map(|op| segment_of[op.index()]);
            let (first, last) = spanned.fold((usize::MAX, 0), |(a, b), at| (a.min(at), b.max(at)));
            (first.saturating_add(1)..=last).for_each(|at| is_spanned[at] = true);
            span_segments.push(first);
        }
        let shared = SharedParams::new(&space, &segments);
        let bytes = least_bytes(&space, (&segments, is_spanned.len()), &shared)?;
        let least = least_seconds(&space, &segments, is_spanned.len());
        let borders = Borders::new(&space, &segments, crossing);
        let tied = Tied::new(&space, &segments);
        let (symmetric, numbers) = (HashMap::new(), HashMap::new());
        let (priced, known) = (HashMap::new(), HashMap::new());
        Ok(Self {
            space,
            rest: Some(rest),
            spans,
            span_segments,
            span_of,
            segments,
            is_spanned,
            bytes,
            least,
            borders,
            shared,
            tied,
            symmetric,
            numbers,
            priced,
            moved: Default::default(),
            known,
            stretches: None,
            best: HashMap::new(),
            is_exact: true,
        })
    }

    /// With what is between bundles. Says whether it was not late.
    pub(super) fn is_done(&mut self) -> bool {
        if let Some(edges) = self.rest.as_ref().and_then(|rest| rest.edges(&self.space.bundles)) {
            (self.space.edges, self.rest) = (edges, None);
        }
        self.rest.is_none()
    }

    pub(super) fn fix(&mut self, within: &Divided, across: &Divided) {
        self.tied.fix(within, across);
        self.numbers.clear();
        self.known.clear();
    }

    /// What is left of the bundles of a run, of which something is tied.
    pub(super) fn masks(&mut self, run: (usize, usize), members: &[usize]) -> Vec<(usize, Mask)> {
        let mask_of =
            |(place, bundle): (usize, &usize)| Some((place, self.tied.mask(&self.space, *bundle, run)?));
        members.iter().enumerate().filter_map(mask_of).collect()
    }

    /// Where bytes have the least price with which it fits.
    pub(super) fn tight(
        &mut self,
        run: (usize, usize),
        look: usize,
        kept: u32,
        nothing: f64,
        fits: &dyn Fn(&Inner) -> bool,
        solver: &mut Solver,
    ) -> Result<Option<Inner>> {
        let (mut low, mut high, kept) = (0, PRICES.len() - 1, kept.next_power_of_two());
        let Some(mut best) = self.inner(run, (look, high, kept), nothing, solver)?.filter(fits) else {
            return Ok(None);
        };
        while high > low + 1 {
            let middle = usize::midpoint(low, high);
            match self.inner(run, (look, middle, kept), nothing, solver)? {
                Some(inner) if fits(&inner) => (best, high) = (inner, middle),
                _ => low = middle,
            }
        }
        Ok(Some(best))
    }

    /// Bytes of a run, at least.
    pub(super) fn least_bytes(&self, (from, to): (usize, usize), kept: u32) -> f64 {
        self.bytes[from..to].iter().map(|(held, each)| held + f64::from(kept) * each).sum()
    }

    pub(super) fn cuts_a_span(&self, (from, to): (usize, usize)) -> bool {
        let is_cut = |at: usize| self.is_spanned.get(at).copied().unwrap_or(false);
        is_cut(from) || is_cut(to)
    }

    /// The spans of a run that cuts none.
    pub(super) fn spans_of(&self, (from, to): (usize, usize)) -> impl Iterator<Item = &Vec<OpId>> {
        let all = self.spans.iter().zip(&self.span_segments);
        all.filter(move |(_, segment)| (from..to).contains(*segment)).map(|(span, _)| span)
    }

    /// The bundles of a run.
    pub(super) fn members(&self, (from, to): (usize, usize)) -> Vec<usize> {
        (0..self.segments.len()).filter(|at| (from..to).contains(&self.segments[*at])).collect()
    }

    /// For each bundle its place in a run, and the edges that are within it.
    pub(super) fn within(&self, members: &[usize]) -> (Vec<Option<usize>>, Vec<usize>) {
        let mut places = vec![None; self.segments.len()];
        members.iter().enumerate().for_each(|(place, bundle)| places[*bundle] = Some(place));
        let both = |edge: &Edge| places[edge.ends.0].is_some() && places[edge.ends.1].is_some();
        let edges = (0..self.space.edges.len()).filter(|at| both(&self.space.edges[*at])).collect();
        (places, edges)
    }

    /// Seconds of a micro-batch of a run, at least: in all, forward and backward.
    pub(super) fn least(&self, (from, to): (usize, usize)) -> [f64; 3] {
        let sum = |all: [f64; 3], segment: &[f64; 3]| std::array::from_fn(|at| all[at] + segment[at]);
        self.least[from..to].iter().fold([0.0; 3], sum)
    }

    /// The number of a run: those of one number have the same tables.
    pub(super) fn number(&mut self, run: (usize, usize)) -> usize {
        if let Some(known) = self.numbers.get(&run) {
            return *known;
        }
        let members = self.members(run);
        let (places, edges) = self.within(&members);
        let unaries = members.iter().map(|at| Rc::as_ptr(&self.space.bundles[*at].unary) as usize);
        let between = edges.iter().flat_map(|at| {
            let edge = &self.space.edges[*at];
            let place = |bundle: usize| places[bundle].expect("it is within");
            [place(edge.ends.0), place(edge.ends.1), Rc::as_ptr(&edge.prices) as usize]
        });
        let borders = self.borders.bytes(run);
        let borders = borders.iter().flat_map(|(bundle, bytes)| {
            [places[*bundle].unwrap_or(usize::MAX), Rc::as_ptr(bytes).cast::<f64>() as usize]
        });
        let mut text: Vec<usize> =
            unaries.chain([usize::MAX]).chain(borders).chain([usize::MAX]).chain(between).collect();
        let masks = self.masks(run, &members);
        text.push(usize::MAX);
        text.extend(masks.into_iter().flat_map(|(place, (mask, _))| [place, mask]));
        text.push(usize::MAX);
        let held_before = self.held_before(run, &members);
        text.extend(held_before.into_iter().flat_map(|(place, params)| [place, params as usize]));
        let next = self.symmetric.len();
        let number = *self.symmetric.entry(text).or_insert(next);
        self.numbers.insert(run, number);
        number
    }

    /// Of the bundles of a run, by their places, the parameters that are held for a segment before theirs.
    fn held_before(&self, run: (usize, usize), members: &[usize]) -> Vec<(usize, Params)> {
        let of_place = |(place, bundle): (usize, &usize)| (place, self.shared.held_before(*bundle, run.0));
        members.iter().enumerate().map(of_place).filter(|(_, params)| *params != 0).collect()
    }

    /// The way to divide a run that costs least.
    pub(super) fn inner(
        &mut self,
        run: (usize, usize),
        asked: InnerKey,
        nothing: f64,
        solver: &mut Solver,
    ) -> Result<Option<Inner>> {
        if !self.is_done() {
            return Ok(None);
        }
        let key = (self.number(run), asked);
        if let Some(known) = self.known.get(&key) {
            return Ok(known.clone());
        }
        let Some(BundleTables { members, edges, problem, weights }) = self.tables(run, asked, nothing)?
        else {
            self.known.insert(key, None);
            return Ok(None);
        };
        let least = self.minimum_of(run, (&members, &problem), (asked, nothing), solver)?;
        if least.is_none() && self.space.question.stop.is_late() {
            // There may be more time later.
            return Ok(None);
        }
        let inner = match least.filter(|least| least.cost < NEVER) {
            Some(least) => {
                let inner = self.evaluate(run, &members, &edges, least.values.into(), weights)?;
                Some(Inner { asked, ..inner })
            }
            None => None,
        };
        self.known.insert(key, inner.clone());
        Ok(inner)
    }

    /// The least of a run; of a long one among the choices that are best at its ends, and those that promise most, where all
    /// layers in the middle of alike ones choose the same.
    fn minimum_of(
        &mut self,
        (from, to): (usize, usize),
        (members, problem): (&[usize], &Problem),
        (asked, nothing): (InnerKey, f64),
        solver: &mut Solver,
    ) -> Result<Option<Least>> {
        if to - from > ENDS {
            self.inner((from, from + ENDS), asked, nothing, solver)?;
            self.inner((to - ENDS, to), asked, nothing, solver)?;
            let (bundles, edges, segments) = (&self.space.bundles, &self.space.edges, &self.segments);
            let stretches =
                self.stretches.get_or_insert_with(|| Stretches::of_runs(bundles, edges, segments));
            let Some(short) = stretches.short_run((from, to), (members, segments), problem) else {
                return Ok(self.minimum_of_long(members, problem, asked, solver));
            };
            let key = Stretches::key(&short.problem);
            let minimum = match stretches.solved.get(&key) {
                Some(known) => known.clone(),
                None => {
                    let left: Vec<usize> = short.left.iter().map(|place| members[*place]).collect();
                    let minimum = self.minimum_of_long(&left, &short.problem, asked, solver);
                    let is_late = minimum.is_none() && self.space.question.stop.is_late();
                    if let Some(stretches) = self.stretches.as_mut().filter(|_| !is_late) {
                        stretches.solved.insert(key, minimum.clone());
                    }
                    minimum
                }
            };
            return Ok(minimum.map(|minimum| short.stretched(&minimum)));
        }
        let is_late = || self.space.question.stop.is_late();
        let minimum = solver.solve_nearly(problem, MOST, &is_late);
        self.is_exact &= minimum.as_ref().is_some_and(|minimum| minimum.is_least);
        for (bundle, value) in minimum.iter().flat_map(|minimum| members.iter().zip(&minimum.values)) {
            self.best.entry((asked, self.kind(*bundle))).or_default().insert(*value);
        }
        Ok(minimum)
    }

    fn minimum_of_long(
        &mut self,
        members: &[usize],
        problem: &Problem,
        asked: InnerKey,
        solver: &mut Solver,
    ) -> Option<Least> {
        let best =
            |bundle: &usize| self.best.get(&(asked, self.kind(*bundle))).into_iter().flatten().copied();
        let best: Vec<Vec<usize>> = members.iter().map(|bundle| best(bundle).collect()).collect();
        let is_late = || self.space.question.stop.is_late();
        for count in COUNTS {
            if let Some(minimum) = solver.solve_among(problem, count, &best, MOST, &is_late) {
                self.is_exact &= count == COUNTS[0];
                return Some(minimum);
            }
        }
        self.is_exact = false;
        None
    }

    /// Bundles of one kind have the same choices, at the same costs.
    fn kind(&self, bundle: usize) -> usize {
        Rc::as_ptr(&self.space.bundles[bundle].unary) as usize
    }

    /// What is to be least, for a run; none where a bundle of it cannot be divided in any way.
    pub(super) fn tables(
        &mut self,
        run: (usize, usize),
        asked: InnerKey,
        nothing: f64,
    ) -> Result<Option<BundleTables>> {
        self.price(asked, nothing)?;
        let members = self.members(run);
        let (places, edges) = self.within(&members);
        if members.iter().any(|at| self.space.bundles[*at].choices.is_empty()) {
            return Ok(None);
        }
        let masks = self.masks(run, &members);
        let priced = self.priced.get_mut(&asked).expect("it was made");
        let mut problem = priced.problem(&members, &places, &edges);
        let weights = priced.weights;
        for (bundle, bytes) in self.borders.bytes(run) {
            if let Some(place) = places[bundle] {
                problem.terms.push(Term { scope: vec![place], costs: priced.crossing(&bytes) });
            }
        }
        let tied = masks.into_iter().map(|(place, (_, costs))| Term { scope: vec![place], costs });
        problem.terms.extend(tied);
        // The first tables are those of bundles by themselves.
        for (place, params) in self.held_before(run, &members) {
            let costs = self.shared.costs(&self.space, members[place], params, (asked, weights))?;
            problem.terms[place].costs = costs;
        }
        Ok(Some(BundleTables { members, edges, problem, weights }))
    }

    pub(super) fn price(&mut self, asked: InnerKey, nothing: f64) -> Result<()> {
        if self.priced.contains_key(&asked) {
            return Ok(());
        }
        let (look, price, kept) = asked;
        let weights = Weights { look: LOOKS[look], byte: nothing * PRICES[price] };
        let question = &self.space.question;
        let byte = SENT[look] * f64::from(question.batches) / self.borders.rate(question.cluster) / UNIT;
        let objective = Objective::new(&self.space, weights)?.of_stage(f64::from(kept));
        let all = objective.untied(&mut self.moved[look]);
        self.priced.insert(asked, Priced { weights, all, byte, crossing: HashMap::new() });
        Ok(())
    }

    /// What choices of a run come to.
    pub(super) fn evaluate(
        &self,
        run: (usize, usize),
        members: &[usize],
        edges: &[usize],
        values: Rc<[usize]>,
        weights: Weights,
    ) -> Result<Inner> {
        let objective = Objective::new(&self.space, weights)?.of_stage(1.0);
        let mut all = vec![0; self.segments.len()];
        members.iter().zip(values.iter()).for_each(|(bundle, value)| all[*bundle] = *value);
        let unary = |at: &usize| &self.space.bundles[*at].unary[all[*at]];
        let moved = edges.iter().map(|at| *self.space.price(&self.space.edges[*at], &all));
        let price = members.iter().map(|at| unary(at).price).chain(moved);
        let price = price.fold(MessagePrice::default(), |a, b| a + b);
        let of_bundle =
            |at: &usize| objective.of_bundle_without(*at, all[*at], self.shared.held_before(*at, run.0));
        let bundles = members.iter().map(of_bundle);
        let between =
            edges.iter().map(|at| objective.of_price(self.space.price(&self.space.edges[*at], &all)));
        let totals = bundles.chain(between).fold(Totals::default(), |a, b| a + b);
        let batches = f64::from(self.space.question.batches);
        // With each micro-batch gradients are added.
        let added = (totals.works / batches - price.work).max(0.0);
        let backward = price.back + price.line_back;
        let kept = members.iter().map(|at| unary(at).kept).sum();
        let working = members.iter().map(|at| unary(at).working).fold(0.0, f64::max);
        let mut recomputed: BTreeMap<usize, f64> = BTreeMap::new();
        for at in members {
            if let Some(span) = self.span_of[*at] {
                *recomputed.entry(span).or_default() += unary(at).recomputed;
            }
        }
        let working = working + recomputed.into_values().fold(0.0, f64::max);
        let forward = (price.work + price.line - backward).max(0.0);
        let mut chosen = vec![None; all.len()];
        members.iter().for_each(|at| chosen[*at] = Some(all[*at]));
        let crossing = self.borders.crossing(run, &chosen, self.space.question.devices);
        let (fallback, asked) = (0, (0, 0, 1));
        Ok(Inner {
            fallback,
            recomputed: None,
            asked,
            values,
            weights,
            forward,
            backward: backward + added,
            totals,
            kept,
            working,
            crossing,
        })
    }
}
