//! Codes, and the timetable that says in which order they run in a step.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use crate::{Body, BufId, Instr};

/// Straight-line code of a role.
#[derive(Clone, Debug, PartialEq)]
pub struct Code {
    /// The block of the model that it is about; 0 for what is about all of them.
    pub block: u32,
    pub pass: Pass,
    /// What it is given, in this order: the inputs to forward, to backward the gradients of outputs that the
    /// caller gives, one for each output that leaves its forward and needs a gradient.
    pub takes: Vec<BufId>,
    pub instrs: Vec<Instr>,
    /// What it gives: forward the graph's outputs, in their order, `None` for what does not leave it; backward the
    /// gradients of inputs.
    pub gives: Vec<Option<BufId>>,
}

/// What a code is for. Of one micro-batch, codes of one pass run one block after the other, the last one first in backward.
/// A block has a `Backward`, or its two halves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Pass {
    /// Once a step, before all others: what is gathered for all of it.
    Begin,
    Forward,
    /// Gradients of leaves and shards add up over the micro-batches of a step. What communicates the sums
    /// ([`crate::Instr::settles`]) runs in those backwards only that the timetable says.
    Backward,
    /// Its first half: gradients of values, and nothing that leaves accumulate but what arises with them.
    Inputs,
    /// Its second half: gradients of leaves, and what is done with them.
    Weights,
    /// Once a step, after all others: gradients that arise in several blocks are communicated.
    End,
}

/// Order, the third primitive, completed: what a rank runs in a step, and when.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timetable {
    /// Whether the step begins with a code of its own.
    pub begins: bool,
    /// One after the other.
    pub loops: Vec<Loop>,
    /// Whether the step ends with a code of its own.
    pub ends: bool,
    pub steps: Steps,
}

/// How steps follow each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Steps {
    /// At the end of a step all of its micro-batches have run backward.
    #[default]
    Apart,
    /// Without a pause. A step has as many turns as micro-batches, all from `b` = 0 on: what is for a micro-batch before 0 is for
    /// one of the last of the step before, and what is left is run by the next step, or by an end after the last one.
    /// The gradients of a step are whole at the end of the next one, and go to the shards then.
    On {
        /// Whether the rank keeps, at the end of a step, the parameters that it was computed with: what is under way goes on with
        /// these, and optimizers write elsewhere. They are there until the end of the next step.
        stashes: bool,
    },
}

/// What one of several steps runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run<'t> {
    pub task: &'t Task,
    /// The step and the micro-batch of it that it is for.
    pub of: u32,
    pub batch: u32,
}

/// Tasks that are run for `b` = ..., -every, 0, every, ...: as many turns as there is something to do in. Tasks for
/// what is no micro-batch of the step are left out, which makes the first turns the warm-up of a pipeline, and the
/// last ones its cool-down. A loop may have only the turns of `b` = 0, every, ..., which come before: what runs in it
/// has run, and is left out where a later loop names it for the same micro-batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loop {
    pub every: u32,
    /// So many turns; without that, all that there are.
    pub iterations: Option<u32>,
    pub tasks: Vec<Task>,
}

/// One code of one micro-batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    pub block: u32,
    /// The micro-batch is `b` and so many, or less so many.
    pub at: i32,
    pub does: Does,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Does {
    Forward,
    Backward {
        /// How often the scale of the step is a factor of what backward starts from. In a step with the scale s
        /// the gradients are those of s times the sum of all losses.
        scaled: u32,
        /// In which micro-batches the gradients of leaves are communicated, and go to the shards.
        settles: When,
    },
    /// The first half of a backward.
    Inputs {
        scaled: u32,
    },
    /// The second half.
    Weights {
        settles: When,
    },
}

/// Micro-batches of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    Never,
    Each,
    First,
    Last,
}

impl Code {
    pub fn new(block: u32, pass: Pass) -> Self {
        Self { block, pass, takes: vec![], instrs: vec![], gives: vec![] }
    }

    pub fn key(&self) -> CodeKey {
        CodeKey { block: self.block, pass: self.pass }
    }

    /// Codes stand in this order, in which one micro-batch runs them.
    pub fn place(&self) -> OrderKey {
        turn(self.block, self.pass)
    }
}

/// A code of a role, by what it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CodeKey {
    pub block: u32,
    pub pass: Pass,
}

impl Body {
    /// Codes of one micro-batch of which the first keeps something for the second: values, or a call for its backward.
    pub fn handed_on(&self) -> BTreeSet<(CodeKey, CodeKey)> {
        let (mut kept, mut calls, mut pairs) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
        for code in &self.codes {
            let then = code.key();
            for instr in &code.instrs {
                let first = match instr {
                    Instr::Keep { id, .. } => kept.insert(*id, then).and(None),
                    Instr::Call(call) => calls.insert(call.id, then).and(None),
                    Instr::Take { id, .. } => kept.get(id).copied(),
                    Instr::Grad(grad) => calls.insert(grad.call, then),
                    _ => None,
                };
                pairs.extend(first.filter(|first| *first != then).map(|first| (first, then)));
            }
        }
        pairs
    }
}

/// Where a code stands: blocks whose backward has two halves run the first in turn with the backwards of others.
pub type OrderKey = (Pass, i64, Pass);

pub(crate) fn turn(block: u32, pass: Pass) -> OrderKey {
    let with = if pass == Pass::Inputs { Pass::Backward } else { pass };
    (with, if pass.is_backward() { -i64::from(block) } else { i64::from(block) }, pass)
}

impl Pass {
    /// As in emitted code.
    pub fn name(self) -> &'static str {
        match self {
            Pass::Begin => "begin",
            Pass::Forward => "forward",
            Pass::Backward => "backward",
            Pass::Inputs => "inputs",
            Pass::Weights => "weights",
            Pass::End => "end",
        }
    }

    /// Whether it is a backward, or a half of one.
    pub fn is_backward(self) -> bool {
        matches!(self, Pass::Backward | Pass::Inputs | Pass::Weights)
    }

    /// Whether it runs once a step, and not for each micro-batch.
    pub fn is_once(self) -> bool {
        matches!(self, Pass::Begin | Pass::End)
    }

    /// Whether gradients of values arise in it: it starts from those that the caller gives.
    pub fn gives_back(self) -> bool {
        matches!(self, Pass::Backward | Pass::Inputs)
    }

    /// Whether gradients of leaves are communicated in it where the timetable says so.
    pub fn settles(self) -> bool {
        matches!(self, Pass::Backward | Pass::Weights)
    }
}

impl Task {
    pub fn forward(block: u32) -> Self {
        Self { block, at: 0, does: Does::Forward }
    }

    pub fn backward(block: u32, settles: When) -> Self {
        Self { block, at: 0, does: Does::Backward { scaled: 1, settles } }
    }

    pub fn inputs(block: u32) -> Self {
        Self { block, at: 0, does: Does::Inputs { scaled: 1 } }
    }

    pub fn weights(block: u32, settles: When) -> Self {
        Self { block, at: 0, does: Does::Weights { settles } }
    }

    pub fn at(self, at: i32) -> Self {
        Self { at, ..self }
    }

    pub fn pass(&self) -> Pass {
        match self.does {
            Does::Forward => Pass::Forward,
            Does::Backward { .. } => Pass::Backward,
            Does::Inputs { .. } => Pass::Inputs,
            Does::Weights { .. } => Pass::Weights,
        }
    }

    /// The code that it runs.
    pub fn code(&self) -> CodeKey {
        CodeKey { block: self.block, pass: self.pass() }
    }

    /// When gradients of leaves are communicated in it.
    pub fn settles(&self) -> When {
        match self.does {
            Does::Backward { settles, .. } | Does::Weights { settles } => settles,
            Does::Forward | Does::Inputs { .. } => When::Never,
        }
    }
}

impl When {
    /// Whether that is this one of so many micro-batches.
    pub fn is(self, batch: u32, batches: u32) -> bool {
        match self {
            When::Never => false,
            When::Each => true,
            When::First => batch == 0,
            When::Last => batch + 1 == batches,
        }
    }
}

impl Timetable {
    /// Each micro-batch forward and, where it is trained, backward; gradients are communicated with the last.
    pub fn in_turn(begins: bool, trains: bool) -> Self {
        let backward = Task::backward(0, When::Last);
        let tasks = std::iter::once(Task::forward(0)).chain(trains.then_some(backward)).collect();
        Self { begins, loops: vec![Loop::over_all(tasks)], ..Self::default() }
    }

    pub fn goes_on(&self) -> bool {
        self.steps != Steps::Apart
    }

    /// Whether each micro-batch is over before the next one begins.
    pub fn is_one_by_one(&self) -> bool {
        let is_one =
            |it: &Loop| it.every == 1 && it.iterations.is_none() && it.tasks.iter().all(|task| task.at == 0);
        !self.goes_on() && self.loops.len() < 2 && self.loops.iter().all(is_one)
    }

    pub fn stashes(&self) -> bool {
        self.steps == Steps::On { stashes: true }
    }

    /// By how many micro-batches tasks are behind.
    pub fn behind(&self) -> u32 {
        let all = self.loops.iter().flat_map(|it| &it.tasks);
        all.map(|task| task.at.min(0).unsigned_abs()).max().unwrap_or(0)
    }

    /// Of steps that go on: what the one of this number runs, of so many micro-batches each. After the last one `ends` the
    /// rest is run.
    pub fn no_flush(&self, step: u32, batches: u32, ends: bool) -> Vec<Run<'_>> {
        let turn = |b: i64| {
            self.loops.iter().flat_map(|it| &it.tasks).filter_map(move |task| {
                let at = b + i64::from(task.at);
                let batch_step = if at < 0 { step.checked_sub(1)? } else { step };
                let batch = u32::try_from(if at < 0 { at + i64::from(batches) } else { at }).ok()?;
                (batch < batches && (batch_step < step || !ends)).then_some(Run {
                    task,
                    of: batch_step,
                    batch,
                })
            })
        };
        (0..i64::from(batches)).flat_map(turn).collect()
    }

    /// What is run in a step of so many micro-batches: tasks, and the micro-batch of each. Where steps go on, with what is left
    /// of it at its end.
    pub fn tasks(&self, batches: u32) -> impl Iterator<Item = (&Task, u32)> {
        each_once(self.loops.iter().flat_map(move |it| it.tasks_of(batches)))
    }

    /// What is run in loops that have only so many turns, of a step that is as long as they are.
    pub fn early_tasks(&self) -> impl Iterator<Item = (&Task, u32)> {
        let early = self.loops.iter().filter(|it| it.iterations.is_some());
        each_once(early.flat_map(|it| it.tasks_of(u32::MAX)))
    }
}

/// Without what has run before.
fn each_once<'t>(tasks: impl Iterator<Item = (&'t Task, u32)>) -> impl Iterator<Item = (&'t Task, u32)> {
    let mut run = HashSet::new();
    tasks.filter(move |(task, batch)| run.insert((task.block, task.pass(), *batch)))
}

impl Loop {
    pub fn over_all(tasks: Vec<Task>) -> Self {
        Self { every: 1, iterations: None, tasks }
    }

    /// The `b` of the first turn.
    pub fn first(&self) -> i64 {
        if self.iterations.is_some() {
            return 0;
        }
        let most = self.tasks.iter().map(|task| i64::from(task.at)).max().unwrap_or(0);
        let every = i64::from(self.every.max(1));
        -(most.div_euclid(every) * every)
    }

    /// How far beyond the number of micro-batches turns go on: `b` is less than that and so many.
    pub fn beyond(&self) -> i64 {
        -self.tasks.iter().map(|task| i64::from(task.at)).min().unwrap_or(0)
    }

    /// Where a loop with so many turns ends: `b` is less than that.
    pub fn end(&self) -> Option<i64> {
        self.iterations.map(|iterations| i64::from(iterations) * i64::from(self.every))
    }

    fn tasks_of(&self, batches: u32) -> impl Iterator<Item = (&Task, u32)> {
        let (first, end) = (self.first(), self.end().unwrap_or(i64::from(batches) + self.beyond()));
        (first..end).step_by(self.every.max(1) as usize).flat_map(move |b| {
            let batch =
                move |task: &Task| u32::try_from(b + i64::from(task.at)).ok().filter(|it| *it < batches);
            self.tasks.iter().filter_map(move |task| Some((task, batch(task)?)))
        })
    }
}
