//! Of what kind the shares are that an operator with a split value is given.
//!
//! Sums are what it is for: an operator that is linear in some operands gets partial sums of them, made of whatever
//! there is. Shares of a maximum, or of what else is no sum, only pass through where they are: nothing is made partial
//! for them, and no gradient goes back. Where none of this fits, the parts compute the same, as copies.

use graph::{Graph, OpId};
use plan::{On, OpPlan, Plan, value_operands};
use rules::{Analysis, Kind, Passes, Reduction};

use crate::layout::{Interner, Layout};
use crate::placement::Placement;

/// The operands that an operator is given shares of, and what kinds these and its results are of.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Shares {
    pub operands: Vec<usize>,
    pub given: Reduction,
    pub made: Reduction,
}

/// What there is before an operator is placed.
pub struct Known<'a> {
    pub graph: &'a Graph,
    pub analysis: &'a Analysis,
    pub plan: &'a Plan,
    /// Of the operators before it.
    pub placements: &'a [std::rc::Rc<Placement>],
    pub interner: &'a Interner,
}

impl Known<'_> {
    /// Partial sums, if the operator is linear in something.
    pub fn sums(&self, op: OpId) -> Option<Shares> {
        let operands = value_operands(self.graph, self.analysis, op)?.clone();
        Some(Shares { operands, given: Reduction::Sum, made: Reduction::Sum })
    }

    /// Shares of another kind that are there, in as many parts as the operator has by value.
    pub fn others(&self, op: OpId) -> Option<Shares> {
        let plan = self.plan.op(op);
        let parts = plan.splits.iter().find(|split| split.on == On::Value)?.parts;
        let rule = self.analysis.rules[op.index()].as_ref()?;
        if self.reduces(op, plan) {
            return None;
        }
        rule.passes.iter().find_map(|passes| {
            let given = self.kind(op, passes, parts).filter(|kind| *kind != Reduction::Sum)?;
            let made = passes.through.gives(given)?;
            Some(Shares { operands: passes.operands.clone(), given, made })
        })
    }

    /// What there is of an operand that an operator of the same block makes.
    pub fn layout(&self, op: OpId, operand: usize) -> Option<&Layout> {
        let tensor = *self.graph.op(op).inputs().get(operand)?;
        let (maker, output) = self.graph.producer(tensor)?;
        let written = self.placements.get(maker.index())?.outputs[output].as_ref()?;
        (self.plan.block(maker) == self.plan.block(op)).then(|| self.interner.get(written.layout))
    }

    /// The kind of which all of these operands are in so many shares.
    fn kind(&self, op: OpId, passes: &Passes, parts: u32) -> Option<Reduction> {
        let mut kinds = passes.operands.iter().map(|&operand| {
            self.layout(op, operand).filter(|layout| layout.parts == parts).map(|layout| layout.reduction)
        });
        let first = kinds.next()??;
        kinds.all(|kind| kind == Some(first)).then_some(first)
    }

    /// Whether its parts reduce something besides.
    fn reduces(&self, op: OpId, plan: &OpPlan) -> bool {
        let loops = &self.analysis.op(op).loops;
        plan.splits.iter().any(
            |split| matches!(split.on, On::Loop(l) if split.parts > 1 && matches!(loops[l].kind, Kind::Reduce(_))),
        )
    }
}
