//! What stages of a model cost on groups of a cluster's devices.

use std::collections::HashMap;
use std::rc::Rc;

use cluster::Contention;
use diag::{Error, Result};
use elimination::Solver;

use super::ask::{Costs, Run};
use super::flow::{Flow, Stage};
use super::groups::Groups;
use super::left::{Left, SegmentCosts};
use super::segments::Segments;
use crate::Question;
use crate::constraints::Constraints;
use crate::spmd::{Digits, Divided, Inner, Messages, Operators, Runs, limit, recompute};

/// After so many sums no further runs are looked at: as many on every machine. Once there is half of them
/// none of the kinds of groups that had their share: tables of large groups are large, and pipelines of small ones are found.
const MOST: f64 = 2e10;

/// Entries of tables that are kept meanwhile. There are many runs, and none must be the least: what is too large for that is
/// not worth its time.
const ROOM: usize = 1 << 24;

/// Ways to divide a run, and what stages they are.
type Ways = (Rc<[Inner]>, Rc<[Stage]>);

/// How what is tied is divided: by each kind of group what one stage has, and what several have.
#[derive(Default)]
pub(super) struct Fix {
    within: Vec<Divided>,
    across: Divided,
}

pub(super) struct Found<'q> {
    question: Question<'q>,
    /// What all must respect, on which devices it is among it.
    constraints: Option<&'q Constraints>,
    groups: &'q Groups,
    /// What no step takes less than.
    pub(super) floor: f64,
    /// For each kind of group.
    pub(super) runs: Vec<Runs<'q>>,
    solver: Solver,
    /// Seconds of a micro-batch that each segment takes at least on a group.
    least: Vec<Vec<f64>>,
    /// And so many of the first ones.
    first: Vec<Vec<f64>>,
    /// What the first segments take at least.
    left: Left,
    /// Sums that were looked at for each kind of group.
    sums: Vec<f64>,
    kinds: HashMap<(u32, u32), usize>,
    /// By segments, kind of group, and micro-batches that are kept.
    known: HashMap<((usize, usize), usize, u32), Ways>,
    /// Whether operators may be on some devices, by segments.
    may: HashMap<Run, bool>,
    /// What went wrong, if anything did.
    pub(super) error: Option<Error>,
}

impl<'q> Found<'q> {
    /// Of a question whose constraints say nothing about devices, and those that may.
    pub(super) fn new(
        (question, constraints): (Question<'q>, Option<&'q Constraints>),
        (segments, groups): (&'q Segments, &'q Groups),
        (operators, digits, messages): (&'q Operators<'q>, &'q [Digits], &'q [Messages<'q>]),
        floor: f64,
    ) -> Result<Self> {
        let mut runs = vec![];
        for (cluster, (digits, messages)) in groups.kinds.iter().zip(digits.iter().zip(messages)) {
            let group_question = Question { cluster, devices: cluster.devices(), ..question };
            runs.push(Runs::new(
                group_question,
                (operators, digits, messages),
                (&segments.of, &segments.crossing),
                floor,
            ));
        }
        let least: Vec<Vec<f64>> = runs.iter_mut().map(Runs::least).collect::<Result<_>>()?;
        let left = Left::new(&ways_of(&mut runs, f64::from(question.devices) * limit(&question) as f64)?);
        let (kinds, known, may) = (HashMap::new(), HashMap::new(), HashMap::new());
        let (solver, sums) = (Solver::with_room(ROOM), vec![0.0; runs.len()]);
        Ok(Self {
            question,
            constraints,
            groups,
            floor,
            runs,
            solver,
            first: least.iter().map(|each| of_first(each)).collect(),
            least,
            left,
            sums,
            kinds,
            known,
            may,
            error: None,
        })
    }
}

impl<'q> Found<'q> {
    /// From now on with so much memory, and until so late. What is known of runs by themselves stays.
    pub(super) fn ask(&mut self, question: &Question<'q>) {
        self.question = *question;
        self.runs.iter_mut().for_each(|runs| runs.ask(question));
        self.left.limit(limit(question));
        self.known.clear();
        self.solver.sums = 0.0;
        self.sums.fill(0.0);
    }
}

impl Found<'_> {
    /// The kind of a group.
    pub(super) fn kind(&mut self, devices: (u32, u32)) -> usize {
        let kind = || self.groups.kind(devices);
        *self.kinds.entry(devices).or_insert_with(kind)
    }

    /// Ways to divide what is tied: for stages of so many devices, and for what one stage has on each kind of group. One
    /// where nothing is tied, which says nothing.
    pub(super) fn fixes(&mut self) -> Result<Vec<Fix>> {
        if self.question.constraints.is_none_or(|it| it.ties().next().is_none()) {
            return Ok(vec![Fix::default()]);
        }
        let kinds: Vec<Vec<Divided>> = self.runs.iter_mut().map(Runs::divided).collect::<Result<_>>()?;
        let fix_at = |across: Divided, at: usize| Fix {
            within: kinds
                .iter()
                .map(|ways| ways.get(at).or(ways.last()).cloned().unwrap_or_else(|| vec![None; across.len()]))
                .collect(),
            across,
        };
        let mut fixes: Vec<Fix> = vec![];
        for ways in &kinds {
            for (at, divided) in ways.iter().enumerate() {
                if !fixes.iter().any(|fix| fix.across == *divided) {
                    fixes.push(fix_at(divided.clone(), at));
                }
            }
        }
        Ok(fixes)
    }

    pub(super) fn fix(&mut self, fix: &Fix) {
        if fix.across.is_empty() {
            return;
        }
        self.known.clear();
        self.runs.iter_mut().zip(&fix.within).for_each(|(runs, within)| runs.fix(within, &fix.across));
    }

    /// What was found; nothing is if something went wrong.
    fn or_error<T>(&mut self, result: Result<Option<T>>) -> Option<T> {
        result.unwrap_or_else(|error| {
            self.error = Some(error);
            None
        })
    }

    /// Whether constraints let a run be on its devices.
    fn may(&mut self, run: Run) -> Result<bool> {
        let Some(constraints) = self.constraints else { return Ok(true) };
        if let Some(known) = self.may.get(&run) {
            return Ok(*known);
        }
        let kind = self.kind(run.devices);
        let ops = self.runs[kind].ops(run.segments)?;
        let may = constraints.lets(ops.into_iter(), run.devices.0..run.devices.1);
        self.may.insert(run, may);
        Ok(may)
    }

    /// What was found for a run on a kind of group.
    pub(super) fn inner(&mut self, run: Run, kept: u32) -> Result<Ways> {
        let kind = self.kind(run.devices);
        let key = (run.segments, kind, kept);
        if let Some(known) = self.known.get(&key) {
            return Ok(known.clone());
        }
        let before = self.solver.sums;
        let inner = if self.is_spent(kind) {
            vec![]
        } else {
            self.runs[kind].ways(run.segments, kept, &mut self.solver)?
        };
        self.sums[kind] += self.solver.sums - before;
        let stages = inner.iter().map(Inner::stage).collect();
        let ways: Ways = (Rc::from(inner), stages);
        self.known.insert(key, ways.clone());
        Ok(ways)
    }

    fn is_spent(&self, kind: usize) -> bool {
        self.solver.sums > MOST / 2.0 && self.sums[kind] * self.sums.len() as f64 > MOST
    }

    /// Whether all costs are the same if devices are counted from the last one.
    pub(super) fn is_symmetric(&self) -> bool {
        self.groups.is_symmetric
    }

    /// Whether of all stages that were looked at the ways are known that cost least.
    pub(super) fn is_exact(&self) -> bool {
        self.runs.iter().all(Runs::is_exact) && !(0..self.sums.len()).any(|kind| self.is_spent(kind))
    }

    /// Seconds of a micro-batch that each segment takes at least on a group.
    pub(super) fn least_of(&mut self, devices: (u32, u32)) -> Vec<f64> {
        let kind = self.kind(devices);
        self.least[kind].clone()
    }
}

impl Costs for Found<'_> {
    fn groups(&self, end: u32) -> Vec<u32> {
        self.groups.sizes(end)
    }

    fn ways(&mut self, run: Run, kept: u32, below: f64) -> Rc<[Stage]> {
        if self.at_least(run, kept).is_none_or(|stage| stage.busy > below) {
            return Rc::from([]);
        }
        let ways = self.may(run).and_then(|may| if may { self.inner(run, kept).map(Some) } else { Ok(None) });
        self.or_error(ways).map_or_else(|| Rc::from([]), |(_, stages)| stages)
    }

    fn busy(&mut self, run: Run) -> f64 {
        let ((from, to), kind) = (run.segments, self.kind(run.devices));
        let first = &self.first[kind];
        f64::from(self.question.batches) * (first[to] - first[from]) * (1.0 - ROUNDING)
    }

    fn at_least(&mut self, run: Run, kept: u32) -> Option<Stage> {
        let kind = self.kind(run.devices);
        if self.error.is_some() {
            return None;
        }
        let least = self.runs[kind].least_of(run.segments, kept);
        let [all, forward, backward] = self.or_error(least)?;
        let busy = all * f64::from(self.question.batches);
        Some(Stage { forward, backward, busy, ..Stage::default() })
    }

    /// What the devices of the one need is sent by those of the other, each of which sends one thing after another.
    fn sent(&self, (from, stage): (Run, &Stage), (to, flow): (Run, &Flow)) -> (f64, f64) {
        let size = |run: Run| f64::from(run.devices.1 - run.devices.0);
        let (here, there) = (from.devices.1 - 1, to.devices.0);
        let cluster = self.question.cluster;
        // Those of a node that send to another one at once share its network, if it is shared at all.
        let near = |run: Run, at: u32| {
            (run.devices.0..run.devices.1).filter(|other| cluster.node(*other) == cluster.node(at)).count()
        };
        let contention = if cluster.network.shared { near(from, here).min(near(to, there)) } else { 1 };
        let contention = Contention(u32::try_from(contention).unwrap_or(u32::MAX));
        let seconds = |bytes: f64| cluster.message(here, there, contention, bytes);
        (seconds(flow.takes / size(from)), seconds(stage.gives / size(to)))
    }

    fn least(&self, segments: usize, devices: u32) -> f64 {
        self.left.least(segments, devices)
    }

    fn is_enough(&self) -> bool {
        self.solver.sums > MOST
    }
}

/// Sums of shares are off by less than this.
const ROUNDING: f64 = 1e-9;

/// Of none of them, of the first one, of the first two, and so on.
fn of_first(each: &[f64]) -> Vec<f64> {
    let sum = |all: &mut f64, one: &f64| {
        *all += one;
        Some(*all)
    };
    std::iter::once(0.0).chain(each.iter().scan(0.0, sum)).collect()
}

/// What stages with others behind them keep at least.
const KEPT: u32 = 2;

/// For each kind of group what all segments take at least: as they are if that may fit, else also with more computed again.
fn ways_of(runs: &mut [Runs<'_>], bytes: f64) -> Result<Vec<Vec<SegmentCosts>>> {
    let mut by_kind: Vec<Vec<SegmentCosts>> = vec![];
    for runs in runs.iter_mut() {
        by_kind.push(runs.segments_at_least(0, KEPT)?.into_iter().collect());
    }
    let needed = |way: &SegmentCosts| way.iter().map(|(_, bytes)| bytes).sum();
    if by_kind.iter().flatten().map(needed).fold(f64::INFINITY, f64::min) <= bytes {
        return Ok(by_kind);
    }
    // All of them, or what is left out could cost less at some price of a byte.
    for (runs, ways) in runs.iter_mut().zip(&mut by_kind) {
        for recomputed in 1..recompute().len() {
            ways.extend(runs.segments_at_least(recomputed, KEPT)?);
        }
    }
    Ok(by_kind)
}
