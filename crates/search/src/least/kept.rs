//! What forward keeps for backward, at least: of each value the smallest part that the first one reads or makes that
//! keeps it.

use std::rc::Rc;

use compiler::Costs;
use plan::{Plan, Schedule};

use super::parts::Cost;
use super::stages::Stages;
use super::under_way::most;
use crate::Question;
use crate::bound::arriving;
use crate::inside::{Keeps, keeps, spans_of};

pub(super) struct Kept<'q> {
    question: &'q Question<'q>,
    wanted: Vec<bool>,
    arriving: Vec<bool>,
    /// Of each operator as a whole.
    costs: Vec<rules::Cost>,
}

impl<'q> Kept<'q> {
    pub(super) fn new(question: &'q Question<'q>) -> Self {
        let (graph, arriving) = (question.graph, arriving(question));
        let cost = |op| Costs::new(graph, question.analysis, op, &arriving).whole().cost.clone();
        let costs = graph.op_ids().map(cost).collect();
        Self { question, wanted: compiler::wanted(graph, question.boundary), arriving, costs }
    }

    /// Bytes of each stage, when it has most of it, and of how many micro-batches that is.
    pub(super) fn of(&self, plan: &Plan, costs: &[Rc<Cost>], stages: &Stages<'_>) -> Vec<(u64, u32)> {
        let graph = self.question.graph;
        let mut found: Vec<(u64, u32)> =
            (0..stages.count).map(|stage| (0, self.at_once(plan, stages, stage))).collect();
        if !plan.offload.is_empty() || plan.tokens > 1 {
            return found;
        }
        let keeps = keeps(graph, &self.costs, &spans_of(graph, &plan.recompute, &self.arriving));
        let mut of_blocks = vec![0; plan.block_count() as usize];
        for op in graph.op_ids().filter(|op| self.wanted[op.index()]) {
            let own = part(&keeps[op.index()], &costs[op.index()]);
            let (bytes, batches) = &mut found[stages.of[op.index()]];
            *bytes += u64::from(*batches) * own;
            of_blocks[plan.block(op) as usize] += own;
        }
        match most(self.question, (plan, stages), (&self.arriving, &of_blocks)) {
            // Perhaps it is there only before the first backward.
            Some(all) => all.into_iter().map(|bytes| (bytes, self.question.batches)).collect(),
            None => found,
        }
    }

    /// Under `1f1b` a stage with so many behind it keeps one micro-batch more; in whatever order, one at least.
    fn at_once(&self, plan: &Plan, stages: &Stages<'_>, stage: usize) -> u32 {
        let is_usual = plan.timetables.is_empty() && plan.before.is_empty() && stages.is_row;
        let behind = u32::try_from(stages.count - stage).unwrap_or(u32::MAX);
        match plan.schedule {
            Schedule::OneFOneB | Schedule::ZbH1 if is_usual => behind.min(self.question.batches).max(1),
            _ => 1,
        }
    }
}

fn part(keeps: &Keeps, cost: &Cost) -> u64 {
    let share =
        |(at, (own, all)): &(usize, (i64, i64))| (cost.inputs[*at] as f64 * *own as f64 / *all as f64) as u64;
    let read: u64 = keeps.inputs.iter().map(share).sum();
    let made: u64 = keeps.outputs.iter().map(|at| cost.outputs[*at]).sum();
    read + made
}
