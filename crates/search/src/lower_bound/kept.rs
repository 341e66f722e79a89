//! What forward keeps for backward, at least: of each value the smallest part that the first one reads or makes that
//! keeps it.

use std::rc::Rc;

use compiler::Costs;
use graph::{Graph, OpId, TensorId};
use plan::{Plan, Schedule};

use super::parts::OperatorCost;
use super::stages::Stages;
use super::under_way::{OfBlock, most};
use crate::Question;
use crate::bound::arriving;
use crate::spmd::{Keeps, SpanReads, keeps, lies_in, spans_of};

pub(super) struct Kept {
    wanted: Vec<bool>,
    pub(super) arriving: Vec<bool>,
    /// Of each operator as a whole.
    costs: Vec<rules::Cost>,
    /// Of each value.
    lies_in: Vec<TensorId>,
}

impl Kept {
    pub(super) fn new(question: &Question<'_>) -> Self {
        let (graph, arriving) = (question.graph, arriving(question));
        let cost = |op| Costs::new(graph, question.analysis, op, &arriving).whole().cost.clone();
        let costs: Vec<rules::Cost> = graph.op_ids().map(cost).collect();
        let lies_in = lies_in(graph, &costs);
        Self { wanted: compiler::wanted(graph, question.boundary), arriving, costs, lies_in }
    }

    /// Bytes of each stage, when it has most of it, and of how many micro-batches that is.
    pub(super) fn by_stage(
        &self,
        question: &Question<'_>,
        plan: &Plan,
        costs: &[Rc<OperatorCost>],
        stages: &Stages<'_>,
    ) -> Vec<(u64, u32)> {
        let graph = question.graph;
        let at_once = |stage: usize| at_once(plan, stages, stage, question.batches);
        let mut by_stage: Vec<(u64, u32)> = (0..stages.count).map(|stage| (0, at_once(stage))).collect();
        if !plan.offload.is_empty() || plan.tokens > 1 {
            return by_stage;
        }
        let (spans, nested) = outermost(graph, &plan.recompute);
        let span_of = spans_of(graph, &spans, &self.arriving);
        let keeps = keeps(graph, &self.costs, &span_of, SpanReads::Surely);
        let recomputed = self.recomputed(graph, &span_of, &nested, &keeps, costs);
        // What of each span is still there, once it was recomputed: of one that is cut up that is done piece by piece.
        let mut of_spans = vec![0; spans.len()];
        let whole = self.whole(&span_of, spans.len());
        for (op, bytes) in recomputed.iter().enumerate() {
            span_of[op].into_iter().for_each(|span| of_spans[span] += bytes);
        }
        let mut of_blocks = vec![OfBlock::default(); plan.block_count() as usize];
        let mut of_stages = vec![OfBlock::default(); stages.count];
        // Backward comes to the last ones first.
        for op in graph.op_ids().rev().filter(|op| self.wanted[op.index()]) {
            let (cost, span) = (&costs[op.index()], span_of[op.index()]);
            let bytes = part(&keeps[op.index()], cost);
            let there =
                span.map_or(0, |span| if whole[span] { of_spans[span] } else { recomputed[op.index()] });
            let besides = cost.meanwhile + there;
            of_blocks[plan.block(op) as usize].add(bytes, besides);
            of_stages[stages.of[op.index()]].add(bytes, besides);
            span.into_iter().for_each(|span| of_spans[span] -= recomputed[op.index()]);
        }
        match most(question, plan, stages, &self.arriving, &of_blocks) {
            // Perhaps it is there only before the first backward.
            Some(all) => all.into_iter().map(|bytes| (bytes, question.batches)).collect(),
            None => {
                for ((bytes, batches), it) in by_stage.iter_mut().zip(&of_stages) {
                    *bytes = u64::from(*batches) * it.kept + it.besides;
                }
                by_stage
            }
        }
    }

    /// For each span whether all operators with a backward from its first to its last one are in it.
    fn whole(&self, span_of: &[Option<usize>], count: usize) -> Vec<bool> {
        let mut ends: Vec<Option<(usize, usize)>> = vec![None; count];
        let mut inside = vec![0; count];
        let wanted = |op: &usize| self.wanted[*op];
        for op in (0..span_of.len()).filter(wanted) {
            let Some(span) = span_of[op] else { continue };
            ends[span] = Some((ends[span].map_or(op, |(first, _)| first), op));
            inside[span] += 1;
        }
        let is_whole = |(ends, inside): (Option<(usize, usize)>, usize)| {
            ends.is_some_and(|(first, last)| (first..=last).filter(wanted).count() == inside)
        };
        ends.into_iter().zip(inside).map(is_whole).collect()
    }

    /// For each operator of a span what it keeps of what the span made, once that was recomputed, and was not kept before.
    fn recomputed(
        &self,
        graph: &Graph,
        span_of: &[Option<usize>],
        nested: &[Vec<OpId>],
        before: &[Keeps],
        costs: &[Rc<OperatorCost>],
    ) -> Vec<u64> {
        if span_of.iter().all(Option::is_none) {
            return vec![0; span_of.len()];
        }
        let lies_in = &self.lies_in;
        let mut is_kept = vec![false; graph.tensors.len()];
        for op in graph.op_ids() {
            before[op.index()]
                .tensors(graph, op)
                .for_each(|tensor| is_kept[lies_in[tensor.index()].index()] = true);
        }
        let within = keeps(graph, &self.costs, &spans_of(graph, nested, &self.arriving), SpanReads::Surely);
        let bytes = |op: OpId| {
            let Some(span) = span_of[op.index()].filter(|_| self.wanted[op.index()]) else { return 0 };
            let is_new = |tensor: TensorId| {
                let root = lies_in[tensor.index()];
                let maker = graph.producer(root).and_then(|(maker, _)| span_of[maker.index()]);
                maker == Some(span) && !is_kept[root.index()]
            };
            let (it, mut keeps) = (graph.op(op), within[op.index()].clone());
            let inputs = it.inputs();
            keeps.inputs.retain(|(at, _)| is_new(inputs[*at]));
            keeps.outputs.retain(|at| it.outputs[*at].is_some_and(is_new));
            part(&keeps, &costs[op.index()])
        };
        graph.op_ids().map(bytes).collect()
    }
}

/// Under `1f1b` a stage with so many behind it keeps one micro-batch more; in whatever order, one at least.
fn at_once(plan: &Plan, stages: &Stages<'_>, stage: usize, batches: u32) -> u32 {
    let is_usual = plan.timetables.is_empty() && plan.before.is_empty() && stages.is_row;
    let behind = u32::try_from(stages.count - stage).unwrap_or(u32::MAX);
    match plan.schedule {
        Schedule::OneFOneB | Schedule::ZbH1 if is_usual => behind.min(batches).max(1),
        _ => 1,
    }
}

/// The outermost spans, and those inside of another one: what these keep is there only while that is computed again.
fn outermost(graph: &Graph, spans: &[Vec<OpId>]) -> (Vec<Vec<OpId>>, Vec<Vec<OpId>>) {
    let mut seen = vec![false; graph.ops.len()];
    let mut is_new = |span: &Vec<OpId>| {
        let is_inside = span.iter().any(|op| seen[op.index()]);
        span.iter().for_each(|op| seen[op.index()] = true);
        !is_inside
    };
    spans.iter().cloned().partition(|span| is_new(span))
}

fn part(keeps: &Keeps, cost: &OperatorCost) -> u64 {
    let share = |(at, (stored, all)): &(usize, (i64, i64))| {
        (cost.inputs[*at] as f64 * *stored as f64 / *all as f64) as u64
    };
    let read: u64 = keeps.inputs.iter().map(share).sum();
    let made: u64 = keeps.outputs.iter().map(|at| cost.outputs[*at]).sum();
    read + made + if keeps.more { cost.more } else { 0 }
}
