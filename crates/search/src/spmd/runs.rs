//! Some segments of a model, one after another, on a group of devices: a stage of a pipeline.
//!
//! The tables are those of the whole model on the group, where no bundle is in two segments; of a run those count that are
//! within it. Runs of layers that are alike have the same tables, and are solved once.

use std::collections::BTreeSet;
use std::rc::Rc;

use diag::Result;
use elimination::Solver;
use graph::{OpId, TensorId};
use hashing::Map;
use plan::Draft;

use super::explain::{Explanation, ways};
use super::fallback::{BundleTables, Fallback};
use super::inner::{Inner, LOOKS, PRICES, RunClaim};
use super::maker::Ground;
use super::objective::{NOTHING, Objective, Totals, UNIT};
use super::recomputed::{may_recompute, recompute, spans};
use super::solution::write;
use super::solved::limit;
use super::space::Begun;
use super::tied::{Divided, weights};
use crate::Question;

/// All runs of segments on one group of devices.
pub(crate) struct Runs<'q> {
    pub(super) question: Question<'q>,
    ground: Ground<'q>,
    /// The segment of each operator.
    pub(super) segments: &'q [usize],
    /// The value that crosses to each segment.
    pub(super) crossing: &'q [Option<TensorId>],
    /// What a byte costs at least.
    pub(super) nothing: f64,
    pub(super) rungs: Vec<Option<Fallback<'q>>>,
    /// What runs that fit take at least, by how many micro-batches are kept.
    least: Map<(usize, usize, u32), Option<[f64; 3]>>,
    /// How what is tied is divided within a stage, and across several.
    pub(super) fixed: Option<(Divided, Divided)>,
}

impl<'q> Runs<'q> {
    /// Of a question about the devices of the group; `floor` is what no step takes less than.
    pub(crate) fn new(
        question: Question<'q>,
        ground: Ground<'q>,
        (segments, crossing): (&'q [usize], &'q [Option<TensorId>]),
        floor: f64,
    ) -> Self {
        let nothing = floor / UNIT * NOTHING / limit(&question).max(1) as f64;
        let (rungs, least, fixed) = (vec![], Map::default(), None);
        Self { question, ground, segments, crossing, nothing, rungs, least, fixed }
    }

    /// The same with so much memory, and until so late.
    pub(crate) fn ask(&mut self, question: &Question<'q>) {
        (self.question.memory, self.question.stop) = (question.memory, question.stop);
        self.least.clear();
        self.rungs.iter_mut().flatten().for_each(|fallback| fallback.space.question = self.question);
    }

    /// The same of all runs that were looked at: see [`Fallback::is_exact`].
    pub(crate) fn is_exact(&self) -> bool {
        self.rungs.iter().flatten().all(|fallback| fallback.is_exact)
    }

    /// Seconds of a micro-batch that each segment takes at least, without what is between bundles.
    pub(crate) fn least(&mut self) -> Result<Vec<f64>> {
        self.made(0)?;
        let fallback = self.rungs[0].as_ref();
        let each = |fallback: &Fallback<'_>| fallback.least.iter().map(|[all, ..]| *all).collect();
        Ok(fallback.map_or_else(|| vec![0.0; self.crossing.len()], each))
    }

    /// Device-seconds of a micro-batch and bytes of all devices of each segment at least, of a rung and where so many
    /// micro-batches are kept.
    pub(crate) fn segments_at_least(
        &mut self,
        fallback: usize,
        kept: u32,
    ) -> Result<Option<Vec<(f64, f64)>>> {
        self.made(fallback)?;
        let devices = f64::from(self.question.devices);
        let each = |fallback: &Fallback<'_>| {
            let segment = |([seconds, ..], (held, kept_bytes)): (&[f64; 3], &(f64, f64))| {
                (devices * seconds, devices * (held + f64::from(kept) * kept_bytes))
            };
            fallback.least.iter().zip(&fallback.bytes).map(segment).collect()
        };
        Ok(self.rungs[fallback].as_ref().map(each))
    }

    /// The same of a run that fits where so many micro-batches are kept: in all, forward and backward. None if none does.
    pub(crate) fn least_of(&mut self, run: (usize, usize), kept: u32) -> Result<Option<[f64; 3]>> {
        if let Some(known) = self.least.get(&(run.0, run.1, kept)) {
            return Ok(*known);
        }
        let cheapest = self.looked_for(run, kept)?;
        self.least.insert((run.0, run.1, kept), cheapest);
        Ok(cheapest)
    }

    fn looked_for(&mut self, run: (usize, usize), kept: u32) -> Result<Option<[f64; 3]>> {
        let limit = limit(&self.question) as f64;
        let (mut none, mut cheapest) = (None, None);
        for at in 0..recompute().len() {
            self.made(at)?;
            let Some(fallback) = self.rungs[at].as_ref().filter(|fallback| !fallback.cuts_a_span(run)) else {
                continue;
            };
            let (seconds, bytes) = (fallback.least(run), fallback.least_bytes(run, kept));
            // Who computes more again takes no less.
            if bytes <= limit && none.is_none() {
                return Ok(Some(seconds));
            }
            let (kept_seconds, kept_bytes) = *none.get_or_insert((seconds, bytes));
            if bytes <= limit {
                // Some layers need not be recomputed.
                let share = (kept_bytes - limit) / (kept_bytes - bytes);
                let mix = |at: usize| kept_seconds[at] + share * (seconds[at] - kept_seconds[at]);
                let mixed: [f64; 3] = std::array::from_fn(mix);
                let other = cheapest.unwrap_or(mixed);
                cheapest = Some(std::array::from_fn(|at| mixed[at].min(other[at])));
            }
        }
        Ok(cheapest)
    }

    /// Ways to divide a run that fit where so many micro-batches are kept. Nothing more is computed again where memory is no
    /// matter.
    pub(crate) fn ways(&mut self, run: (usize, usize), kept: u32, solver: &mut Solver) -> Result<Vec<Inner>> {
        let (limit, mut ways) = (limit(&self.question) as f64, vec![]);
        for at in 0..recompute().len() {
            self.made(at)?;
            let nothing = self.nothing;
            let Some(fallback) = self.rungs[at].as_mut().filter(|fallback| !fallback.cuts_a_span(run)) else {
                continue;
            };
            if fallback.least_bytes(run, kept) > limit {
                continue;
            }
            let mut is_easy = true;
            for look in 0..LOOKS.len() {
                // What is as good as nothing is the same however many there are.
                let first = fallback.inner(run, (look, 0, 1), nothing, solver)?;
                let fits = |it: &Inner| it.bytes(kept) <= limit;
                let first_fits = first.as_ref().is_some_and(fits);
                is_easy &= first_fits;
                let inner = match first {
                    Some(first) if first_fits => Some(first),
                    _ => fallback.tight(run, look, kept, nothing, &fits, solver)?,
                };
                ways.extend(inner.map(|inner| Inner { fallback: at, ..inner }));
            }
            if is_easy && !ways.is_empty() {
                break;
            }
        }
        let fewer = ways.iter().map(|inner| self.with_fewer(run, inner, kept)).collect::<Result<Vec<_>>>()?;
        ways.extend(fewer.into_iter().flatten());
        Ok(ways)
    }

    /// The same with as few layers recomputed as fit, if memory has no price in it.
    fn with_fewer(&mut self, run: (usize, usize), inner: &Inner, kept: u32) -> Result<Option<Inner>> {
        let limit = limit(&self.question) as f64;
        if inner.fallback == 0 || inner.asked.1 > 0 {
            return Ok(None);
        }
        let Some(none) = &mut self.rungs[0] else { return Ok(None) };
        if !none.is_done() {
            return Ok(None);
        }
        let members = none.members(run);
        let (_, edges) = none.within(&members);
        let none = none.evaluate(run, &members, &edges, Rc::clone(&inner.values), inner.weights)?;
        let layers = self.rungs[inner.fallback].as_ref().map_or(0, |fallback| fallback.spans_of(run).count());
        Ok(inner.with_fewer(&none, layers, kept, limit))
    }

    /// Why an operator of a run is divided as it is in a way that was found, and at most so many other ways.
    pub(crate) fn explain(
        &mut self,
        run: (usize, usize),
        claim: &RunClaim,
        op: OpId,
        most: usize,
    ) -> Result<Option<Explanation>> {
        self.made(claim.fallback)?;
        let Some(fallback) = &mut self.rungs[claim.fallback] else { return Ok(None) };
        if !fallback.is_done() {
            return Ok(None);
        }
        let nothing = claim.byte / PRICES[claim.asked.1];
        let Some(BundleTables { members, edges, problem, weights }) =
            fallback.tables(run, claim.asked, nothing)?
        else {
            return Ok(None);
        };
        let is_own = |at: &usize| fallback.space.bundles[*at].ops.contains(&op);
        let Some(variable) = members.iter().position(is_own) else { return Ok(None) };
        let bundle = members[variable];
        let totals = |values: &[usize]| {
            let inner = fallback.evaluate(run, &members, &edges, values.into(), weights)?;
            let totals = Totals { bytes: inner.bytes(claim.kept), ..inner.totals };
            Ok((totals, inner.crossing.0 + inner.crossing.1))
        };
        let ways = ways(&fallback.space, &problem, bundle, variable, &totals, most)?;
        Ok(ways.map(|ways| Explanation { ops: fallback.space.bundles[bundle].ops.clone(), ways }))
    }

    /// How what is tied is divided.
    pub(crate) fn fixed(&self) -> Option<&(Divided, Divided)> {
        self.fixed.as_ref()
    }

    fn made(&mut self, at: usize) -> Result<()> {
        while self.rungs.len() <= at {
            let spans = spans(&self.question, recompute()[self.rungs.len()]);
            let fallback = match spans.filter(|spans| may_recompute(&self.question, spans)) {
                Some(spans) => {
                    let begun = Begun::new(&self.question, self.ground, &spans, self.segments);
                    begun
                        .map(|begun| Fallback::new(self.segments, self.crossing, spans, begun))
                        .transpose()?
                }
                None => None,
            };
            self.rungs.push(fallback);
            self.fix_last();
        }
        Ok(())
    }

    /// The operators of some segments.
    pub(crate) fn ops(&mut self, run: (usize, usize)) -> Result<Vec<OpId>> {
        self.made(0)?;
        let fallback = self.rungs[0].as_ref();
        Ok(fallback.map_or_else(Vec::new, |fallback| {
            fallback.members(run).into_iter().flat_map(|at| fallback.space.bundles[at].ops.clone()).collect()
        }))
    }

    /// Ways to divide what is tied, on this group: as in plans of one block that cost least.
    pub(crate) fn divided(&mut self) -> Result<Vec<Divided>> {
        self.made(0)?;
        let prices = PRICES.map(|price| self.nothing * price);
        let Some(fallback) = &mut self.rungs[0] else { return Ok(vec![]) };
        if !fallback.is_done() {
            return Ok(vec![]);
        }
        fallback.tied.divided(&fallback.space, &weights(&LOOKS, &[prices[0], prices[2], prices[4]]))
    }

    /// From now on what is tied is divided so: within a stage, and across several.
    pub(crate) fn fix(&mut self, within: &Divided, across: &Divided) {
        self.fixed = Some((within.clone(), across.clone()));
        self.rungs.iter_mut().flatten().for_each(|fallback| fallback.fix(within, across));
    }

    fn fix_last(&mut self) {
        let (Some((within, across)), Some(Some(fallback))) = (&self.fixed, self.rungs.last_mut()) else {
            return;
        };
        fallback.fix(within, across);
    }

    /// Writes a way to divide a run, on devices from `first` on. Gives the operators.
    pub(crate) fn write(
        &self,
        draft: &mut Draft<'_>,
        run: (usize, usize),
        inner: &Inner,
        first: u32,
    ) -> Result<Vec<OpId>> {
        let fallback = self.rungs[inner.fallback].as_ref().expect("a way is of a rung that is there");
        let objective = Objective::new(&fallback.space, inner.weights)?.of_stage(1.0);
        let mut ops = BTreeSet::new();
        for (bundle, value) in fallback.members(run).into_iter().zip(inner.values.iter()) {
            write(&objective, draft, bundle, *value, first)?;
            ops.extend(fallback.space.bundles[bundle].ops.iter().copied());
        }
        let spans = fallback.spans_of(run).take(inner.recomputed.unwrap_or(usize::MAX));
        spans.for_each(|span| draft.recompute(span.clone()));
        Ok(ops.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use check::Masters;
    use graph::{Graph, Source};
    use plan::sets;
    use program::Inputs;
    use rules::Analysis;

    use super::*;
    use crate::spmd::{Count, Digits, Messages, Operators};

    /// A GPT whose layers share the largest of their weights.
    fn graph() -> Graph {
        let is_other = |line: &str| line.contains("_down_weight") && !line.contains("%p_h_0_down_weight");
        let lines = include_str!("../../tests/graphs/full_gpt.graph").lines();
        let lines = lines.filter(|line| !(line.starts_with("param") && is_other(line)));
        let mut text: String = lines.map(|line| format!("{line}\n")).collect();
        for layer in 1..24 {
            text = text.replace(&format!("%p_h_{layer}_down_weight"), "%p_h_0_down_weight");
        }
        text.parse().expect("it parses")
    }

    /// Its runs on one device with so much memory, and how many segments there are.
    fn with_runs(graph: &Graph, memory: Option<u64>, look: impl FnOnce(&mut Runs<'_>, usize)) {
        let analysis = Analysis::new(graph);
        let (boundary, masters) = (lower::loss(graph, Inputs::Global), Masters::new());
        let cluster = cluster::named("dgx-h100:1x1").expect("known");
        let question =
            Question { memory, ..Question::of_tests(graph, &analysis, &boundary, &masters, &cluster) };
        let places = sets::cuts(graph, &analysis);
        let segment_of = |op: OpId| places.iter().filter(|place| **place <= op.index()).count();
        let segments: Vec<usize> = graph.op_ids().map(segment_of).collect();
        let crossing = vec![None; places.len() + 1];
        let digits = Digits::new(&cluster, 1);
        let messages = Messages::new(&cluster, &digits, Count::Alone);
        let operators = Operators::new(&question);
        let ground = (&operators, &digits, &messages);
        let mut runs = Runs::new(question, ground, (&segments, &crossing), f64::MIN_POSITIVE);
        look(&mut runs, crossing.len());
    }

    fn ways(runs: &mut Runs<'_>, run: (usize, usize), kept: u32) -> Vec<Inner> {
        runs.ways(run, kept, &mut Solver::with_room(1 << 20)).expect("ways")
    }

    #[test]
    fn a_run_holds_each_parameter_once() {
        let graph = graph();
        with_runs(&graph, None, |runs, count| {
            for run in [(0, count), (0, count / 3), (count / 3, count / 2), (count / 2, count)] {
                let read = runs.ops(run).expect("operators").into_iter().flat_map(|op| graph.op(op).inputs());
                let params: BTreeSet<TensorId> =
                    read.filter(|it| matches!(graph.tensor(*it).source, Source::Param { .. })).collect();
                assert!(params.iter().any(|it| graph.tensor(*it).shape[..] == [1024, 4096]), "{run:?}");
                let size =
                    |it: &TensorId| graph.tensor(*it).numel() as f64 * graph.tensor(*it).dtype.bytes() as f64;
                // Of each its gradient, too, and two tensors of the optimizer.
                let bytes = 4.0 * params.iter().map(size).sum::<f64>();
                let inner = &ways(runs, run, 1)[0];
                assert_eq!(inner.totals.bytes - inner.kept, bytes, "{run:?}");
            }
        });
    }

    #[test]
    fn as_few_layers_as_fit_are_recomputed() {
        let (graph, kept) = (graph(), 3);
        let mut known = vec![];
        with_runs(&graph, None, |runs, count| known = ways(runs, (0, count), kept));
        let all = known[0].bytes(kept);
        // Of four layers.
        for (share, expected) in
            [(0.7, (3, Some(3))), (0.8, (1, None)), (0.9, (1, Some(2))), (0.97, (1, Some(1)))]
        {
            with_runs(&graph, Some((share * all) as u64), |runs, count| {
                let ways = ways(runs, (0, count), kept);
                let last = &ways[ways.len() - 1];
                assert_eq!((last.fallback, last.recomputed), expected, "{share}");
                assert!(last.bytes(kept) <= limit(&runs.question) as f64);
                assert!(known[0].backward < last.backward && last.backward <= ways[0].backward);
            });
        }
    }
}
