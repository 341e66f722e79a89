//! What forward keeps for backward, at least: of each value the smallest part that the first one reads or makes that
//! keeps it.

use std::rc::Rc;

use compiler::Costs;
use graph::{Graph, OpId};
use plan::{Plan, Schedule};

use super::parts::OperatorCost;
use super::stages::Stages;
use super::under_way::most;
use crate::Question;
use crate::bound::arriving;
use crate::spmd::{Keeps, keeps, spans_of};

pub(super) struct Kept {
    wanted: Vec<bool>,
    pub(super) arriving: Vec<bool>,
    /// Of each operator as a whole.
    costs: Vec<rules::Cost>,
}

impl Kept {
    pub(super) fn new(question: &Question<'_>) -> Self {
        let (graph, arriving) = (question.graph, arriving(question));
        let cost = |op| Costs::new(graph, question.analysis, op, &arriving).whole().cost.clone();
        let costs = graph.op_ids().map(cost).collect();
        Self { wanted: compiler::wanted(graph, question.boundary), arriving, costs }
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
        let spans = outermost(graph, &plan.recompute);
        let keeps = keeps(graph, &self.costs, &spans_of(graph, &spans, &self.arriving));
        let mut of_blocks = vec![0; plan.block_count() as usize];
        for op in graph.op_ids().filter(|op| self.wanted[op.index()]) {
            let op_bytes = part(&keeps[op.index()], &costs[op.index()]);
            let (bytes, batches) = &mut by_stage[stages.of[op.index()]];
            *bytes += u64::from(*batches) * op_bytes;
            of_blocks[plan.block(op) as usize] += op_bytes;
        }
        match most(question, plan, stages, &self.arriving, &of_blocks) {
            // Perhaps it is there only before the first backward.
            Some(all) => all.into_iter().map(|bytes| (bytes, question.batches)).collect(),
            None => by_stage,
        }
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

/// What a span inside of another one keeps is there only while that is computed again.
fn outermost(graph: &Graph, spans: &[Vec<OpId>]) -> Vec<Vec<OpId>> {
    let mut seen = vec![false; graph.ops.len()];
    let mut is_new = |span: &&Vec<OpId>| {
        let is_inside = span.iter().any(|op| seen[op.index()]);
        span.iter().for_each(|op| seen[op.index()] = true);
        !is_inside
    };
    spans.iter().filter(|span| is_new(span)).cloned().collect()
}

fn part(keeps: &Keeps, cost: &OperatorCost) -> u64 {
    let share = |(at, (stored, all)): &(usize, (i64, i64))| {
        (cost.inputs[*at] as f64 * *stored as f64 / *all as f64) as u64
    };
    let read: u64 = keeps.inputs.iter().map(share).sum();
    let made: u64 = keeps.outputs.iter().map(|at| cost.outputs[*at]).sum();
    read + made + if keeps.more { cost.more } else { 0 }
}
