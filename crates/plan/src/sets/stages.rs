//! `stages`: the model is cut into blocks that follow each other, each on devices of its own, which work on several
//! micro-batches at a time.
//!
//! Cuts lie where the least has to be sent: at positions in the order of operators at which fewer bytes are alive
//! than anywhere near. Among those the stages are made as even in work as they can be.

use graph::{Graph, OpId, TensorId};
use rules::Analysis;
use rules::families::{self, View};

use super::{Along, Model, Set};

pub(super) const SET: Set = Set {
    name: "stages",
    doc: "a pipeline: each stage of the model runs on devices of its own, one micro-batch after another",
    along: Some(Along { choose, why, in_turn: false, must_find: false, stages: Some(cut) }),
    besides: &[],
};

/// How far around a cut nothing cheaper may be.
const NEAR: usize = 10;

fn choose(model: &Model<'_>, _: u32) -> Vec<Option<usize>> {
    vec![None; model.graph.ops.len()]
}

fn why(_: &Model<'_>, _: OpId, _: u32) -> String {
    "it runs on one stage".into()
}

/// The stage of each operator.
fn cut(model: &Model<'_>, count: u32) -> Vec<u32> {
    let (graph, analysis) = (model.graph, model.analysis);
    let needs_grad = graph.needs_grad();
    let work: Vec<u64> = graph.op_ids().map(|op| work(graph, analysis, op, &needs_grad)).collect();
    let mut places = valleys(&alive(graph));
    if places.len() + 1 < count as usize {
        places = (1..work.len()).collect();
    }
    let cuts = even(&work, &places, count as usize);
    let stage = |op: usize| cuts.iter().filter(|cut| **cut <= op).count();
    (0..work.len()).map(|op| u32::try_from(stage(op)).unwrap_or(u32::MAX)).collect()
}

fn work(graph: &Graph, analysis: &Analysis, op: OpId, needs_grad: &[bool]) -> u64 {
    let (view, rule) = (View::new(graph, op), analysis.rules[op.index()].as_ref());
    let part = analysis.part(graph, op, &analysis.op(op).whole(), true, 0);
    let executed = families::executed(view, rule, &part);
    let cost = families::cost_of(view, rule, &part, &executed, needs_grad);
    cost.flops + cost.forward.read + cost.forward.written
}

/// For each position in the order of operators, the bytes that earlier ones made and later ones read.
fn alive(graph: &Graph) -> Vec<u64> {
    let mut last = vec![0; graph.tensors.len()];
    for op in graph.op_ids() {
        graph.op(op).inputs().into_iter().for_each(|tensor| last[tensor.index()] = op.index());
    }
    let size = |tensor: &TensorId| {
        let it = graph.tensor(*tensor);
        it.shape.iter().map(|size| u64::try_from(*size).unwrap_or(0)).product::<u64>()
            * it.dtype.bytes() as u64
    };
    let mut alive = vec![0; graph.ops.len() + 1];
    for op in graph.op_ids() {
        for tensor in graph.op(op).outputs.iter().flatten() {
            (op.index() + 1..=last[tensor.index()]).for_each(|at| alive[at] += size(tensor));
        }
    }
    alive
}

fn valleys(alive: &[u64]) -> Vec<usize> {
    let end = alive.len().saturating_sub(1);
    let low = |at: &usize| {
        let near = at.saturating_sub(NEAR).max(1)..(at + NEAR + 1).min(end);
        near.into_iter().all(|other| alive[*at] <= alive[other])
    };
    (1..end).filter(low).collect()
}

/// The places, so many less one, that make the stage with the most work as small as can be, and the first of such.
fn even(work: &[u64], places: &[usize], count: usize) -> Vec<usize> {
    let mut sum = vec![0];
    work.iter().for_each(|work| sum.push(sum[sum.len() - 1] + work));
    let ends: Vec<usize> = std::iter::once(0).chain(places.iter().copied()).chain([work.len()]).collect();
    let between = |a: usize, b: usize| sum[ends[b]] - sum[ends[a]];
    // For each end, the least that the largest of so many stages before it can be, and where the last begins.
    let mut best: Vec<Vec<(u64, usize)>> = vec![(0..ends.len()).map(|end| (between(0, end), 0)).collect()];
    for stage in 1..count {
        let row = (0..ends.len()).map(|end| {
            let begins = stage.min(end)..end.max(stage.min(end) + 1);
            let least =
                begins.map(|begin| (best[stage - 1][begin].0.max(between(begin, end.max(begin))), begin));
            least.min().unwrap_or((u64::MAX, 0))
        });
        let row = row.collect();
        best.push(row);
    }
    let (mut cuts, mut end) = (vec![], ends.len() - 1);
    for stage in (1..count).rev() {
        end = best[stage][end].1;
        cuts.push(ends[end]);
    }
    cuts.reverse();
    cuts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_are_as_even_as_places_allow() {
        assert_eq!(even(&[1, 1, 1, 1, 1, 1, 1, 1], &[2, 4, 6], 4), [2, 4, 6]);
        assert_eq!(even(&[8, 1, 1, 1, 1, 4], &[1, 2, 3, 4, 5], 2), [1]);
        assert_eq!(even(&[1, 1, 1, 5, 1], &[1, 2, 3, 4], 3), [1, 3]);
    }

    #[test]
    fn cuts_lie_where_the_least_is_alive() {
        let alive = [0, 9, 9, 3, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 2, 9, 9, 0];
        assert_eq!(valleys(&alive), [3, 15]);
    }
}
