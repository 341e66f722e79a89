//! `coshard`: the dims that `megatron` splits over devices, split over time on each device: the
//! parts of an operator run one after another, and are computed again one after another for backward, so
//! that only one part's activations live.

use diag::Result;
use graph::OpId;

use super::{Along, Model, Place, Set, megatron};
use crate::Draft;

pub(super) const SET: Set = Set {
    name: "coshard",
    doc: "the dims that `megatron` would split, their parts one after another on the same device",
    along: Some(Along {
        choose: megatron::choose,
        why: megatron::why,
        in_turn: true,
        must_find: true,
        stages: None,
    }),
    rounds: None,
    besides: &[("", recompute)],
};

/// What is recomputed together: operators whose parts run one after another, as far as one reads what
/// another makes.
fn recompute(model: &Model<'_>, draft: &mut Draft<'_>, _: &Place<'_>) -> Result<()> {
    let in_turn: Vec<bool> = model.graph.op_ids().map(|op| repeats(draft.devices_of(op))).collect();
    let mut span: Vec<usize> = (0..in_turn.len()).collect();
    for op in model.graph.op_ids().filter(|op| in_turn[op.index()]) {
        for reader in model.readers[op.index()].iter().filter(|reader| in_turn[reader.index()]) {
            let (a, b) = (span[op.index()], span[reader.index()]);
            span.iter_mut().filter(|it| **it == a.max(b)).for_each(|it| *it = a.min(b));
        }
    }
    let first = |op: &OpId| in_turn[op.index()] && span[op.index()] == op.index();
    for first in model.graph.op_ids().filter(first) {
        let same = |op: &OpId| in_turn[op.index()] && span[op.index()] == first.index();
        draft.recompute(model.graph.op_ids().filter(same).collect());
    }
    Ok(())
}

fn repeats(mut devices: Vec<u32>) -> bool {
    devices.sort_unstable();
    devices.windows(2).any(|two| two[0] == two[1])
}
