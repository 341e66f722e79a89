//! Tokens in slices: a plan for the model in slices.
//!
//! ```text
//! tokens 4                             # four slices of the sequence, as even as can be
//! ```

use std::borrow::Cow;

use diag::{Error, Result};
use graph::{Graph, OpId, TensorId};
use rules::slicing::{self, Piece, slice};
use rules::{Analysis, Sliced, Slices, rewrite};

use crate::counterparts::Counterparts;
use crate::exchange;
use crate::select::clip;
use crate::{MOST, On, OpPlan, Plan, Split, carried, legal, recompute, rewritings};

/// The slices that a plan is for; none if the sequence is whole.
fn slices(graph: &Graph, analysis: &Analysis, plan: &Plan) -> Result<Option<Slices>> {
    if plan.tokens < 2 { Ok(None) } else { slicing::even(graph, analysis, plan.tokens).map(Some) }
}

/// Refuses slices that a model does not have.
pub(crate) fn validate(graph: &Graph, analysis: &Analysis, plan: &Plan) -> Result<()> {
    match slices(graph, analysis, plan)? {
        Some(slices) => slice(graph, &slices).map(drop),
        None => Ok(()),
    }
}

pub(crate) fn read(word: &str) -> Result<u32> {
    let count = word.parse().ok().filter(|count| (1..=MOST).contains(count));
    count.ok_or_else(|| {
        Error::new("SW0301", format!("`{}` is not a number of slices", clip(word)))
            .fix(format!("write a number from 1 to {MOST}, such as `tokens 4`"))
    })
}

/// The model of a plan in slices.
pub struct InSlices<'g> {
    pub slices: Slices,
    pub sliced: Sliced<'g>,
    pub analysis: Analysis,
    /// The plan for it.
    pub plan: Plan,
}

/// Cuts the model as a plan says; none where its sequence is whole.
pub fn in_slices<'g>(graph: &'g Graph, analysis: &Analysis, plan: &Plan) -> Result<Option<InSlices<'g>>> {
    let Some(slices) = slices(graph, analysis, plan)? else { return Ok(None) };
    let sliced = slice(graph, &slices)?;
    let fresh = Analysis::new(&sliced.graph);
    let plan = match &sliced.whole.graph {
        Cow::Borrowed(_) => for_slices(plan, analysis, &sliced, &fresh),
        Cow::Owned(whole) => {
            let whole = Analysis::new(whole);
            for_slices(&carried(plan, analysis, &sliced.whole, &whole), &whole, &sliced, &fresh)
        }
    };
    Ok(Some(InSlices { slices, sliced, analysis: fresh, plan }))
}

/// What the proofs of its programs rest on, on lines.
pub fn rests_on(graph: &Graph, analysis: &Analysis, plan: &Plan) -> Result<Vec<String>> {
    match in_slices(graph, analysis, plan)? {
        None => slicing::rests_on(graph, None, &rewritings(graph, analysis, plan)),
        Some(it) => {
            let rewritings = rewritings(&it.sliced.graph, &it.analysis, &it.plan);
            slicing::rests_on(graph, Some(&it.slices), &rewritings)
        }
    }
}

/// The graph that its programs speak of.
pub fn rewritten(graph: &Graph, analysis: &Analysis, plan: &Plan) -> Result<Graph> {
    let rewritten = match in_slices(graph, analysis, plan)? {
        None => rewrite(graph, &rewritings(graph, analysis, plan))?.graph.into_owned(),
        Some(it) => {
            let rewritings = rewritings(&it.sliced.graph, &it.analysis, &it.plan);
            rewrite(&it.sliced.graph, &rewritings)?.graph.into_owned()
        }
    };
    Ok(rewritten)
}

/// The same decisions for the graph in slices: what an operator is made for is divided as that was, a block is a slice
/// of one, and what is said of several operators is said of those of each slice.
fn for_slices(plan: &Plan, analysis: &Analysis, sliced: &Sliced<'_>, fresh: &Analysis) -> Plan {
    let ops = sliced.graph.op_ids().map(|op| piece(plan, analysis, sliced, fresh, op)).collect();
    let slices = sliced.pieces.iter().map(|piece| piece.slice).max().map_or(0, |last| last + 1);
    let of_slice = |slice| sliced.pieces.iter().map(move |piece| (piece.slice == slice).then_some(piece.op));
    let slices: Vec<Counterparts> =
        (0..slices).map(|slice| Counterparts::new(plan.ops.len(), of_slice(slice))).collect();
    let spans = |spans: &[Vec<OpId>]| {
        recompute::sorted(slices.iter().flat_map(|pieces| pieces.spans(spans)).collect())
    };
    let (recompute, offload) = (spans(&plan.recompute), spans(&plan.offload));
    let of_slices = |pair| slices.iter().flat_map(move |pieces| pieces.order(std::slice::from_ref(pair)));
    let order = plan.order.iter().flat_map(of_slices).collect();
    let blocks = blocks(plan, &sliced.pieces);
    Plan { ops, order, recompute, offload, blocks, tokens: 1, ..plan.clone() }
}

fn piece(plan: &Plan, analysis: &Analysis, sliced: &Sliced<'_>, fresh: &Analysis, op: OpId) -> OpPlan {
    let from = sliced.pieces[op.index()].op;
    let old = plan.op(from);
    let mut splits: Vec<Split> = vec![];
    for split in &old.splits {
        let on = match split.on {
            On::Loop(index) => {
                same_loop(analysis, from, index, sliced, fresh, op).map_or(On::Copies, On::Loop)
            }
            On::Exchange { tokens, experts } => {
                let same = |index| same_loop(analysis, from, index, sliced, fresh, op);
                same(tokens)
                    .zip(same(experts))
                    .map_or(On::Copies, |(tokens, experts)| exchange::on_experts(tokens, experts))
            }
            on => on,
        };
        splits.push(Split { on, parts: split.parts });
        if legal(&sliced.graph, fresh, op, &splits).is_err() {
            splits.pop();
            splits.push(Split { on: On::Copies, parts: split.parts });
        }
    }
    OpPlan { splits, devices: old.devices.clone() }
}

/// The loop along the same factor of a tensor that both have, as it is or a slice of it.
fn same_loop(
    analysis: &Analysis,
    from: OpId,
    index: usize,
    sliced: &Sliced<'_>,
    fresh: &Analysis,
    op: OpId,
) -> Option<usize> {
    let (old, new) = (operands(&sliced.whole.graph, analysis, from), operands(&sliced.graph, fresh, op));
    old.iter()
        .filter_map(|(id, carried)| Some((id, carried.iter().position(|it| *it == Some(index))?)))
        .find_map(|(id, factor)| {
            let (tensor, carried) =
                new.iter().find(|(tensor, _)| sliced.likes[tensor.index()] == Some(*id))?;
            let factor = same_factor(&analysis.factors[id.index()], &fresh.factors[tensor.index()], factor)?;
            carried[factor]
        })
}

type TokenOperand<'a> = (TensorId, &'a Vec<Option<usize>>);

fn operands<'a>(graph: &Graph, analysis: &'a Analysis, op: OpId) -> Vec<TokenOperand<'a>> {
    let (it, dims) = (graph.op(op), analysis.op(op));
    let read = it.inputs().into_iter().zip(&dims.inputs);
    let made = it.outputs.iter().zip(&dims.outputs).filter_map(|(id, carried)| Some(((*id)?, carried)));
    read.chain(made).collect()
}

/// The same factor of the same dim. A slice of one token has none for it: of rows and tokens the rows are left.
fn same_factor(old: &[Vec<i64>], new: &[Vec<i64>], factor: usize) -> Option<usize> {
    let (mut left, mut before) = (factor, 0);
    for (old, new) in old.iter().zip(new) {
        if left < old.len() {
            let only = || new.iter().position(|size| *size == old[left]);
            return if old.len() == new.len() { Some(left) } else { only() }.map(|at| before + at);
        }
        left -= old.len();
        before += new.len();
    }
    None
}

/// Slices of one block follow each other, then those of the next.
fn blocks(plan: &Plan, pieces: &[Piece]) -> Vec<u32> {
    let keys: Vec<(u32, usize)> = pieces.iter().map(|piece| (plan.block(piece.op), piece.slice)).collect();
    let mut all = keys.clone();
    all.sort_unstable();
    all.dedup();
    let number =
        |it: &(u32, usize)| all.binary_search(it).map_or(0, |at| u32::try_from(at).unwrap_or(u32::MAX));
    keys.iter().map(number).collect()
}
