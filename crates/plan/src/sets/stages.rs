//! `stages`: the model is cut into blocks that follow each other, each on devices of its own, which work on several
//! micro-batches at a time.
//!
//! Cuts lie at positions in the order of operators at which fewer bytes are alive than anywhere near. Of those the ones
//! are taken where the least has to be sent, as long as no stage has much more work than it must.

use graph::{Graph, OpId, TensorId};
use rules::Analysis;
use rules::families::{self, View};

use super::{Along, Model, Set};

pub(super) const SET: Set = Set {
    name: "stages",
    doc: "a pipeline: each stage of the model runs on devices of its own, one micro-batch after another",
    along: Some(Along { must_find: false, stages: Some(cut), ..Along::of(choose, why) }),
    aside: None,
    rounds: None,
    besides: &[],
};

/// How far around a cut nothing cheaper may be.
const NEAR: usize = 3;
/// By how many percent the largest stage may be larger than it must, if less is sent then.
const UNEVEN: u64 = 10;

fn choose(model: &Model<'_>, _: u32) -> Vec<Option<usize>> {
    vec![None; model.graph.ops.len()]
}

fn why(_: &Model<'_>, _: OpId, _: u32) -> String {
    "it runs on one stage".into()
}

/// The stage of each operator.
pub(super) fn cut(model: &Model<'_>, aside: &[bool], count: u32) -> Vec<u32> {
    let (graph, analysis) = (model.graph, model.analysis);
    let needs_grad = graph.needs_grad();
    let of_stage = |op: OpId| if aside[op.index()] { 0 } else { work(graph, analysis, op, &needs_grad) };
    let work: Vec<u64> = graph.op_ids().map(of_stage).collect();
    let alive = alive(graph);
    let mut places = valleys(&alive);
    if places.len() + 1 < count as usize {
        places = (1..work.len()).collect();
    }
    let cuts = cheapest(&work, &alive, &places, count as usize);
    let stage = |op: usize| cuts.iter().filter(|cut| **cut <= op).count();
    (0..work.len()).map(|op| u32::try_from(stage(op)).unwrap_or(u32::MAX)).collect()
}

/// The positions in the order of operators at which fewer bytes are alive than anywhere near.
pub fn cuts(graph: &Graph) -> Vec<usize> {
    valleys(&alive(graph))
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

/// Where so many stages begin, but for the first.
fn cheapest(work: &[u64], alive: &[u64], places: &[usize], count: usize) -> Vec<usize> {
    let mut sum = vec![0];
    work.iter().for_each(|work| sum.push(sum[sum.len() - 1] + work));
    let ends: Vec<usize> = std::iter::once(0).chain(places.iter().copied()).chain([work.len()]).collect();
    let between = |a: usize, b: usize| sum[ends[b]] - sum[ends[a]];
    let (largest, _) = least(ends.len(), count, |before, a, b| Some(before.max(between(a, b))));
    let most = largest + largest * UNEVEN / 100;
    let sent = |before: u64, a: usize, b: usize| (between(a, b) <= most).then_some(before + alive[ends[a]]);
    let (_, cuts) = least(ends.len(), count, sent);
    cuts.into_iter().map(|at| ends[at]).collect()
}

/// The cheapest way through so many ends in so many stages, each of which has something in it: its cost, and where stages
/// begin. `cost` goes on from that of the stages before; where it is none, a stage cannot be.
fn least(ends: usize, count: usize, cost: impl Fn(u64, usize, usize) -> Option<u64>) -> (u64, Vec<usize>) {
    let mut best: Vec<Vec<Option<(u64, usize)>>> =
        vec![(0..ends).map(|end| cost(0, 0, end).filter(|_| end > 0).map(|cost| (cost, 0))).collect()];
    for stage in 1..count {
        let row = |end: usize| {
            let all = (1..end).filter_map(|begin| {
                let (before, _) = best[stage - 1][begin]?;
                Some((cost(before, begin, end)?, begin))
            });
            all.min()
        };
        let row = (0..ends).map(row).collect();
        best.push(row);
    }
    let (mut cuts, mut end) = (vec![], ends - 1);
    let found = best[count - 1][end].map_or(0, |(cost, _)| cost);
    for row in best.iter().skip(1).rev() {
        end = row[end].map_or(end, |(_, begin)| begin);
        cuts.push(end);
    }
    cuts.reverse();
    (found, cuts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn even(work: &[u64], places: &[usize], count: usize) -> Vec<usize> {
        cheapest(work, &vec![1; work.len() + 1], places, count)
    }

    #[test]
    fn stages_are_as_even_as_places_allow() {
        assert_eq!(even(&[1, 1, 1, 1, 1, 1, 1, 1], &[2, 4, 6], 4), [2, 4, 6]);
        assert_eq!(even(&[8, 1, 1, 1, 1, 4], &[1, 2, 3, 4, 5], 2), [1]);
        assert_eq!(even(&[1, 1, 1, 5, 1], &[1, 2, 3, 4], 3).len(), 2);
    }

    #[test]
    fn of_cuts_that_are_almost_as_even_the_one_is_taken_that_sends_less() {
        let (work, alive) = ([10, 10, 1, 10, 10], [0, 9, 9, 5, 9, 0]);
        assert_eq!(cheapest(&work, &alive, &[1, 2, 3, 4], 2), [3]);
        assert_eq!(cheapest(&work, &[0, 1, 9, 9, 9, 0], &[1, 2, 3, 4], 2), [2]);
    }

    #[test]
    fn cuts_lie_where_the_least_is_alive() {
        let alive = [0, 9, 9, 3, 9, 9, 9, 9, 9, 2, 9, 9, 0];
        assert_eq!(valleys(&alive), [3, 9]);
    }
}
