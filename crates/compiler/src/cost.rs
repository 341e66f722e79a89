//! What each part of a plan costs.

use std::collections::BTreeMap;

use graph::{Graph, OpId};
use plan::{On, OpPlan};
use rules::families::{cost_of, executed};
use rules::{Analysis, Cost, Interval, LocalOp, View};

/// One part of an operator: what it executes, on shards of which shapes, and what that costs.
#[derive(Clone, Debug, PartialEq)]
pub struct PartCost {
    pub op: LocalOp,
    pub inputs: Vec<Vec<i64>>,
    pub outputs: Vec<Vec<i64>>,
    pub cost: Cost,
}

/// The costs of one operator's parts. Parts of the same sizes cost the same, and are looked at once.
pub struct Costs<'a> {
    graph: &'a Graph,
    analysis: &'a Analysis,
    op: OpId,
    /// [`Graph::needs_grad`].
    needs_grad: &'a [bool],
    whole: Vec<Interval>,
    known: BTreeMap<(Vec<i64>, bool), PartCost>,
}

impl<'a> Costs<'a> {
    pub fn new(graph: &'a Graph, analysis: &'a Analysis, op: OpId, needs_grad: &'a [bool]) -> Self {
        let whole = analysis.op(op).whole();
        Self { graph, analysis, op, needs_grad, whole, known: BTreeMap::new() }
    }

    /// In one piece.
    pub fn whole(&mut self) -> &PartCost {
        self.part(&OpPlan { splits: vec![], devices: vec![] }, 0)
    }

    /// A part by its number in a plan.
    pub fn part(&mut self, plan: &OpPlan, index: u32) -> &PartCost {
        let digits = plan.digits(index);
        let at = plan.intervals(&self.whole, &digits);
        let later = |(split, digit): (&plan::Split, &u32)| split.on == On::Value && *digit > 0;
        let first = !plan.splits.iter().zip(&digits).any(later);
        let (graph, analysis, op, needs_grad) = (self.graph, self.analysis, self.op, self.needs_grad);
        let part = analysis.part(graph, op, &at, first, 0);
        let sizes = at.iter().map(|interval| interval.len()).collect();
        self.known.entry((sizes, part.first)).or_insert_with(|| {
            let (view, rule) = (View::new(graph, op), analysis.rules[op.index()].as_ref());
            let op = executed(view, rule, &part);
            let cost = cost_of(view, rule, &part, &op, needs_grad);
            PartCost { op, inputs: part.inputs, outputs: part.outputs, cost }
        })
    }
}
