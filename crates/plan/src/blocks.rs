//! Blocks of a model, and the order in which they run.
//!
//! A block is a set of operators that run together, forward and backward, for one micro-batch after another. Blocks
//! are numbered so that each reads what earlier ones make.
//!
//! ```text
//! block "wte" "h.0.*" "h.1.*"          # the first block; operators that no line names go with what they read
//! block %linear_8..%add_12             # the next: all operators from one to another, in the graph's order
//! schedule 1f1b                        # or gpipe, interleaved, zb-h1, zb-v, 2bw
//! ```

use diag::{Error, Result};
use graph::{Graph, OpId};
use schedule::Schedule;

use crate::nearby::nearby;
use crate::op_index::OpIndex;
use crate::select::{clip, one_or_run};
use crate::{Plan, place, timetables, title};

/// A schedule by its name.
pub fn schedule_named(name: &str) -> Result<Schedule> {
    let names = || Schedule::NAMES.iter().map(|row| row.1);
    Schedule::named(name).ok_or_else(|| {
        let near = nearby(name, names());
        let meant = near.first().map_or_else(String::new, |name| format!("did you mean `{name}`? "));
        let all = names().map(|name| format!("`schedule {name}`")).collect::<Vec<_>>().join(", ");
        Error::new("SW0323", format!("there is no schedule named `{}`", clip(name)))
            .fix(format!("{meant}write one of {all}"))
    })
}

impl Plan {
    /// The block of an operator.
    pub fn block(&self, op: OpId) -> u32 {
        self.blocks.get(op.index()).copied().unwrap_or(0)
    }

    /// How many blocks there are.
    pub fn block_count(&self) -> u32 {
        self.blocks.iter().max().map_or(1, |last| last + 1)
    }
}

/// The operators that a line names.
pub(crate) fn read(line: &str, index: &OpIndex<'_>) -> Result<Vec<OpId>> {
    let mut ops = vec![];
    for who in words(line) {
        ops.extend(one_or_run(who, index)?);
    }
    if ops.is_empty() {
        return Err(
            Error::new("SW0301", "a block without operators").fix("name them: `block \"h.0.*\" \"h.1.*\"`")
        );
    }
    Ok(ops)
}

/// Words apart by spaces, as far as these are not in quotes.
fn words(line: &str) -> Vec<&str> {
    let mut quoted = false;
    let apart = |c: char| {
        quoted ^= c == '"';
        c.is_whitespace() && !quoted
    };
    line.split(apart).filter(|word| !word.is_empty()).collect()
}

pub(crate) fn print(plan: &Plan, name: impl Fn(OpId) -> String) -> String {
    let mut text = if plan.tokens > 1 { format!("tokens {}\n", plan.tokens) } else { String::new() };
    if plan.blocks.is_empty() {
        return text;
    }
    for block in 0..plan.block_count() {
        let ops: Vec<usize> = (0..plan.blocks.len()).filter(|&at| plan.blocks[at] == block).collect();
        text += "block";
        for run in ops.chunk_by(|a, b| a + 1 == *b) {
            text += &match run {
                [one] => format!(" {}", name(OpId::new(*one))),
                [first, .., last] => format!(" {}..{}", name(OpId::new(*first)), name(OpId::new(*last))),
                [] => unreachable!("a run has something in it"),
            };
        }
        text += "\n";
    }
    text + &format!("schedule {}\n", plan.schedule.name())
}

/// Those that nothing was said of go with what they read; what reads nothing that is made, with its first reader;
/// and what nothing reads, with the operator before it.
pub(crate) fn completed(graph: &Graph, said: &[Option<u32>]) -> Vec<u32> {
    let mut blocks = said.to_vec();
    let makers = |op: OpId| graph.op(op).inputs().into_iter().filter_map(|t| graph.producer(t));
    for op in graph.op_ids().filter(|op| said[op.index()].is_none()) {
        blocks[op.index()] = makers(op).filter_map(|(maker, _)| blocks[maker.index()]).max();
    }
    let mut read: Vec<Option<u32>> = vec![None; blocks.len()];
    for op in (0..blocks.len()).rev().map(OpId::new) {
        blocks[op.index()] = blocks[op.index()].or(read[op.index()]);
        let Some(block) = blocks[op.index()] else { continue };
        for (maker, _) in makers(op) {
            let first = &mut read[maker.index()];
            *first = Some(first.map_or(block, |known| known.min(block)));
        }
    }
    let mut last = blocks.iter().flatten().next().copied().unwrap_or(0);
    let settle = |block: Option<u32>| {
        last = block.unwrap_or(last);
        last
    };
    blocks.into_iter().map(settle).collect()
}

/// What runs in one go reads nothing that is made later.
pub(crate) fn validate(plan: &Plan, graph: &Graph) -> Result<()> {
    let count = plan.block_count();
    timetables::validate(plan, count * plan.tokens)?;
    if plan.blocks.is_empty() {
        return Ok(());
    }
    if let Some(empty) = (0..count).find(|block| !plan.blocks.contains(block)) {
        return Err(Error::new("SW0324", format!("block {empty} of {count} has no operators"))
            .why("each operator is in one block, the last one that names it")
            .fix("leave the block out, or name operators that no later block names"));
    }
    for op in graph.op_ids() {
        for (maker, _) in graph.op(op).inputs().into_iter().filter_map(|t| graph.producer(t)) {
            let (first, then) = (plan.block(maker), plan.block(op));
            if first > then {
                return Err(backwards(plan, graph, maker, op).at(place(graph, op)));
            }
        }
    }
    match plan.order.iter().find(|(before, after)| plan.block(*before) > plan.block(*after)) {
        Some((before, after)) => Err(against(plan, graph, *before, *after).at(place(graph, *before))),
        None => Ok(()),
    }
}

fn backwards(plan: &Plan, graph: &Graph, maker: OpId, reader: OpId) -> Error {
    let (late, early) = (plan.block(maker), plan.block(reader));
    let error = Error::new("SW0325", format!("block {early} reads what block {late} makes"));
    let why =
        format!("{} of block {early} needs {} of block {late}", title(graph, reader), title(graph, maker));
    match way_back(plan, graph, early, late) {
        Some((from, to)) => error
            .why(format!(
                "{why}, and {} of block {late} needs {} of block {early}: the two form a cycle",
                title(graph, to),
                title(graph, from)
            ))
            .fix("put what lies between them into one block"),
        None => {
            error.why(why).fix(format!("write the lines of the blocks {early} and {late} in the other order"))
        }
    }
}

/// An edge from one block to another.
fn way_back(plan: &Plan, graph: &Graph, from: u32, to: u32) -> Option<(OpId, OpId)> {
    let edges = |op: OpId| {
        let makers = graph.op(op).inputs().into_iter().filter_map(|t| graph.producer(t));
        makers.map(move |(maker, _)| (maker, op))
    };
    graph.op_ids().flat_map(edges).find(|(a, b)| plan.block(*a) == from && plan.block(*b) == to)
}

fn against(plan: &Plan, graph: &Graph, before: OpId, after: OpId) -> Error {
    let what = format!(
        "the plan puts {} of block {} before {} of block {}",
        title(graph, before),
        plan.block(before),
        title(graph, after),
        plan.block(after)
    );
    Error::new("SW0325", what)
        .why("blocks run in their order")
        .fix("remove the `order` line, or put both into one block")
}
