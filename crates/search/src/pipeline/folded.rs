//! Pipelines in a V: each stage has a block from the front and one from the back, so that what the first and the last block
//! share is on the same devices, and its gradients need not go between stages.

use graph::{Graph, Source};

use super::ask::{Ask, Costs, Run};
use super::costs::Found;
use super::cuts::{Chosen, Pipeline};
use super::flow::{Flow, Stage};
use super::segments::Segments;

/// Segments in which a parameter is read that is shared: the first, and the last.
pub(super) fn shared(graph: &Graph, segments: &Segments) -> Option<(usize, usize)> {
    let uses = graph.uses();
    let extent = |tensor: graph::TensorId| {
        let is_param = matches!(graph.tensor(tensor).source, Source::Param { .. });
        let readers = uses[tensor.index()].iter().filter(|_| is_param).map(|(op, _)| segments.of[op.index()]);
        let first = readers.clone().min()?;
        readers.max().filter(|last| *last > first).map(|last| (first, last))
    };
    let all = graph.tensor_ids().filter_map(extent);
    all.reduce(|a, b| (a.0.max(b.0), a.1.min(b.1))).filter(|(first, last)| first < last)
}

/// One for each number of stages that have equally many devices each: of the cuts that have the
/// shared parameters in the first and the last block the one whose longest block takes least.
pub(super) fn folded(
    costs: &mut Found<'_>,
    &Ask { segments, devices, batches, stages: most, .. }: &Ask<'_>,
    shared: (usize, usize),
) -> Vec<Pipeline> {
    let mut pipelines = vec![];
    for stages in (2..=most.min(batches)).filter(|stages| devices % stages == 0) {
        let size = devices / stages;
        if (1..=stages).any(|end| !costs.groups(end * size).contains(&size)) {
            continue;
        }
        let seconds = costs.least_of((0, size));
        let Some(places) = places(&seconds[..segments], 2 * stages as usize, shared) else { continue };
        let runs = places.windows(2).zip(0..).map(|(ends, at)| {
            let stage = u32::min(at, 2 * stages - 1 - at);
            Run { segments: (ends[0], ends[1]), devices: (stage * size, (stage + 1) * size) }
        });
        pipelines.extend(pipeline(costs, &runs.collect::<Vec<Run>>(), batches));
    }
    pipelines
}

/// The blocks' runs, each divided as it takes least; none where something does not fit.
fn pipeline(costs: &mut Found<'_>, runs: &[Run], batches: u32) -> Option<Pipeline> {
    let kept = batches.min(u32::try_from(runs.len()).unwrap_or(u32::MAX));
    let mut busy = vec![0.0; runs.len() / 2];
    let mut stages = vec![];
    for (at, run) in runs.iter().enumerate() {
        let ways = costs.ways(*run, kept, f64::INFINITY);
        let takes = |stage: &Stage| f64::from(batches) * (stage.forward + stage.backward) + stage.tail;
        let least = (0..ways.len()).min_by(|a, b| takes(&ways[*a]).total_cmp(&takes(&ways[*b])));
        let way = least?;
        busy[at.min(runs.len() - 1 - at)] += takes(&ways[way]);
        stages.push(Chosen { run: *run, kept, way });
    }
    let flow = Flow { busy: busy.into_iter().fold(0.0, f64::max), ..Flow::default() };
    Some(Pipeline { stages, flow })
}

/// Where blocks begin, and the end: of so many the longest takes least.
fn places(seconds: &[f64], blocks: usize, (first, last): (usize, usize)) -> Option<Vec<usize>> {
    let count = seconds.len();
    let seconds_of = |from: usize, to: usize| seconds[from..to].iter().sum::<f64>();
    // For each end the least of the longest block so far, and where that begins.
    let mut rows = vec![vec![(f64::INFINITY, 0); count + 1]];
    rows[0][0].0 = 0.0;
    for block in 1..=blocks {
        let ending = |to: usize| {
            let may = |from: &usize| {
                (block > 1 || to > first) && (block < blocks || (to == count && *from <= last))
            };
            let longest = |from: usize| (f64::max(rows[block - 1][from].0, seconds_of(from, to)), from);
            let all = (block - 1..to).filter(may).map(longest);
            all.min_by(|a, b| a.0.total_cmp(&b.0)).unwrap_or((f64::INFINITY, 0))
        };
        let candidate = (0..=count).map(ending).collect();
        rows.push(candidate);
    }
    let mut places = vec![count];
    for block in (1..=blocks).rev() {
        let (seconds, from) = rows[block][places[places.len() - 1]];
        if seconds == f64::INFINITY {
            return None;
        }
        places.push(from);
    }
    places.reverse();
    Some(places)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_block_is_as_short_as_can_be() {
        let seconds = [0.0, 4.0, 1.0, 1.0, 1.0, 1.0, 3.0];
        assert_eq!(places(&seconds, 3, (0, 6)), Some(vec![0, 2, 5, 7]));
        // What is shared is in the first block and in the last one.
        assert_eq!(places(&seconds, 3, (2, 6)), Some(vec![0, 3, 4, 7]));
        assert_eq!(places(&seconds, 3, (0, 2)), Some(vec![0, 1, 2, 7]));
        assert_eq!(places(&seconds, 8, (0, 6)), None);
    }
}
