//! Which operators are in which spans, and what of that backward needs.

use std::collections::BTreeSet;
use std::rc::Rc;

use graph::{Graph, OpId, Source};
use rules::Analysis;
use rules::families::{self, View};

use crate::uses::Context;

/// The spans that something is in, outermost first.
pub type Inside = Rc<[usize]>;

/// For each operator the spans that it is in. What leads to no gradient is in none, and neither is what
/// reads a buffer or parameter that forward updates: in backward that has its new value.
pub fn spans(cx: &Context<'_>) -> Vec<Inside> {
    let none: Inside = Rc::from([]);
    let mut inside = vec![Rc::clone(&none); cx.graph.ops.len()];
    if cx.plan.recompute.is_empty() {
        return inside;
    }
    // What of a span is in one block is computed again with it.
    for (number, (span, block)) in cx.plan.recompute.iter().flat_map(|span| in_blocks(cx, span)).enumerate() {
        let ops = || span.iter().filter(|op| cx.plan.block(**op) == block);
        let Some(first) = ops().next() else { continue };
        let here: Inside = inside[first.index()].iter().copied().chain([number]).collect();
        ops().for_each(|op| inside[op.index()] = Rc::clone(&here));
    }
    let teaches = plan::teaching(cx.graph, cx.needs_grad);
    for op in cx.graph.op_ids() {
        if !teaches[op.index()] || reads_updated(cx, op) {
            inside[op.index()] = Rc::clone(&none);
        }
    }
    inside
}

fn in_blocks<'s>(cx: &Context<'_>, span: &'s [OpId]) -> impl Iterator<Item = (&'s [OpId], u32)> {
    let blocks: BTreeSet<u32> = span.iter().map(|op| cx.plan.block(*op)).collect();
    blocks.into_iter().map(move |block| (span, block))
}

fn reads_updated(cx: &Context<'_>, op: OpId) -> bool {
    cx.graph.op(op).inputs().into_iter().any(|tensor| cx.graph.new_value(tensor).is_some())
}

/// Whether backward needs something of an operator that is there only for it.
pub fn keeps(graph: &Graph, analysis: &Analysis, op: OpId, needs_grad: &[bool]) -> bool {
    let (view, rule) = (View::new(graph, op), analysis.rules[op.index()].as_ref());
    let part = analysis.part(graph, op, &analysis.op(op).whole(), true, 0);
    let executed = families::executed(view, rule, &part);
    let kept = families::cost_of(view, rule, &part, &executed, needs_grad).kept;
    let inputs = view.op.inputs();
    let made = |input: &usize| matches!(graph.tensor(inputs[*input]).source, Source::Op { .. });
    kept.more > 0 || !kept.outputs.is_empty() || kept.inputs.iter().any(made)
}

/// Whether some operators are dear and stand in no span, and read from one.
pub fn reads_recomputed(cx: &Context<'_>, spans: &[Inside], ops: &[OpId]) -> bool {
    let inside = |op: OpId| !spans[op.index()].is_empty();
    let dear = |op: &OpId| !inside(*op) && families::is_dear(&cx.graph.op(*op).target);
    let reads = |op: &OpId| {
        let inputs = cx.graph.op(*op).inputs();
        let mut makers = inputs.into_iter().filter_map(|tensor| cx.graph.producer(tensor));
        makers.any(|(maker, _)| inside(maker) && cx.plan.block(maker) == cx.plan.block(*op))
    };
    ops.iter().all(dear) && ops.iter().any(reads)
}
