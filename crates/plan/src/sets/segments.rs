//! Segments of a model that has no layers: where its operators are cut so that forward keeps little for what backward
//! computes again.
//!
//! The operators stand in the graph's order. Of a value that is made before a cut and read behind it forward keeps the bytes,
//! once, however many cuts it crosses: so the long ways of a U-Net count once. While backward is in a segment, what that
//! keeps is there besides. Of all ways to cut, one is taken for which the sum of both is least: exactly for so many
//! bytes a segment as there are, a half of it, a third... [`FINEST`]. In a row of equal operators that makes as many segments as the root
//! of their number. Nothing is computed again of the last segment, whose backward comes at once.

use std::ops::Range;

use graph::{OpId, Source, TensorId};
use rules::families::{self, View};

use super::Model;
use crate::recompute::teaching;

/// No more places are looked at: of more the cheapest in each of so many stretches.
const PLACES: usize = 256;
/// The smallest segments that are tried are this part of all.
const FINEST: u64 = 64;

/// The operators of all segments but the last. None where backward needs nothing of forward's operators.
pub(super) fn segments(model: &Model<'_>) -> Vec<Vec<OpId>> {
    let operators = OperatorRow::new(model);
    let Some(between) = operators.open() else { return vec![] };
    let count = model.graph.ops.len();
    if between.is_empty() {
        return vec![model.graph.op_ids().collect()];
    }
    let cuts = Cuts::new(&operators, places(&operators.crossing(), between)).least();
    let begins = [0].into_iter().chain(cuts.iter().copied());
    let segment = |(begin, end): (usize, &usize)| (begin..*end).map(OpId::new).collect();
    debug_assert!(cuts.iter().all(|cut| *cut < count), "a cut is between two operators");
    begins.zip(&cuts).map(segment).collect()
}

/// Whether less is there where these spans are computed again than where nothing is. Layers of one operator each are no such:
/// what they read is all that they keep.
pub(super) fn save(model: &Model<'_>, spans: &[Vec<OpId>]) -> bool {
    let operators = OperatorRow::new(model);
    let mut span_of = vec![None; model.graph.ops.len()];
    for (number, span) in spans.iter().enumerate() {
        span.iter().for_each(|op| span_of[op.index()] = Some(number));
    }
    // Of each span what is there while backward is in it, and last what is there all the time.
    let mut there = vec![0; spans.len() + 1];
    for op in model.graph.op_ids().filter(|op| operators.teaches[op.index()]) {
        let span = span_of[op.index()];
        let stays = |tensor: TensorId| {
            let readers = model.readers[op.index()].iter().map(|reader| span_of[reader.index()]);
            readers
                .filter(|reader| *reader != span)
                .any(|reader| reader.is_some() || operators.is_kept[tensor.index()])
        };
        for tensor in model.graph.op(op).outputs.iter().flatten() {
            let is_kept = operators.is_kept[tensor.index()];
            if stays(*tensor) || is_kept && span.is_none() {
                there[spans.len()] += bytes(model, *tensor);
            } else if is_kept {
                there[span.unwrap_or(spans.len())] += bytes(model, *tensor);
            }
        }
        there[span.unwrap_or(spans.len())] += operators.more[op.index()];
    }
    let all_the_time = there.pop().unwrap_or(0);
    all_the_time + there.into_iter().max().unwrap_or(0) < operators.keeps.iter().sum()
}

/// The operators in their order.
struct OperatorRow {
    /// Bytes that backward needs of each.
    keeps: Vec<u64>,
    /// Those of them that no value has.
    more: Vec<u64>,
    /// The values that backward needs.
    is_kept: Vec<bool>,
    /// Of each value that is read: where it is made, where it is read last, and its bytes.
    values: Vec<(usize, usize, u64)>,
    /// Whether something of each operator gets a gradient.
    teaches: Vec<bool>,
}

impl OperatorRow {
    fn new(model: &Model<'_>) -> Self {
        let graph = model.graph;
        let needs_grad = graph.needs_grad();
        let teaches = teaching(graph, &needs_grad);
        let mut last: Vec<usize> = vec![0; graph.tensors.len()];
        let mut is_kept = vec![false; graph.tensors.len()];
        let mut more = vec![0; graph.ops.len()];
        for op in graph.op_ids().filter(|op| teaches[op.index()]) {
            let (inputs, outputs) = (graph.op(op).inputs(), &graph.op(op).outputs);
            inputs.iter().for_each(|tensor| last[tensor.index()] = op.index());
            let kept = kept(model, op, &needs_grad);
            more[op.index()] = kept.more;
            let made = kept.outputs.iter().filter_map(|at| outputs.get(*at).copied().flatten());
            let all = kept.inputs.iter().filter_map(|at| inputs.get(*at).copied()).chain(made);
            all.for_each(|tensor| is_kept[tensor.index()] = true);
        }
        let (mut keeps, mut values) = (more.clone(), vec![]);
        for tensor in graph.tensor_ids() {
            let Source::Op { op, .. } = graph.tensor(tensor).source else { continue };
            let (made, read) = (op.index(), last[tensor.index()]);
            if is_kept[tensor.index()] && teaches[made] {
                keeps[made] += bytes(model, tensor);
            }
            if teaches[made] && read > made {
                values.push((made, read, bytes(model, tensor)));
            }
        }
        Self { keeps, more, is_kept, values, teaches }
    }

    /// The places that have operators with gradients on both sides; none where there are no such operators.
    fn open(&self) -> Option<Range<usize>> {
        let first = self.teaches.iter().position(|teaches| *teaches)?;
        let last = self.teaches.iter().rposition(|teaches| *teaches)?;
        Some(first + 1..last + 1)
    }

    /// For each place the bytes that go over it.
    fn crossing(&self) -> Vec<u64> {
        let (mut begin, mut end) = (vec![0; self.keeps.len() + 1], vec![0; self.keeps.len() + 1]);
        for (made, read, bytes) in &self.values {
            begin[made + 1] += bytes;
            end[*read] += bytes;
        }
        let mut now = 0;
        let here = |(begin, end): (&u64, &u64)| {
            now += begin;
            let here = now;
            now -= end;
            here
        };
        begin.iter().zip(&end).map(here).collect()
    }
}

fn kept(model: &Model<'_>, op: OpId, needs_grad: &[bool]) -> rules::Kept {
    let (view, rule) = (View::new(model.graph, op), model.analysis.rules[op.index()].as_ref());
    let part = model.analysis.part(model.graph, op, &model.analysis.op(op).whole(), true, 0);
    let executed = families::executed(view, rule, &part);
    families::cost_of(view, rule, &part, &executed, needs_grad).kept
}

fn bytes(model: &Model<'_>, tensor: TensorId) -> u64 {
    u64::try_from(model.graph.tensor(tensor).bytes()).unwrap_or(0)
}

/// Where it may be cut: anywhere, or at the first cheapest place of each of many stretches.
fn places(crossing: &[u64], between: Range<usize>) -> Vec<usize> {
    let stretch = between.len().div_ceil(PLACES).max(1);
    let stretches = between.clone().step_by(stretch).map(|begin| begin..(begin + stretch).min(between.end));
    stretches.filter_map(|mut stretch| stretch.by_ref().min_by_key(|place| crossing[*place])).collect()
}

/// What cuts at some places cost.
struct Cuts {
    places: Vec<usize>,
    /// Bytes that backward needs of all operators before each place, and of all.
    before: Vec<u64>,
    all: u64,
    /// For each place, and one more: bytes that go over a later place and are made behind the place before the first.
    over: Vec<Vec<u64>>,
}

impl Cuts {
    fn new(row: &OperatorRow, places: Vec<usize>) -> Self {
        let mut sums = vec![0];
        row.keeps.iter().for_each(|bytes| sums.push(sums[sums.len() - 1] + bytes));
        let mut over = vec![vec![0; places.len()]; places.len() + 1];
        for (made, read, bytes) in &row.values {
            let [behind, until] = [made, read].map(|at| places.partition_point(|place| place <= at));
            over[behind][behind.min(until)..until].iter_mut().for_each(|sum| *sum += bytes);
        }
        for at in (0..places.len()).rev() {
            let (here, next) = over.split_at_mut(at + 1);
            here[at].iter_mut().zip(&next[0]).for_each(|(sum, bytes)| *sum += bytes);
        }
        Self {
            before: places.iter().map(|place| sums[*place]).collect(),
            all: sums[sums.len() - 1],
            places,
            over,
        }
    }

    /// One at least, of which the least is there at a time.
    fn least(&self) -> Vec<usize> {
        let tried = (1..=FINEST).filter_map(|part| self.within(self.all.div_ceil(part)));
        let (_, cuts) = tried.reduce(|best, it| if it.0 < best.0 { it } else { best }).unwrap_or_default();
        cuts.into_iter().map(|at| self.places[at]).collect()
    }

    /// The cuts for which forward keeps least where no segment keeps more than this, and what is there of both.
    fn within(&self, most: u64) -> Option<(u64, Vec<usize>)> {
        let from = |at: Option<usize>| at.map_or(0, |at| self.before[at]);
        // What is kept until a place, and the cut before it.
        let mut least: Vec<Option<(u64, Option<usize>)>> = vec![];
        for at in 0..self.places.len() {
            let earliest = self.before.partition_point(|sum| sum + most < self.before[at]);
            let first = (self.before[at] <= most).then(|| (self.over[0][at], None));
            let next = |cut: usize| Some((least[cut]?.0 + self.over[cut + 1][at], Some(cut)));
            let best = first.into_iter().chain((earliest..at).filter_map(next)).min();
            least.push(best);
        }
        let ends = (0..self.places.len()).filter(|at| self.all - self.before[*at] <= most);
        let (kept, last) = ends.filter_map(|at| Some((least[at]?.0, at))).min()?;
        let mut cuts = vec![last];
        while let Some(before) = least[cuts[cuts.len() - 1]].and_then(|it| it.1) {
            cuts.push(before);
        }
        cuts.reverse();
        let begins = [None].into_iter().chain(cuts.iter().copied().map(Some));
        let ends = cuts.iter().map(|at| self.before[*at]).chain([self.all]);
        let largest = begins.zip(ends).map(|(begin, end)| end - from(begin)).max().unwrap_or(0);
        Some((kept + largest, cuts))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn row(keeps: &[u64], values: &[(usize, usize, u64)]) -> OperatorRow {
        OperatorRow {
            keeps: keeps.to_vec(),
            more: vec![],
            is_kept: vec![],
            values: values.to_vec(),
            teaches: vec![true; keeps.len()],
        }
    }

    fn cut(row: &OperatorRow) -> Vec<usize> {
        let between = row.open().expect("all of it has gradients");
        Cuts::new(row, places(&row.crossing(), between)).least()
    }

    #[test]
    fn a_row_of_equal_operators_is_cut_into_as_many_segments_as_the_root_of_their_number() {
        for count in [16, 64, 144] {
            let values: Vec<_> = (1..count).map(|at| (at - 1, at, 10)).collect();
            let segments = cut(&row(&vec![10; count], &values)).len() + 1;
            let root = (count as f64).sqrt() as usize;
            assert!((root - 1..=root + 1).contains(&segments), "{count}: {segments}");
        }
    }

    #[test]
    fn cuts_lie_where_little_crosses() {
        let values = [(0, 1, 90), (1, 2, 1), (2, 3, 90), (3, 4, 90), (4, 5, 1), (5, 6, 90)];
        assert_eq!(cut(&row(&[50; 7], &values)), [2, 5]);
    }

    #[test]
    fn what_crosses_several_cuts_is_kept_once() {
        let mut values: Vec<_> = (1..36).map(|at| (at - 1, at, 10)).collect();
        let plain = cut(&row(&[10; 36], &values));
        values.push((0, 35, 1000));
        assert_eq!(cut(&row(&[10; 36], &values)).len(), plain.len());
    }

    #[test]
    fn of_many_places_the_cheapest_of_each_stretch_is_one() {
        let mut crossing = vec![9; 2000];
        crossing[500] = 1;
        let places = places(&crossing, 1..2000);
        assert!(places.len() <= PLACES && places.contains(&500), "{places:?}");
    }

    /// What is there where it is cut at these places.
    fn there(row: &OperatorRow, cuts: &[usize]) -> u64 {
        let crosses =
            |(made, read, _): &&(usize, usize, u64)| cuts.iter().any(|cut| made < cut && cut <= read);
        let kept: u64 = row.values.iter().filter(crosses).map(|value| value.2).sum();
        let ends = [&[0], cuts, &[row.keeps.len()]].concat();
        let largest = ends.windows(2).map(|end| row.keeps[end[0]..end[1]].iter().sum()).max().unwrap_or(0);
        kept + largest
    }

    proptest! {
        /// Of all ways to cut whose largest segment is one of those that are tried, none is better.
        #[test]
        fn no_way_is_better(
            keeps in prop::collection::vec(1u64..30, 2..9),
            values in prop::collection::vec((0usize..8, 1usize..8, 0u64..30), 0..12),
        ) {
            let count = keeps.len();
            let inside = |(made, far, bytes): (usize, usize, u64)| (made % count, (made % count + far).min(count - 1), bytes);
            let values: Vec<_> = values.into_iter().map(inside).filter(|it| it.0 < it.1).collect();
            let row = row(&keeps, &values);
            let chosen = there(&row, &cut(&row));
            for ways in 1u32..1 << (count - 1) {
                let cuts: Vec<usize> = (1..count).filter(|at| ways & (1 << (at - 1)) != 0).collect();
                let ends = [&[0], &cuts[..], &[count]].concat();
                let largest: u64 = ends.windows(2).map(|end| keeps[end[0]..end[1]].iter().sum()).max().unwrap_or(0);
                let all: u64 = keeps.iter().sum();
                let rounded = (1..=FINEST).map(|part| all.div_ceil(part)).filter(|most| *most >= largest).min();
                let slack = rounded.map_or(0, |most| most - largest);
                prop_assert!(chosen <= there(&row, &cuts) + slack, "{cuts:?}: {chosen}");
            }
        }
    }
}
