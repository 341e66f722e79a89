//! The tasks of a rank over a step, in ticks of its [`Clock`]. Tasks that go the same way share a pattern.
//!
//! A pattern of what is computed is a list of numbers: for each slice when it begins after its task, how long it is, what
//! it is ([`Sort`]) and its instruction, or -1. One of communication has for each part: the instruction, when it begins
//! after the task, how long it is, and for how long the rank waits for it.

use std::collections::BTreeMap;

use program::{Instr, Kind, Pass, Program, Which};
use simulate::{Simulation, Span, TakesPart, What};

use super::Subject;
use super::clock::Clock;

/// More numbers than these are not drawn apart: of tasks that many slices would fill only the whole is told.
const MOST: usize = 300_000;
/// Numbers of a slice, and of a part of a communication.
pub(crate) const SLICE: usize = 4;
pub(crate) const PART: usize = 4;

/// What a slice is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sort {
    Forward,
    Backward,
    Weights,
    Recomputed,
    Copies,
    Waits,
    Update,
}

impl Sort {
    pub(crate) const NAMES: [&'static str; 7] =
        ["forward", "backward", "weight gradients", "recomputed", "copies", "waits", "optimizer"];
}

/// One after the other: the code, the micro-batch, the start, and the two patterns.
pub(crate) type Tasks = Vec<[i64; 5]>;

#[derive(Default)]
pub(crate) struct Patterns {
    pub(crate) slices: PatternTable,
    pub(crate) parts: PatternTable,
    /// Whether all slices are told apart.
    pub(super) is_short: bool,
}

#[derive(Default)]
pub(crate) struct PatternTable {
    known: BTreeMap<Vec<i64>, usize>,
    pub(crate) all: Vec<Vec<i64>>,
}

impl PatternTable {
    fn number(&mut self, pattern: Vec<i64>) -> i64 {
        let number = *self.known.entry(pattern).or_insert_with_key(|pattern| {
            self.all.push(pattern.clone());
            self.all.len() - 1
        });
        number as i64
    }

    fn size(&self) -> usize {
        self.all.iter().map(Vec::len).sum()
    }
}

/// The tasks of the rank at this place among those that were followed.
pub(super) fn tasks(subject: &Subject<'_>, role: usize, at: usize, patterns: &mut Patterns) -> Tasks {
    let simulation = &subject.step.estimate.simulation;
    let rank = simulation.ranks[at].rank;
    let (program, clock) = (&subject.compiled.program, subject.clock());
    let spans: Vec<&Span> = simulation.spans.iter().filter(|span| span.rank == rank).collect();
    let task_of = |span: &Span| (span.block, span.pass, span.batch, span.what == What::Update);
    let mut parts = parts_of(simulation, at);
    let code_at = |block: u32, pass: Pass| code(program, role, block, pass);
    let mut tasks: Tasks = vec![];
    for task in spans.chunk_by(|a, b| task_of(a) == task_of(b)) {
        let (block, pass, batch, updates) = task_of(task[0]);
        let start = clock.ticks(task[0].start);
        let slices = task.iter().flat_map(|span| slice(program, role, span, clock, start)).collect();
        let sent = if updates { None } else { parts.remove(&(block, pass, batch)) };
        let sent = sent.unwrap_or_default();
        let of_parts = sent.iter().flat_map(|it| part(simulation, it, clock, start)).collect();
        let numbers = (patterns.slices.number(slices), patterns.parts.number(of_parts));
        tasks.push([code_at(block, pass), i64::from(batch), start, numbers.0, numbers.1]);
    }
    // Tasks in which nothing is computed.
    for ((block, pass, batch), sent) in parts {
        let starts = sent.iter().map(|it| clock.ticks(simulation.messages[it.message].start));
        let start = starts.min().unwrap_or(0);
        let of_parts = sent.iter().flat_map(|it| part(simulation, it, clock, start)).collect();
        let numbers = (patterns.slices.number(vec![]), patterns.parts.number(of_parts));
        tasks.push([code_at(block, pass), i64::from(batch), start, numbers.0, numbers.1]);
    }
    tasks.sort_by_key(|task| task[2]);
    tasks
}

type TaskKey = (u32, Pass, u32);

fn parts_of(simulation: &Simulation, at: usize) -> BTreeMap<TaskKey, Vec<&TakesPart>> {
    let mut by_task: BTreeMap<TaskKey, Vec<&TakesPart>> = BTreeMap::new();
    for part in &simulation.parts[at] {
        by_task.entry((part.block, part.pass, part.batch)).or_default().push(part);
    }
    by_task
}

/// The number of a code among those of its role.
pub(super) fn code(program: &Program, role: usize, block: u32, pass: Pass) -> i64 {
    program.roles[role].body.position(block, pass).map_or(-1, |at| at as i64)
}

fn slice(program: &Program, role: usize, span: &Span, clock: Clock, from: i64) -> [i64; SLICE] {
    let (start, end) = (clock.ticks(span.start), clock.ticks(span.end));
    let (sort, instr) = match span.what {
        What::Wait => (Sort::Waits, -1),
        What::Update => (Sort::Update, -1),
        What::Instr(kind, instr) => (sort(program, role, span, kind, instr), instr as i64),
    };
    [start - from, end - start, sort as i64, instr]
}

fn sort(program: &Program, role: usize, span: &Span, kind: Kind, instr: usize) -> Sort {
    let instr = || program.roles[role].body.code(span.block, span.pass)?.instrs.get(instr);
    match (kind, span.pass) {
        (Kind::Call, pass) if pass.is_backward() => Sort::Recomputed,
        (Kind::Call, _) => Sort::Forward,
        (Kind::Grad, _) => match instr() {
            Some(Instr::Grad(grad)) if grad.which == Which::Weights => Sort::Weights,
            _ => Sort::Backward,
        },
        _ => Sort::Copies,
    }
}

fn part(simulation: &Simulation, part: &TakesPart, clock: Clock, from: i64) -> [i64; PART] {
    let message = &simulation.messages[part.message];
    let (start, end) = (clock.ticks(message.start), clock.ticks(message.end));
    [part.instr as i64, start - from, end - start, clock.ticks(part.exposed)]
}

/// Patterns of which those that are nearly the same share a number: rounding makes many of what is one.
struct NearTable<'t> {
    /// By what takes part, without its times.
    known: BTreeMap<Vec<i64>, Vec<usize>>,
    all: Vec<Vec<i64>>,
    /// Of a slice or a part the numbers that are times: when it begins comes first, and how long it is second.
    times: &'t [usize],
    /// Of a slice or a part, so many numbers.
    width: usize,
}

impl<'t> NearTable<'t> {
    fn new(times: &'t [usize], width: usize) -> Self {
        Self { known: BTreeMap::new(), all: vec![], times, width }
    }

    fn number(&mut self, pattern: Vec<i64>) -> i64 {
        let is_time = |at: usize| self.times.contains(&(at % self.width));
        let rest = pattern.iter().enumerate().filter(|(at, _)| !is_time(*at)).map(|(_, number)| *number);
        let ends = pattern.chunks_exact(self.width).map(|it| it[self.times[0]] + it[self.times[1]]);
        let little = ends.max().unwrap_or(0) / 1000;
        let is_near = |(a, b): (&i64, &i64)| (a - b).abs() <= little;
        let known = self.known.entry(rest.collect()).or_default();
        let near = known.iter().copied().find(|at| self.all[*at].iter().zip(&pattern).all(is_near));
        let number = near.unwrap_or_else(|| {
            known.push(self.all.len());
            self.all.push(pattern);
            self.all.len() - 1
        });
        number as i64
    }
}

impl Patterns {
    /// Where too much would have to be told, slices of one sort that follow each other become one, and what differs by
    /// less than a thousandth of its task is told once.
    pub(super) fn shorten<'t>(&mut self, all: impl Iterator<Item = &'t mut Tasks>) {
        self.is_short = self.slices.size() + self.parts.size() > MOST;
        if !self.is_short {
            return;
        }
        let mut slices = NearTable::new(&[0, 1], SLICE);
        let of_slices: Vec<i64> = self.slices.all.iter().map(|it| slices.number(joined(it))).collect();
        let mut parts = NearTable::new(&[1, 2, 3], PART);
        let of_parts: Vec<i64> =
            std::mem::take(&mut self.parts.all).into_iter().map(|it| parts.number(it)).collect();
        for task in all.flatten() {
            task[3] = of_slices[task[3] as usize];
            task[4] = of_parts[task[4] as usize];
        }
        self.slices = PatternTable { all: slices.all, ..PatternTable::default() };
        self.parts = PatternTable { all: parts.all, ..PatternTable::default() };
    }
}

/// Slices of one sort that follow each other, as one without an instruction. Short waits between them are in it.
fn joined(slices: &[i64]) -> Vec<i64> {
    let mut joined: Vec<[i64; SLICE]> = vec![];
    for it in slices.chunks_exact(SLICE) {
        let [start, long, sort, _] = [it[0], it[1], it[2], it[3]];
        match joined.last_mut().filter(|last| last[2] == sort) {
            Some(last) => last[1] = start + long - last[0],
            None => joined.push([start, long, sort, -1]),
        }
    }
    joined.concat()
}
