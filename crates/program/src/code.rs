//! Codes, and the timetable that says in which order they run in a step.

use crate::{BufId, Instr};

/// Straight-line code of a role.
#[derive(Clone, Debug, PartialEq)]
pub struct Code {
    pub pass: Pass,
    /// What it is given, in this order: the inputs to forward, to backward the gradients of outputs that the
    /// caller gives, one for each output that leaves and needs a gradient.
    pub takes: Vec<BufId>,
    pub instrs: Vec<Instr>,
    /// What it gives: forward the graph's outputs, in their order, `None` for what does not leave; backward the
    /// gradients of inputs.
    pub gives: Vec<Option<BufId>>,
}

/// What a code is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Pass {
    /// Once a step, before all others: what is gathered for all of it.
    Begin,
    Forward,
    /// Gradients of leaves and shards add up over the micro-batches of a step. What communicates the sums
    /// ([`crate::Instr::settles`]) runs in those backwards only that the timetable says.
    Backward,
}

/// Order, the third primitive, completed: what a rank runs in a step, and when.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timetable {
    /// Whether the step begins with a code of its own.
    pub begins: bool,
    /// For each micro-batch of a step, one after the other, however many there are.
    pub each: Vec<Task>,
}

/// One code of one micro-batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Task {
    Forward,
    Backward {
        /// How often the scale of the step is a factor of what backward starts from. In a step with the scale s
        /// the gradients are those of s times the sum of all losses.
        scaled: u32,
        /// In which micro-batches the gradients of leaves are communicated, and go to the shards.
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
    pub fn new(pass: Pass) -> Self {
        Self { pass, takes: vec![], instrs: vec![], gives: vec![] }
    }
}

impl Pass {
    /// As in emitted code.
    pub fn name(self) -> &'static str {
        match self {
            Pass::Begin => "begin",
            Pass::Forward => "forward",
            Pass::Backward => "backward",
        }
    }
}

impl Task {
    pub fn pass(&self) -> Pass {
        match self {
            Task::Forward => Pass::Forward,
            Task::Backward { .. } => Pass::Backward,
        }
    }
}

impl Timetable {
    /// Each micro-batch forward and, where it is trained, backward; gradients are communicated with the last.
    pub fn in_turn(begins: bool, trains: bool) -> Self {
        let backward = Task::Backward { scaled: 1, settles: When::Last };
        Self { begins, each: std::iter::once(Task::Forward).chain(trains.then_some(backward)).collect() }
    }
}
