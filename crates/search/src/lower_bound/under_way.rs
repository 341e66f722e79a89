//! What of all blocks of a stage is kept at once, under schedules that know the order of all their tasks.
//!
//! A device keeps what a block's forward made for a micro-batch until the backward of that begins to be over: in the order
//! in which it runs them, the most that is there at any time is no more than what its rank needs.

use graph::{Source, TensorId};
use plan::{Plan, Schedule};
use schedule::{Block, Pass, Shape, Times, simulate};

use super::stages::Stages;
use crate::Question;

/// What a block keeps of a micro-batch, and the most that is there besides in its backward, where what is already gone is
/// taken off.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct OfBlock {
    pub(super) kept: u64,
    pub(super) besides: u64,
}

impl OfBlock {
    /// The operator before those that are known: what it keeps, and what is there besides while backward is at it.
    pub(super) fn add(&mut self, kept: u64, besides: u64) {
        self.besides = self.besides.max(besides.saturating_sub(self.kept));
        self.kept += kept;
    }
}

/// For each stage the most bytes, where blocks keep this of a micro-batch. None where the order may be another one.
pub(super) fn most(
    question: &Question<'_>,
    plan: &Plan,
    stages: &Stages<'_>,
    arriving: &[bool],
    kept: &[OfBlock],
) -> Option<Vec<u64>> {
    let is_known = matches!(plan.schedule, Schedule::Gpipe | Schedule::Interleaved | Schedule::ZbV);
    let is_named = plan.timetables.is_empty() && plan.before.is_empty();
    let shape = is_known.then(|| shape(question, plan, stages, arriving)).flatten().filter(|_| is_named)?;
    let orders = plan.schedule.order(&shape, &[])?;
    // What a rank needs is told of a step that has as many micro-batches as blocks at least, and under `gpipe` all.
    let batches = match plan.schedule {
        Schedule::Gpipe => question.batches,
        _ => question.batches.min(plan.block_count()),
    };
    let lanes = simulate(&shape, &orders, batches, Times::EQUAL).ok()?;
    let of_lane = |lane: &schedule::Lane| {
        let (mut now, mut most) = (0, 0);
        for (task, _, _) in &lane.tasks {
            match task.pass {
                Pass::Forward => now += kept[task.block].kept,
                Pass::Backward | Pass::Inputs => {
                    most = most.max(now + kept[task.block].besides);
                    now -= kept[task.block].kept;
                }
                Pass::Weights => {}
            }
            most = most.max(now);
        }
        most
    };
    Some(lanes.iter().map(of_lane).collect())
}

/// The blocks on their stages, if each is on one, and the first one trains.
fn shape(question: &Question<'_>, plan: &Plan, stages: &Stages<'_>, arriving: &[bool]) -> Option<Shape> {
    let graph = question.graph;
    // Blocks that share what forward updates are ordered by that, too.
    if !graph.updates.is_empty() {
        return None;
    }
    // A block may compute itself what is made of constants alone.
    let constant = rules::of_constants(graph, question.analysis);
    let mut blocks = vec![Block::default(); plan.block_count() as usize];
    let mut devices: Vec<Option<Vec<u32>>> = vec![None; stages.count];
    let mut last: Option<(usize, &[u32])> = None;
    for op in graph.op_ids() {
        let (block, stage) = (plan.block(op) as usize, stages.of[op.index()]);
        // Most operators share a list.
        let list = &plan.op(op).devices[..];
        if last.is_none_or(|(known, other)| known != stage || !std::ptr::eq(other, list)) {
            let mut on = list.to_vec();
            on.sort_unstable();
            on.dedup();
            if *devices[stage].get_or_insert_with(|| on.clone()) != on {
                return None;
            }
            last = Some((stage, list));
        }
        let trains = |tensor: TensorId| {
            let is_trained = matches!(graph.tensor(tensor).source, Source::Param { frozen: false, .. });
            is_trained && arriving[tensor.index()]
        };
        blocks[block].trains |= graph.op(op).inputs().into_iter().any(trains);
        if !blocks[block].devices.contains(&stage) {
            blocks[block].devices.push(stage);
        }
        let makers = graph.op(op).inputs().into_iter().filter_map(|tensor| graph.producer(tensor));
        for (maker, _) in makers.filter(|(maker, _)| !constant[maker.index()]) {
            let maker = plan.block(maker) as usize;
            if maker != block && !blocks[block].reads.contains(&maker) {
                blocks[block].reads.push(maker);
            }
        }
    }
    let is_on_one = |block: &Block| block.devices.len() == 1;
    // In a chain nothing that a device keeps of one block for another changes their order.
    let is_chain = (1..blocks.len()).all(|block| blocks[block].reads.contains(&(block - 1)));
    // Gradients go back through all blocks behind one that trains, and none before the first.
    let is_plain = is_chain && blocks[0].trains && blocks.iter().all(is_on_one);
    is_plain.then_some(Shape { blocks, ..Shape::default() })
}
