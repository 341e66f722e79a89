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

/// The costs of one operator's parts. Parts of the same sizes cost the same, if their rule does not ask where they begin,
/// and are looked at once.
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
        self.part(&OpPlan { splits: vec![], devices: [].into() }, 0)
    }

    /// The part that computes most. Larger parts are first, and what is causal has more to do behind.
    pub fn dearest(&mut self, plan: &OpPlan) -> &PartCost {
        let [front, back] = [false, true].map(|back| self.number(plan, false, back));
        let dearer = self.part(plan, back).cost.flops > self.part(plan, front).cost.flops;
        self.part(plan, if dearer { back } else { front })
    }

    /// The part that computes least.
    pub fn cheapest(&mut self, plan: &OpPlan) -> &PartCost {
        let [front, back] = [false, true].map(|back| self.number(plan, true, back));
        let cheaper = self.part(plan, front).cost.flops < self.part(plan, back).cost.flops;
        self.part(plan, if cheaper { front } else { back })
    }

    /// The number of a part that is the first or the last along each split: along those where a rule asks where parts
    /// begin, and along the others.
    fn number(&self, plan: &OpPlan, others: bool, placed: bool) -> u32 {
        let (rule, dims) = (self.analysis.rules[self.op.index()].as_ref(), self.analysis.op(self.op));
        let is_placed = |split: &plan::Split| match split.on {
            On::Loop(index) => rule.is_some_and(|rule| rule.dim(dims.loops[index].dim).contiguous),
            _ => false,
        };
        let is_last = |split: &plan::Split| if is_placed(split) { placed } else { others };
        let digit = |split: &plan::Split| if is_last(split) { split.parts - 1 } else { 0 };
        plan.splits.iter().fold(0, |number, split| number * split.parts + digit(split))
    }

    /// A part by its number in a plan.
    pub fn part(&mut self, plan: &OpPlan, index: u32) -> &PartCost {
        let digits = plan.digits(index);
        let at = plan.intervals(&self.whole, &digits);
        let later = |(split, digit): (&plan::Split, &u32)| split.on == On::Value && *digit > 0;
        let first = !plan.splits.iter().zip(&digits).any(later);
        let (graph, analysis, op, needs_grad) = (self.graph, self.analysis, self.op, self.needs_grad);
        let part = analysis.part(graph, op, &at, first, 0);
        let rule = analysis.rules[op.index()].as_ref();
        let loops = analysis.op(op).loops.iter().zip(&at);
        let begins = loops.clone().filter(|(it, _)| rule.is_some_and(|rule| rule.dim(it.dim).contiguous));
        let lengths = loops.map(|(_, interval)| interval.len());
        let sizes = lengths.chain(begins.map(|(_, interval)| interval.lo)).collect();
        self.known.entry((sizes, part.first)).or_insert_with(|| {
            let view = View::new(graph, op);
            let op = executed(view, rule, &part);
            let cost = cost_of(view, rule, &part, &op, needs_grad);
            PartCost { op, inputs: part.inputs, outputs: part.outputs, cost }
        })
    }
}
