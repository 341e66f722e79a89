//! With more threads the plans that come next, if nothing changes, are evaluated with the one whose turn it is.

use diag::Result;
use plan::Plan;

use super::{Search, before};
use crate::{Evaluated, ahead};

impl Search<'_, '_> {
    /// A plan whose turn it is; with more threads the plans that follow if nothing changes are evaluated with it.
    pub(super) fn evaluated(&mut self, plan: Plan) -> Result<Evaluated> {
        if let Some(known) = self.ahead.remove(&plan.name) {
            return known;
        }
        let mut plans = vec![plan];
        if self.question.threads > 1 && !self.is_late() {
            plans.extend(self.next(self.question.threads - 1));
        }
        let names: Vec<String> = plans.iter().map(|plan| plan.name.clone()).collect();
        let mut evaluated = names.into_iter().zip(ahead::evaluated(self.question, plans));
        let (_, first) = evaluated.next().expect("there is one");
        self.ahead.extend(evaluated);
        first
    }

    /// The plans whose turn comes next.
    fn next(&mut self, count: usize) -> Vec<Plan> {
        let (limit, most) = (self.limit(), self.question.most());
        let mut plans = vec![];
        for at in self.in_order() {
            let fallback = &self.open[at];
            if plans.len() == count {
                break;
            }
            let name = &fallback.names[fallback.at];
            let Some(plan) = self.respected(name).ok().filter(|_| !self.is_to_be_extrapolated(fallback))
            else {
                continue;
            };
            let bound = if fallback.is_own { Ok(fallback.bound) } else { self.leasts.bound(&plan) };
            let may = bound.is_ok_and(|bound| {
                bound.seconds <= limit && (self.looks_at_all() || bound.kept.max(bound.memory) <= most)
            });
            plans.extend((may && !self.ahead.contains_key(&plan.name)).then_some(plan));
        }
        plans
    }

    /// Places of the open ladders, in the order of their turns: those that may be among the wanted plans.
    pub(super) fn in_order(&self) -> Vec<usize> {
        let limit = self.limit();
        let mut open: Vec<usize> = (0..self.open.len()).collect();
        open.retain(|at| self.open[*at].bound.seconds <= limit);
        open.sort_by(|a, b| before(&self.open[*a], &self.open[*b]));
        open
    }
}
