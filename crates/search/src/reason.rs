//! Why a plan that was found is as it is.

use std::sync::Arc;

use diag::Result;
use graph::OpId;
use plan::Plan;

use crate::inside::{self, Claim, Explanation};
use crate::stages::{self, Claimed};
use crate::{Question, Row};

/// What a plan is least in that was found, by its name: also of one that is this one changed.
#[derive(Clone, Debug)]
pub struct Reason {
    pub plan: String,
    least: Least,
}

#[derive(Clone, Debug)]
enum Least {
    Block(Claim),
    /// Each by itself.
    Blocks(Arc<[Claimed]>),
}

impl Reason {
    pub(crate) fn of_block(plan: &Plan, claim: Claim) -> Self {
        Self { plan: plan.name.clone(), least: Least::Block(claim) }
    }

    pub(crate) fn of_blocks(plan: &Plan, blocks: Arc<[Claimed]>) -> Self {
        Self { plan: plan.name.clone(), least: Least::Blocks(blocks) }
    }
}

/// Why a plan divides an operator as it does.
pub struct Why {
    pub explanation: Explanation,
    /// Of several blocks the number of the operator's, how many there are, and its devices, from one to before another.
    pub block: Option<(usize, usize, (u32, u32))>,
}

/// Of a plan that was found, and at most so many ways; none where nothing is known of them.
pub fn why(question: &Question<'_>, row: &Row, op: OpId, most: usize) -> Result<Option<Why>> {
    let Some(reason) = &row.reason else { return Ok(None) };
    match &reason.least {
        Least::Block(claim) => {
            let found = inside::explain(question, claim, op, most)?;
            Ok(found.map(|explanation| Why { explanation, block: None }))
        }
        Least::Blocks(blocks) => {
            let number = row.plan.block(op) as usize;
            let found = stages::explain(question, &blocks[number], op, most)?;
            let block = Some((number, blocks.len(), blocks[number].run.devices));
            Ok(found.map(|explanation| Why { explanation, block }))
        }
    }
}
