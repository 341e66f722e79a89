//! Other ways to shard an operator, each with the quickest plan that has it, among the plans that were compared.

use graph::OpId;
use plan::dim_names::DimNames;
use serde_json::{Value, json};

use super::Subject;
use crate::Decided;

/// So many ways are told of an operator.
const WAYS: usize = 8;

/// Of each operator of the model its ways: in words, and the number of the plan. The quickest plan's first.
pub(super) struct Alternatives {
    by_op: Vec<Vec<(String, usize)>>,
}

impl Alternatives {
    pub(super) fn new(subject: &Subject<'_>, names: &DimNames) -> Self {
        let mut by_op = vec![vec![]; subject.graph.ops.len()];
        let candidates = subject.about.compared.iter().flat_map(|it| &it.candidates);
        for (number, candidate) in candidates.enumerate() {
            // A batch that is cut otherwise may give another graph.
            let Some(plan) = candidate.decisions.as_ref().filter(|it| it.ops.len() == by_op.len()) else {
                continue;
            };
            for op in subject.graph.op_ids() {
                let ways: &mut Vec<(String, usize)> = &mut by_op[op.index()];
                if ways.len() < WAYS {
                    let split = Decided::new(subject.analysis, names, plan, op).in_words();
                    if ways.iter().all(|(known, _)| *known != split) {
                        ways.push((split, number));
                    }
                }
            }
        }
        Self { by_op }
    }

    pub(super) fn to_json(&self, op: OpId) -> Value {
        json!(self.by_op[op.index()])
    }
}
