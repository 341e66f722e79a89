//! Some segments of a model, one after another, on a group of devices: a stage of a pipeline.
//!
//! The tables are those of the whole model on the group, where no bundle is in two segments; of a run those count that are
//! within it. Runs of layers that are alike have the same tables, and are solved once.

use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;

use diag::Result;
use elimination::{Solver, Term};
use graph::{OpId, TensorId};
use plan::Draft;

use super::borders::Borders;
use super::digits::Digits;
use super::messages::{Messages, Price};
use super::objective::{Look, Objective, Totals, UNIT, Weights};
use super::priced::{Priced, least_bytes};
use super::rows::limit;
use super::solution::{AGAIN, MOST, NOTHING, spans, write};
use super::space::{Edge, Space};
use crate::Question;
use crate::stages::Stage;

/// Under the first a stage waits for what it sends at its end, under the second hardly.
const LOOKS: [Look; 2] = [Look { line: 0.25, last: 0.5 }, Look { line: 0.02, last: 0.1 }];
/// So much of what stages send each other is not hidden.
const SENT: [f64; 2] = [1.0, 0.1];
/// What a byte costs, in as good as nothing.
const PRICES: [f64; 5] = [1.0, 32.0, 256.0, 2048.0, 16384.0];

/// A way to divide a run, and to compute some of it again.
#[derive(Clone, Debug)]
pub(crate) struct Inner {
    rung: usize,
    values: Rc<[usize]>,
    weights: Weights,
    /// Seconds of a micro-batch, forward and backward.
    forward: f64,
    backward: f64,
    totals: Totals,
    /// Bytes that forward keeps of a micro-batch.
    kept: f64,
    /// Bytes that all devices need of what comes from before the run, and hold of what goes on behind it.
    crossing: (f64, f64),
}

/// All runs of segments on one group of devices.
pub(crate) struct Runs<'q> {
    question: Question<'q>,
    digits: &'q Digits,
    messages: &'q Messages<'q>,
    /// The segment of each operator.
    segments: &'q [usize],
    /// The value that crosses to each segment.
    crossing: &'q [Option<TensorId>],
    /// What a byte costs at least.
    nothing: f64,
    rungs: Vec<Option<Rung<'q>>>,
}

/// Runs of which the same is computed again.
struct Rung<'q> {
    space: Space<'q>,
    spans: Vec<Vec<OpId>>,
    /// The segment of each bundle.
    segments: Vec<usize>,
    /// Whether a span is in a segment and in the one before it.
    is_spanned: Vec<bool>,
    /// Bytes of each segment that are there all the time, and of each micro-batch, at least.
    bytes: Vec<(f64, f64)>,
    /// What comes to each segment and goes from it.
    borders: Borders,
    /// Runs by their tables, and what is known of each.
    alike: HashMap<Vec<usize>, usize>,
    numbers: HashMap<(usize, usize), usize>,
    priced: HashMap<Asked, Priced>,
    known: HashMap<(usize, Asked), Option<Inner>>,
    /// Sums that were looked at.
    sums: f64,
}

/// A look, a price, and of how many micro-batches something is kept.
type Asked = (usize, usize, u32);

impl Inner {
    /// What the pipeline is told of it.
    pub(crate) fn stage(&self) -> Stage {
        let it = &self.totals;
        Stage {
            forward: self.forward,
            backward: self.backward,
            tail: (it.late - it.last).max(0.0) + it.updates,
            busy: it.least(),
            takes: self.crossing.0,
            gives: self.crossing.1,
        }
    }

    /// Where it is kept of so many micro-batches.
    fn bytes(&self, kept: u32) -> f64 {
        self.totals.bytes + (f64::from(kept) - 1.0) * self.kept
    }
}

impl<'q> Runs<'q> {
    /// Of a question about the devices of the group; `floor` is what no step takes less than.
    pub(crate) fn new(
        question: Question<'q>,
        (digits, messages): (&'q Digits, &'q Messages<'q>),
        (segments, crossing): (&'q [usize], &'q [Option<TensorId>]),
        floor: f64,
    ) -> Self {
        let nothing = floor / UNIT * NOTHING / limit(&question).max(1) as f64;
        Self { question, digits, messages, segments, crossing, nothing, rungs: vec![] }
    }

    /// Sums that were looked at so far.
    pub(crate) fn sums(&self) -> f64 {
        self.rungs.iter().flatten().map(|rung| rung.sums).sum()
    }

    /// Seconds of a micro-batch that each segment takes at least, without what is between bundles.
    pub(crate) fn least(&mut self) -> Result<Vec<f64>> {
        self.made(0)?;
        let mut found = vec![0.0; self.crossing.len()];
        if let Some(rung) = &self.rungs[0] {
            for (bundle, segment) in rung.space.bundles.iter().zip(&rung.segments) {
                let each = bundle.unary.iter().map(|unary| unary.price.work + unary.price.line);
                found[*segment] += each.fold(f64::INFINITY, f64::min);
            }
        }
        Ok(found)
    }

    /// Ways to divide a run that fit where so many micro-batches are kept. Nothing more is computed again where memory is no
    /// matter.
    pub(crate) fn ways(&mut self, run: (usize, usize), kept: u32) -> Result<Vec<Inner>> {
        let (limit, mut found) = (limit(&self.question) as f64, vec![]);
        for at in 0..AGAIN.len() {
            self.made(at)?;
            let nothing = self.nothing;
            let Some(rung) = self.rungs[at].as_mut().filter(|rung| !rung.cuts_a_span(run)) else { continue };
            if rung.least_bytes(run, kept) > limit {
                continue;
            }
            let mut is_easy = true;
            for look in 0..LOOKS.len() {
                // What is as good as nothing is the same however many there are.
                let first = rung.inner(run, (look, 0, 1), nothing)?;
                let fits = |it: &Inner| it.bytes(kept) <= limit;
                let first_fits = first.as_ref().is_some_and(fits);
                is_easy &= first_fits;
                let inner = match first {
                    Some(first) if first_fits => Some(first),
                    _ => rung.tight(run, (look, kept), (nothing, &fits))?,
                };
                found.extend(inner.map(|inner| Inner { rung: at, ..inner }));
            }
            if is_easy && !found.is_empty() {
                break;
            }
        }
        Ok(found)
    }

    fn made(&mut self, at: usize) -> Result<()> {
        while self.rungs.len() <= at {
            let rung = match spans(&self.question, AGAIN[self.rungs.len()]) {
                Some(spans) => Some(Rung::new(self, spans)?),
                None => None,
            };
            self.rungs.push(rung);
        }
        Ok(())
    }

    /// Writes a way to divide a run, on devices from `first` on. Gives the operators.
    pub(crate) fn write(
        &self,
        draft: &mut Draft<'_>,
        (run, inner): ((usize, usize), &Inner),
        first: u32,
    ) -> Result<Vec<OpId>> {
        let rung = self.rungs[inner.rung].as_ref().expect("a way is of a rung that is there");
        let objective = Objective::new(&rung.space, inner.weights)?.of_stage(1.0);
        let mut ops = BTreeSet::new();
        for (bundle, value) in rung.members(run).into_iter().zip(inner.values.iter()) {
            write(&objective, draft, (bundle, *value), first)?;
            ops.extend(rung.space.bundles[bundle].ops.iter().copied());
        }
        for span in &rung.spans {
            let own: Vec<OpId> = span.iter().copied().filter(|op| ops.contains(op)).collect();
            draft.recompute(own);
        }
        Ok(ops.into_iter().collect())
    }
}

impl<'q> Rung<'q> {
    fn new(runs: &Runs<'q>, spans: Vec<Vec<OpId>>) -> Result<Self> {
        let space = Space::cut(&runs.question, runs.digits, runs.messages, (&spans, runs.segments))?
            .expect("each bundle has choices where there are no constraints");
        // What is made of weights alone goes with its reader, which comes later.
        let last = |ops: &Vec<OpId>| ops.iter().map(|op| runs.segments[op.index()]).max().unwrap_or(0);
        let segments: Vec<usize> = space.bundles.iter().map(|bundle| last(&bundle.ops)).collect();
        let mut of = runs.segments.to_vec();
        for (bundle, segment) in space.bundles.iter().zip(&segments) {
            bundle.ops.iter().for_each(|op| of[op.index()] = *segment);
        }
        let mut is_spanned = vec![false; runs.crossing.len()];
        for span in &spans {
            let own = span.iter().map(|op| of[op.index()]);
            let (first, last) = own.fold((usize::MAX, 0), |(a, b), at| (a.min(at), b.max(at)));
            (first.saturating_add(1)..=last).for_each(|at| is_spanned[at] = true);
        }
        let bytes = least_bytes(&space, &segments, is_spanned.len())?;
        let borders = Borders::new(&space, &segments, runs.crossing);
        let (alike, numbers) = (HashMap::new(), HashMap::new());
        let (priced, known) = (HashMap::new(), HashMap::new());
        Ok(Self {
            space,
            spans,
            segments,
            is_spanned,
            bytes,
            borders,
            alike,
            numbers,
            priced,
            known,
            sums: 0.0,
        })
    }

    /// Where bytes have the least price with which it fits.
    fn tight(
        &mut self,
        run: (usize, usize),
        (look, kept): (usize, u32),
        (nothing, fits): (f64, &dyn Fn(&Inner) -> bool),
    ) -> Result<Option<Inner>> {
        let (mut low, mut high, kept) = (0, PRICES.len() - 1, kept.next_power_of_two());
        let Some(mut best) = self.inner(run, (look, high, kept), nothing)?.filter(fits) else {
            return Ok(None);
        };
        while high > low + 1 {
            let middle = usize::midpoint(low, high);
            match self.inner(run, (look, middle, kept), nothing)? {
                Some(found) if fits(&found) => (best, high) = (found, middle),
                _ => low = middle,
            }
        }
        Ok(Some(best))
    }

    /// Bytes of a run, at least.
    fn least_bytes(&self, (from, to): (usize, usize), kept: u32) -> f64 {
        self.bytes[from..to].iter().map(|(held, each)| held + f64::from(kept) * each).sum()
    }

    fn cuts_a_span(&self, (from, to): (usize, usize)) -> bool {
        let is_cut = |at: usize| self.is_spanned.get(at).copied().unwrap_or(false);
        is_cut(from) || is_cut(to)
    }

    /// The bundles of a run.
    fn members(&self, (from, to): (usize, usize)) -> Vec<usize> {
        (0..self.segments.len()).filter(|at| (from..to).contains(&self.segments[*at])).collect()
    }

    /// For each bundle its place in a run, and the edges that are within it.
    fn within(&self, members: &[usize]) -> (Vec<Option<usize>>, Vec<usize>) {
        let mut places = vec![None; self.segments.len()];
        members.iter().enumerate().for_each(|(place, bundle)| places[*bundle] = Some(place));
        let both = |edge: &Edge| places[edge.ends.0].is_some() && places[edge.ends.1].is_some();
        let edges = (0..self.space.edges.len()).filter(|at| both(&self.space.edges[*at])).collect();
        (places, edges)
    }

    /// The number of a run: those of one number have the same tables.
    fn number(&mut self, run: (usize, usize)) -> usize {
        if let Some(known) = self.numbers.get(&run) {
            return *known;
        }
        let members = self.members(run);
        let (places, edges) = self.within(&members);
        let own = members.iter().map(|at| Rc::as_ptr(&self.space.bundles[*at].unary) as usize);
        let between = edges.iter().flat_map(|at| {
            let edge = &self.space.edges[*at];
            let place = |bundle: usize| places[bundle].expect("it is within");
            [place(edge.ends.0), place(edge.ends.1), Rc::as_ptr(&edge.prices) as usize]
        });
        let borders = self.borders.of(run);
        let borders = borders.iter().flat_map(|(bundle, bytes)| {
            [places[*bundle].unwrap_or(usize::MAX), Rc::as_ptr(bytes).cast::<f64>() as usize]
        });
        let text: Vec<usize> =
            own.chain([usize::MAX]).chain(borders).chain([usize::MAX]).chain(between).collect();
        let next = self.alike.len();
        let number = *self.alike.entry(text).or_insert(next);
        self.numbers.insert(run, number);
        number
    }

    /// The way to divide a run that costs least.
    fn inner(&mut self, run: (usize, usize), asked: Asked, nothing: f64) -> Result<Option<Inner>> {
        let key = (self.number(run), asked);
        if let Some(known) = self.known.get(&key) {
            return Ok(known.clone());
        }
        self.price(asked, nothing)?;
        let members = self.members(run);
        let (places, edges) = self.within(&members);
        let priced = self.priced.get_mut(&asked).expect("it was made");
        let mut problem = priced.of(&members, &places, &edges);
        for (bundle, bytes) in self.borders.of(run) {
            if let Some(place) = places[bundle] {
                problem.terms.push(Term { scope: vec![place], costs: priced.crossing(&bytes) });
            }
        }
        let least = priced.solver.solve(&problem, MOST);
        self.sums += least.as_ref().map_or(0.0, |least| least.sums.0);
        let weights = priced.weights;
        let found = match least {
            Some(least) => Some(self.found((run, &members, &edges), least.values.into(), weights)?),
            None => None,
        };
        self.known.insert(key, found.clone());
        Ok(found)
    }

    fn price(&mut self, asked: Asked, nothing: f64) -> Result<()> {
        if self.priced.contains_key(&asked) {
            return Ok(());
        }
        let (look, price, kept) = asked;
        let weights = Weights { look: LOOKS[look], byte: nothing * PRICES[price] };
        let question = &self.space.question;
        let byte = SENT[look] * f64::from(question.batches) / self.borders.rate(question.cluster) / UNIT;
        let all = Objective::new(&self.space, weights)?.of_stage(f64::from(kept)).problem();
        self.priced.insert(
            asked,
            Priced { weights, all, byte, crossing: HashMap::new(), solver: Solver::default() },
        );
        Ok(())
    }

    /// What choices of a run come to.
    fn found(
        &self,
        (run, members, edges): ((usize, usize), &[usize], &[usize]),
        values: Rc<[usize]>,
        weights: Weights,
    ) -> Result<Inner> {
        let objective = Objective::new(&self.space, weights)?.of_stage(1.0);
        let mut all = vec![0; self.segments.len()];
        members.iter().zip(values.iter()).for_each(|(bundle, value)| all[*bundle] = *value);
        let unary = |at: &usize| &self.space.bundles[*at].unary[all[*at]];
        let moved = edges.iter().map(|at| *self.space.price(&self.space.edges[*at], &all));
        let price = members.iter().map(|at| unary(at).price).chain(moved);
        let price = price.fold(Price::default(), |a, b| a + b);
        let own = members.iter().map(|at| objective.of_bundle(*at, all[*at]));
        let between =
            edges.iter().map(|at| objective.of_price(self.space.price(&self.space.edges[*at], &all)));
        let totals = own.chain(between).fold(Totals::default(), |a, b| a + b);
        let batches = f64::from(self.space.question.batches);
        // With each micro-batch gradients are added.
        let added = (totals.works / batches - price.work).max(0.0);
        let backward = price.back + price.line_back;
        let kept = members.iter().map(|at| unary(at).kept).sum();
        let forward = (price.work + price.line - backward).max(0.0);
        let mut chosen = vec![None; all.len()];
        members.iter().for_each(|at| chosen[*at] = Some(all[*at]));
        let crossing = self.borders.crossing(run, &chosen, self.space.question.devices);
        Ok(Inner { rung: 0, values, weights, forward, backward: backward + added, totals, kept, crossing })
    }
}
