//! Why a plan that was found is as it is.

use std::sync::Arc;

use diag::Result;
use graph::OpId;
use plan::Plan;

use crate::pipeline::{self, Claimed};
use crate::spmd::{self, Claim, Explanation};
use crate::{Evaluated, Question};

/// What a plan is least in that was found, by its name: also of one that is this one changed.
#[derive(Clone, Debug)]
pub struct Reason {
    pub plan: String,
    least: Bound,
}

#[derive(Clone, Debug)]
enum Bound {
    Block(Claim),
    /// Each by itself.
    Blocks(Arc<[Claimed]>),
}

impl Reason {
    pub(crate) fn of_block(plan: &Plan, claim: Claim) -> Self {
        Self { plan: plan.name.clone(), least: Bound::Block(claim) }
    }

    pub(crate) fn of_blocks(plan: &Plan, blocks: Arc<[Claimed]>) -> Self {
        Self { plan: plan.name.clone(), least: Bound::Blocks(blocks) }
    }
}

/// Why a plan divides an operator as it does.
pub struct Why {
    pub explanation: Explanation,
    /// Of several blocks the number of the operator's, how many there are, and its devices, from one to before another.
    pub block: Option<(usize, usize, (u32, u32))>,
}

/// Of a plan that was found, and at most so many ways; none where nothing is known of them.
pub fn why(question: &Question<'_>, candidate: &Evaluated, op: OpId, most: usize) -> Result<Option<Why>> {
    let Some(reason) = &candidate.reason else { return Ok(None) };
    match &reason.least {
        Bound::Block(claim) => {
            let explained = spmd::explain(question, claim, op, most)?;
            Ok(explained.map(|explanation| Why { explanation, block: None }))
        }
        Bound::Blocks(blocks) => {
            let number = candidate.plan.block(op) as usize;
            let explained = pipeline::explain(question, &blocks[number], op, most)?;
            let block = Some((number, blocks.len(), blocks[number].run.devices));
            Ok(explained.map(|explanation| Why { explanation, block }))
        }
    }
}
