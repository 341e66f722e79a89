//! What ranks have in memory over a step: what the check counted of each task, at the time of that task.

use check::Phase;
use program::{Pass, RankId};

use crate::{Simulation, What};

/// So many columns has a line.
const WIDTH: usize = 64;
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// The memory of a rank that was followed, one stretch after the other.
#[derive(Clone, Debug, PartialEq)]
pub struct HeldMemory {
    pub rank: RankId,
    pub over: Vec<Stretch>,
}

/// The most bytes at once from one moment to another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stretch {
    pub start: f64,
    pub end: f64,
    pub bytes: u64,
}

impl Simulation {
    /// Of ranks with what the check counted of their turns, with what is there besides all the time, and with what is
    /// there while the optimizer steps.
    pub fn held(&self, ranks: &[(RankId, &[Phase], u64, u64)]) -> Vec<HeldMemory> {
        let watched = |rank: RankId| self.spans.iter().any(|span| span.rank == rank);
        let held = |(rank, phases, besides, end): &(RankId, &[Phase], u64, u64)| HeldMemory {
            rank: *rank,
            over: self.stretches(*rank, phases, *besides, *end),
        };
        ranks.iter().filter(|it| !it.1.is_empty() && watched(it.0)).map(held).collect()
    }

    fn stretches(&self, rank: RankId, phases: &[Phase], besides: u64, end: u64) -> Vec<Stretch> {
        let mut found: Vec<Stretch> = vec![];
        let mut last: Option<(Pass, u32, u32, bool)> = None;
        let mut left = phases.iter();
        for span in self.spans.iter().filter(|span| span.rank == rank) {
            let task = (span.pass, span.block, span.batch, span.what == What::Update);
            if last != Some(task) {
                last = Some(task);
                let mut of_task =
                    || left.find(|it| (it.pass, it.block, it.batch) == (task.0, task.1, task.2));
                let bytes = if task.3 { Some(end) } else { of_task().map(|it| it.most + besides) };
                let Some(bytes) = bytes else { continue };
                found.push(Stretch { start: span.start, end: span.end, bytes });
            } else if let Some(stretch) = found.last_mut() {
                stretch.end = span.end;
            }
        }
        found
    }
}

impl HeldMemory {
    /// A bar for each part of the step, of which the highest are `most` bytes.
    pub fn drawn(&self, seconds: f64, most: u64) -> String {
        let width = seconds / WIDTH as f64;
        let mut known = self.over.first().map_or(0, |first| first.bytes);
        let bar = |column: usize| {
            let (start, end) = (width * column as f64, width * (column + 1) as f64);
            let here = self.over.iter().filter(|it| it.start < end && it.end > start);
            known = here.map(|it| it.bytes).max().unwrap_or(known);
            let level = (known as f64 / most.max(1) as f64 * BARS.len() as f64).ceil() as usize;
            BARS[level.clamp(1, BARS.len()) - 1]
        };
        (0..WIDTH).map(bar).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_as_high_as_what_is_held() {
        let stretch = |start: f64, end: f64, bytes| Stretch { start, end, bytes };
        let held = HeldMemory { rank: RankId(0), over: vec![stretch(0.0, 0.5, 1), stretch(0.5, 1.0, 8)] };
        let drawn: Vec<char> = held.drawn(1.0, 8).chars().collect();
        assert_eq!((drawn.len(), drawn[0], drawn[31], drawn[32], drawn[63]), (64, '▁', '▁', '█', '█'));
        assert!(held.drawn(1.0, 16).ends_with('▄'));
        let pause = HeldMemory { rank: RankId(0), over: vec![stretch(0.0, 0.1, 8), stretch(0.9, 1.0, 1)] };
        assert_eq!(pause.drawn(1.0, 8).chars().nth(32), Some('█'), "what is held stays while a rank waits");
    }
}
