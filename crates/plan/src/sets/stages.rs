//! `stages`: the model is cut into blocks that follow each other, each on devices of its own, which work on several
//! micro-batches at a time.
//!
//! Cuts lie at positions in the order of operators at which fewer bytes are alive than anywhere near. Of those the ones
//! are taken where the least has to be sent, as long as no stage has much more work than it must. Whoever reads what is
//! made of constants alone computes it: a stage of nothing else would have nothing to do, and there is none.

use graph::{Graph, OpId, TensorId};
use rules::families::{self, View};
use rules::{Analysis, of_constants};

use super::{Along, Auto, Model, Set};

pub(super) const SET: Set = Set {
    along: Some(Along { must_find: false, stages: Some(cut), ..Along::new(choose, why) }),
    aliases: &["pp"],
    auto: Auto::Stages,
    examples: &["stages:2"],
    ..Set::new(
        "stages",
        "a pipeline: each stage of the model runs on devices of its own, one micro-batch after another",
    )
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
    let CutCosts { of_each, alive, constant } =
        model.work.get_or_init(|| CutCosts::new(model.graph, model.analysis));
    let work: Vec<u64> =
        of_each.iter().zip(aside).map(|(work, aside)| if *aside { 0 } else { *work }).collect();
    let is_enough = |places: &Vec<usize>| places.len() + 1 >= count as usize;
    let all = || (1..work.len()).collect();
    let places = Some(valleys(alive)).filter(is_enough).unwrap_or_else(all);
    let mut cuts = cheapest(&work, alive, &places, count as usize);
    if has_idle(&cuts, constant) {
        let places = [valleys_apart(alive, constant), apart(constant)].into_iter().find(is_enough);
        cuts = places.map_or(cuts, |places| cheapest(&work, alive, &places, count as usize));
    }
    let stage = |op: usize| cuts.iter().filter(|cut| **cut <= op).count();
    (0..work.len()).map(|op| u32::try_from(stage(op)).unwrap_or(u32::MAX)).collect()
}

/// The positions in the order of operators at which fewer bytes are alive than anywhere near, with more than constants
/// between them.
pub fn cuts(graph: &Graph, analysis: &Analysis) -> Vec<usize> {
    valleys_apart(&alive(graph), &of_constants(graph, analysis))
}

/// What a cut depends on.
pub(super) struct CutCosts {
    /// For each operator what it computes and moves.
    of_each: Vec<u64>,
    /// The bytes that are alive before it.
    alive: Vec<u64>,
    /// Whether it depends on constants alone.
    constant: Vec<bool>,
}

impl CutCosts {
    fn new(graph: &Graph, analysis: &Analysis) -> Self {
        let needs_grad = graph.needs_grad();
        let of_each = graph.op_ids().map(|op| work(graph, analysis, op, &needs_grad)).collect();
        Self { of_each, alive: alive(graph), constant: of_constants(graph, analysis) }
    }
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
    let (mut begin, mut end) = (vec![0; graph.ops.len() + 1], vec![0; graph.ops.len() + 1]);
    for op in graph.op_ids() {
        for tensor in graph.op(op).outputs.iter().flatten() {
            if last[tensor.index()] > op.index() {
                begin[op.index() + 1] += size(tensor);
                end[last[tensor.index()]] += size(tensor);
            }
        }
    }
    let mut now = 0;
    let step = |(begin, end): (&u64, &u64)| {
        now += begin;
        let here = now;
        now -= end;
        here
    };
    begin.iter().zip(&end).map(step).collect()
}

fn valleys(alive: &[u64]) -> Vec<usize> {
    let end = alive.len().saturating_sub(1);
    let low = |at: &usize| {
        let near = at.saturating_sub(NEAR).max(1)..(at + NEAR + 1).min(end);
        near.into_iter().all(|other| alive[*at] <= alive[other])
    };
    (1..end).filter(low).collect()
}

/// Whether there is nothing but constants in a stage.
fn has_idle(cuts: &[usize], constant: &[bool]) -> bool {
    let ends = [&[0], cuts, &[constant.len()]].concat();
    ends.windows(2).any(|end| !constant[end[0]..end[1]].contains(&false))
}

/// The positions between which there is more than constants: these go with what follows them.
fn apart(constant: &[bool]) -> Vec<usize> {
    let is_apart = |at: &usize| !constant[at - 1] && constant[*at..].contains(&false);
    (1..constant.len()).filter(is_apart).collect()
}

/// Those of them at which less is alive than at others near.
fn valleys_apart(alive: &[u64], constant: &[bool]) -> Vec<usize> {
    let mut there = vec![u64::MAX; alive.len()];
    apart(constant).into_iter().for_each(|at| there[at] = alive[at]);
    valleys(&there).into_iter().filter(|at| there[*at] < u64::MAX).collect()
}

/// Where so many stages begin, but for the first.
fn cheapest(work: &[u64], alive: &[u64], places: &[usize], count: usize) -> Vec<usize> {
    let mut sum = vec![0];
    work.iter().for_each(|work| sum.push(sum[sum.len() - 1] + work));
    // No stage is what is done elsewhere alone.
    let is_between = |at: &usize| 0 < sum[*at] && sum[*at] < sum[work.len()];
    let between: Vec<usize> = places.iter().copied().filter(is_between).collect();
    let places = if between.len() + 1 >= count { &between } else { places };
    let ends: Vec<usize> = std::iter::once(0).chain(places.iter().copied()).chain([work.len()]).collect();
    let done: Vec<u64> = ends.iter().map(|end| sum[*end]).collect();
    let largest = smallest_largest(&done, count);
    let sent: Vec<u64> = ends.iter().map(|end| alive[*end]).collect();
    let cuts = least(&done, &sent, count, largest + largest * UNEVEN / 100);
    cuts.into_iter().map(|at| ends[at]).collect()
}

/// The work of the largest of so many stages, where it is smallest; of each end, the work until there is given.
fn smallest_largest(done: &[u64], count: usize) -> u64 {
    let fits = |most: u64| {
        let mut begin = 0;
        (0..count).any(|_| {
            begin = done.partition_point(|end| *end <= done[begin] + most) - 1;
            begin + 1 == done.len()
        })
    };
    let (mut too_small, mut enough) = (0, done[done.len() - 1]);
    if fits(0) {
        return 0;
    }
    while enough - too_small > 1 {
        let middle = too_small + (enough - too_small) / 2;
        if fits(middle) { enough = middle } else { too_small = middle }
    }
    enough
}

/// Where so many stages begin, each with something in it and no more than so much work, for which the least is sent; of
/// these the most even ones: those with the smallest sum of squares.
fn least(done: &[u64], sent: &[u64], count: usize, most: u64) -> Vec<usize> {
    let square = |begin: usize, end: usize| u128::from(done[end] - done[begin]).pow(2);
    let first = |end: usize| (end > 0 && done[end] <= most).then(|| ((0, square(0, end)), 0));
    let mut best = vec![(0..done.len()).map(first).collect::<Vec<_>>()];
    for stage in 1..count {
        let row = |end: usize| {
            let from = done.partition_point(|work| work + most < done[end]).max(1);
            let before = |begin: usize| {
                let ((bytes, squares), _) = best[stage - 1][begin]?;
                Some(((bytes + sent[begin], squares + square(begin, end)), begin))
            };
            (from..end).filter_map(before).min()
        };
        let row = (0..done.len()).map(row).collect();
        best.push(row);
    }
    let (mut cuts, mut end) = (vec![], done.len() - 1);
    for row in best.iter().skip(1).rev() {
        end = row[end].map_or(end, |(_, begin)| begin);
        cuts.push(end);
    }
    cuts.reverse();
    cuts
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn even(work: &[u64], places: &[usize], count: usize) -> Vec<usize> {
        cheapest(work, &vec![1; work.len() + 1], places, count)
    }

    #[test]
    fn stages_are_as_even_as_places_allow() {
        assert_eq!(even(&[1, 1, 1, 1, 1, 1, 1, 1], &[2, 4, 6], 4), [2, 4, 6]);
        assert_eq!(even(&[8, 1, 1, 1, 1, 4], &[1, 2, 3, 4, 5], 2), [1]);
        assert_eq!(even(&[1, 1, 1, 5, 1], &[1, 2, 3, 4], 3).len(), 2);
        // The largest is no larger with the first one alone.
        assert_eq!(even(&[0, 20, 20, 20, 20], &[1, 2, 3, 4], 3), [2, 3]);
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

    #[test]
    fn between_places_there_is_more_than_constants() {
        let check = |ops: &str, expect: &[usize]| {
            let constant: Vec<bool> = ops.bytes().map(|op| op == b'c').collect();
            let kept = apart(&constant);
            assert_eq!(kept, expect, "{ops}");
            assert!(!has_idle(&kept, &constant), "{ops}");
        };
        check("xxx", &[1, 2]);
        check("ccxx", &[3]);
        check("xccxx", &[1, 4]);
        check("xxcc", &[1]);
        let (alive, constant) =
            ([0, 1, 9, 5, 9, 9, 9, 9, 0], [true, false, false, false, false, false, false, false]);
        assert_eq!((valleys(&alive), valleys_apart(&alive, &constant)), (vec![1, 7], vec![3, 7]));
        assert!(has_idle(&[2], &[true, true, false]) && has_idle(&[1], &[false, true]));
        assert!(!has_idle(&[2], &[true, false, false]));
    }

    /// All ways to cut at so many of the places.
    fn all_cuts(places: &[usize], cuts: usize) -> Vec<Vec<usize>> {
        match (cuts, places) {
            (0, _) => vec![vec![]],
            (_, []) => vec![],
            (_, [first, rest @ ..]) => {
                let with = all_cuts(rest, cuts - 1).into_iter().map(|cuts| [&[*first], &cuts[..]].concat());
                with.chain(all_cuts(rest, cuts)).collect()
            }
        }
    }

    proptest! {
        #[test]
        fn of_all_ways_none_is_better(
            all in prop::collection::vec((0u64..30, 0u64..9), 6..12),
            count in 1usize..5,
        ) {
            let (work, alive): (Vec<u64>, Vec<u64>) = all.iter().copied().chain([(0, 0)]).unzip();
            let work = &work[..all.len()];
            let places: Vec<usize> = (1..work.len()).collect();
            // No stage has no work, where there is enough for all.
            let is_between = |at: &usize| [&work[..*at], &work[*at..]].iter().all(|part| part.iter().sum::<u64>() > 0);
            let between: Vec<usize> = places.iter().copied().filter(is_between).collect();
            let places = if between.len() + 1 >= count { between } else { places };
            let largest = |cuts: &Vec<usize>| {
                let ends = [&[0], &cuts[..], &[work.len()]].concat();
                ends.windows(2).map(|end| work[end[0]..end[1]].iter().sum::<u64>()).max().unwrap_or(0)
            };
            let sent = |cuts: &Vec<usize>| cuts.iter().map(|at| alive[*at]).sum::<u64>();
            let all_cuts = all_cuts(&places, count - 1);
            let most = all_cuts.iter().map(largest).min().expect("there is one") * (100 + UNEVEN) / 100;
            let squares = |cuts: &Vec<usize>| {
                let ends = [&[0], &cuts[..], &[work.len()]].concat();
                ends.windows(2).map(|end| work[end[0]..end[1]].iter().sum::<u64>().pow(2)).sum::<u64>()
            };
            let weighed = |cuts| (sent(cuts), squares(cuts));
            let best_of_all = all_cuts.iter().filter(|cuts| largest(cuts) <= most).map(weighed).min().expect("there is one");
            let best = cheapest(work, &alive, &(1..work.len()).collect::<Vec<_>>(), count);
            prop_assert!(all_cuts.contains(&best) && largest(&best) <= most, "{best:?}");
            prop_assert_eq!(weighed(&best), best_of_all);
        }
    }
}
