//! What ranks have in memory over a step: what the check counted of each task, at the time of that task.

use std::collections::BTreeMap;

use check::{Phase, Purpose};
use program::{Kind, Pass, RankId};

use crate::{Simulation, Span, What};

/// So many columns has a line.
const WIDTH: usize = 64;
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// The memory of a rank that was followed, one stretch after the other.
#[derive(Clone, Debug, PartialEq)]
pub struct HeldMemory {
    pub rank: RankId,
    pub over: Vec<Stretch>,
    /// The same in each instruction, of ranks that the check looked at closely.
    pub closely: Vec<ByPurpose>,
}

/// What a rank has from one moment to another, by [`Purpose`], when it is the most.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ByPurpose {
    pub start: f64,
    pub end: f64,
    pub bytes: [u64; Purpose::COUNT],
}

/// Of whom memory is placed in time.
#[derive(Clone, Copy, Debug)]
pub struct Placing<'p> {
    pub rank: RankId,
    /// What the check counted of its tasks.
    pub phases: &'p [Phase],
    /// Bytes of an optimizer's state that are there all the time.
    pub state: u64,
    /// What is there while the optimizer steps.
    pub end: [u64; Purpose::COUNT],
}

/// The most bytes at once from one moment to another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stretch {
    pub start: f64,
    pub end: f64,
    pub bytes: u64,
}

impl Simulation {
    /// Of ranks whose spans are known.
    pub fn held(&self, ranks: &[Placing<'_>]) -> Vec<HeldMemory> {
        let held = |placing: &Placing<'_>| {
            let spans: Vec<&Span> = self.spans.iter().filter(|span| span.rank == placing.rank).collect();
            let tasks: Vec<TaskSpans<'_>> = tasks(&spans, placing.phases);
            (!spans.is_empty()).then(|| HeldMemory {
                rank: placing.rank,
                over: tasks.iter().filter_map(|task| task.stretch(placing)).collect(),
                closely: tasks.iter().flat_map(|task| task.closely(placing)).collect(),
            })
        };
        ranks.iter().filter(|it| !it.phases.is_empty()).filter_map(held).collect()
    }
}

/// The spans of a task, with what the check counted of it; none while the optimizer steps.
struct TaskSpans<'t> {
    spans: &'t [&'t Span],
    phase: Option<&'t Phase>,
}

/// One after the other. What the check knows is in the same order.
fn tasks<'t>(spans: &'t [&'t Span], phases: &'t [Phase]) -> Vec<TaskSpans<'t>> {
    let task_of = |span: &Span| (span.pass, span.block, span.batch, span.what == What::Update);
    let mut left = phases.iter();
    let mut task = |spans: &'t [&'t Span]| {
        let (pass, block, batch, updates): (Pass, u32, u32, bool) = task_of(spans[0]);
        let mut find = || left.find(|it| (it.pass, it.block, it.batch) == (pass, block, batch));
        TaskSpans { spans, phase: if updates { None } else { find() } }
    };
    spans.chunk_by(|a, b| task_of(a) == task_of(b)).map(&mut task).collect()
}

impl TaskSpans<'_> {
    fn updates(&self) -> bool {
        self.spans[0].what == What::Update
    }

    fn start(&self) -> f64 {
        self.spans[0].start
    }

    fn end(&self) -> f64 {
        self.spans[self.spans.len() - 1].end
    }

    fn stretch(&self, placing: &Placing<'_>) -> Option<Stretch> {
        let bytes = if self.updates() { placing.end.iter().sum() } else { self.phase?.most + placing.state };
        Some(Stretch { start: self.start(), end: self.end(), bytes })
    }

    /// What takes no time is told with what comes next.
    fn closely(&self, placing: &Placing<'_>) -> Vec<ByPurpose> {
        if self.updates() {
            return vec![ByPurpose { start: self.start(), end: self.end(), bytes: placing.end }];
        }
        let ends: BTreeMap<usize, f64> = self.spans.iter().filter_map(|span| numbered(span)).collect();
        let (mut over, mut from, mut waiting) = (vec![], self.start(), None);
        for (instr, bytes) in self.phase.iter().flat_map(|phase| &phase.instrs) {
            let mut bytes = *bytes;
            bytes[Purpose::Optimizer as usize] += placing.state;
            let most = waiting.take().map_or(bytes, |before| more(before, bytes));
            match ends.get(instr) {
                Some(end) => {
                    over.push(ByPurpose {
                        start: std::mem::replace(&mut from, *end),
                        end: *end,
                        bytes: most,
                    });
                }
                None => waiting = Some(most),
            }
        }
        if let Some(bytes) = waiting {
            over.push(ByPurpose { start: from, end: self.end(), bytes });
        }
        over
    }
}

/// Of what is computed in the order of the code. Gradients that arrive are added when they come.
fn numbered(span: &Span) -> Option<(usize, f64)> {
    match span.what {
        What::Instr(Kind::Call | Kind::Grad, instr) => Some((instr, span.end)),
        _ => None,
    }
}

fn more(a: [u64; Purpose::COUNT], b: [u64; Purpose::COUNT]) -> [u64; Purpose::COUNT] {
    if b.iter().sum::<u64>() > a.iter().sum() { b } else { a }
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
        let held = HeldMemory {
            rank: RankId(0),
            over: vec![stretch(0.0, 0.5, 1), stretch(0.5, 1.0, 8)],
            closely: vec![],
        };
        let drawn: Vec<char> = held.drawn(1.0, 8).chars().collect();
        assert_eq!((drawn.len(), drawn[0], drawn[31], drawn[32], drawn[63]), (64, '▁', '▁', '█', '█'));
        assert!(held.drawn(1.0, 16).ends_with('▄'));
        let pause = HeldMemory {
            rank: RankId(0),
            over: vec![stretch(0.0, 0.1, 8), stretch(0.9, 1.0, 1)],
            closely: vec![],
        };
        assert_eq!(pause.drawn(1.0, 8).chars().nth(32), Some('█'), "what is held stays while a rank waits");
    }
}
