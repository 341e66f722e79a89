//! `coshard`: the dims that `megatron` splits over devices, split over time on each device: the
//! parts of an operator run one after another, and are computed again one after another for backward, so
//! that only one part's activations live.
//!
//! Without a number each dim has as many parts as it takes that no part has more alive than the largest of all the
//! values that such operators are given, which live anyway: feature maps that are large have more parts than small ones, and
//! what is small from the start is not computed again.

use std::collections::BTreeMap;

use diag::Result;
use graph::{OpId, TensorId};
use rules::Joined;
use rules::families::{self, View};

use super::{Along, Auto, AxisPlace, Model, Set, megatron, recompute};
use crate::Draft;

pub(super) const SET: Set = Set {
    along: Some(Along {
        chunks: Some(chunks),
        ..Along::new(|model, parts| megatron::choose(model, if parts == 1 { 1 } else { 2 }), megatron::why)
    }),
    besides: &[("", again)],
    auto: Auto::OverTime,
    examples: &["coshard", "coshard:2"],
    ..Set::new(
        "coshard",
        "splits the dims that `megatron` would, and runs the parts one after another on one device",
    )
};

/// The most parts where the name says none: each is called by itself, and small calls are slow ones.
const MOST_PARTS: u64 = 8;

fn chunks(model: &Model<'_>, choice: &[Option<usize>], parts: u32) -> Vec<u32> {
    let size = |op: OpId, index: usize| model.analysis.op(op).loops[index].size;
    let wanted = if parts == 0 { part_counts(model, choice) } else { vec![parts; choice.len()] };
    let most = |op: OpId| Some(u32::try_from(size(op, choice[op.index()]?)).unwrap_or(u32::MAX));
    model.graph.op_ids().map(|op| most(op).map_or(1, |most| most.min(wanted[op.index()]))).collect()
}

/// For each operator the parts of its chosen dim.
fn part_counts(model: &Model<'_>, choice: &[Option<usize>]) -> Vec<u32> {
    let class = |op: OpId| choice[op.index()].map(|index| model.classes.of_loop(op, index));
    let mut inside = vec![0; model.classes.all.len()];
    let mut given = 0;
    let needs_grad = model.graph.needs_grad();
    for op in model.graph.op_ids() {
        let (Some(index), Some(class)) = (choice[op.index()], class(op)) else { continue };
        inside[class] += made(model, op, index, &needs_grad);
        given = given.max(read(model, op, index, &needs_grad));
    }
    let count = |class: usize| u64::div_ceil(inside[class], given.max(1)).clamp(1, MOST_PARTS);
    let count = |op: OpId| class(op).map_or(1, |class| u32::try_from(count(class)).unwrap_or(1));
    model.graph.op_ids().map(count).collect()
}

/// Bytes that an operator makes and keeps, of which each part has its own.
fn made(model: &Model<'_>, op: OpId, index: usize, needs_grad: &[bool]) -> u64 {
    let (view, rule) = (View::new(model.graph, op), model.analysis.rules[op.index()].as_ref());
    let part = model.analysis.part(model.graph, op, &model.analysis.op(op).whole(), true, 0);
    let cost = families::cost_of(view, rule, &part, &families::executed(view, rule, &part), needs_grad);
    let outputs = model.graph.op(op).outputs.iter().zip(&model.analysis.op(op).outputs).zip(&cost.lies_in);
    let carrying =
        outputs.filter(|((_, carried), lies_in)| carried.contains(&Some(index)) && lies_in.is_none());
    let bytes: u64 = carrying.filter_map(|((tensor, _), _)| *tensor).map(|tensor| bytes(model, tensor)).sum();
    bytes + cost.kept.more + cost.meanwhile.backward
}

/// The largest value with a gradient that all parts of an operator read alike, and that no weight is.
fn read(model: &Model<'_>, op: OpId, index: usize, needs_grad: &[bool]) -> u64 {
    let inputs = model.graph.op(op).inputs().into_iter().zip(&model.analysis.op(op).inputs);
    let same = inputs.filter(|(_, carried)| !carried.contains(&Some(index)));
    let values = same.filter(|(t, _)| needs_grad[t.index()] && !model.is_weight(*t));
    values.map(|(tensor, _)| bytes(model, tensor)).max().unwrap_or(0)
}

fn bytes(model: &Model<'_>, tensor: TensorId) -> u64 {
    u64::try_from(model.graph.tensor(tensor).bytes()).unwrap_or(0)
}

/// What is recomputed together: operators whose parts run one after another, as far as one reads what
/// another makes, and no farther than a layer goes.
fn again(model: &Model<'_>, draft: &mut Draft<'_>, _: &AxisPlace<'_>) -> Result<()> {
    let in_turn: Vec<bool> = model.graph.op_ids().map(|op| repeats(draft.devices_of(op))).collect();
    let mut layer = vec![None; in_turn.len()];
    for (number, ops) in recompute::layers(model).iter().enumerate() {
        ops.iter().for_each(|op| layer[op.index()] = Some(number));
    }
    let mut spans = Joined::new(in_turn.len());
    for op in model.graph.op_ids().filter(|op| in_turn[op.index()]) {
        let together = |reader: &&OpId| in_turn[reader.index()] && layer[reader.index()] == layer[op.index()];
        for reader in model.readers[op.index()].iter().filter(together) {
            spans.join(op.index(), reader.index());
        }
    }
    let mut together: BTreeMap<usize, Vec<OpId>> = BTreeMap::new();
    for op in model.graph.op_ids().filter(|op| in_turn[op.index()]) {
        together.entry(spans.first(op.index())).or_default().push(op);
    }
    together.into_values().for_each(|span| draft.recompute(span));
    Ok(())
}

fn repeats(mut devices: Vec<u32>) -> bool {
    devices.sort_unstable();
    devices.windows(2).any(|two| two[0] == two[1])
}
