//! Experts whose parts exchange rows: each part has some tokens and some experts, and what a token gives to an expert
//! of another part goes there, and what that makes of it comes back.

use diag::{Error, Result};
use graph::{Graph, OpId};
use rules::{Analysis, families};

use crate::{On, OpPlan, Split, choices, title};

/// Of the loop of the tokens and that of the experts.
pub(crate) fn on_experts(tokens: usize, experts: usize) -> On {
    On::Exchange { tokens, experts }
}

/// The same split, of experts as well.
pub(crate) fn along(on: On, graph: &Graph, analysis: &Analysis, op: OpId) -> Result<On> {
    match (on, experts(graph, analysis, op)) {
        (On::Loop(tokens), Some(experts)) => Ok(on_experts(tokens, experts)),
        _ => Err(refused(graph, analysis, op, "it has no experts to send tokens to")),
    }
}

/// The loop of an operator's experts, for which rows may be exchanged.
pub(crate) fn experts(graph: &Graph, analysis: &Analysis, op: OpId) -> Option<usize> {
    let (_, dim) = families::exchanged(&graph.op(op).target)?;
    analysis.op(op).find(dim)
}

/// Whether a loop is of tokens, which give rows to experts.
pub(crate) fn is_of_tokens(graph: &Graph, analysis: &Analysis, op: OpId, index: usize) -> bool {
    let dim = families::exchanged(&graph.op(op).target).map(|(tokens, _)| tokens);
    let rule = analysis.rules[op.index()].as_ref();
    rule.is_some_and(|rule| Some(&rule.dim(analysis.op(op).loops[index].dim).name[..]) == dim)
}

/// Besides, tokens may be divided, and nothing else: before they are for the exchange, since each part of them has
/// ranks that exchange among themselves.
pub(crate) fn legal(graph: &Graph, analysis: &Analysis, op: OpId, splits: &[Split]) -> Result<()> {
    let refuse = |why| Err(refused(graph, analysis, op, why));
    let mut exchanged = None;
    for split in splits {
        match split.on {
            On::Copies => {}
            On::Loop(index) if exchanged == Some(index) => {
                return refuse("the dims of the exchanged tokens are split further");
            }
            On::Loop(index) if is_of_tokens(graph, analysis, op, index) => {}
            On::Exchange { .. } if exchanged.is_some() => return refuse("its parts exchange rows already"),
            On::Exchange { tokens, experts }
                if is_of_tokens(graph, analysis, op, tokens)
                    && self::experts(graph, analysis, op) == Some(experts) =>
            {
                exchanged = Some(tokens);
            }
            On::Exchange { .. } => return refuse("rows can only be exchanged along the dim of the experts"),
            On::Loop(_) | On::Value => return refuse("it is also split along dims other than tokens"),
        }
    }
    Ok(())
}

/// Whether parts exchange rows.
pub fn exchanges(splits: &[Split]) -> bool {
    splits.iter().any(|split| matches!(split.on, On::Exchange { .. }))
}

/// Each part has a device of its own: it sends its rows to the others.
pub(crate) fn on_devices(graph: &Graph, analysis: &Analysis, op: OpId, plan: &OpPlan) -> Result<()> {
    if !exchanges(&plan.splits) {
        return Ok(());
    }
    let mut devices = plan.devices.to_vec();
    devices.sort_unstable();
    if devices.windows(2).any(|two| two[0] == two[1]) {
        return Err(refused(graph, analysis, op, "several of its parts are on one device"));
    }
    Ok(())
}

fn refused(graph: &Graph, analysis: &Analysis, op: OpId, why: &str) -> Error {
    Error::new("SW0304", format!("parts of {} cannot exchange rows", title(graph, op)))
        .why(why)
        .fix(choices(analysis, op))
}
