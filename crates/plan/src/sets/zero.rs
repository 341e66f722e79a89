//! `zero1`, `zero2`, `zero3`: the batch is split as `data` does, and devices that would hold the same of a
//! parameter divide it, with its gradient and the optimizer's state.

use std::sync::Arc;

use diag::Result;
use graph::{Graph, OpId, TensorId};
use rules::Kind;

use super::{Along, Auto, AxisPlace, Model, Set, Shards, data};
use crate::param_sharding::{Gather, ParamSharding, Reduce, names};
use crate::{Draft, On};

pub(super) const ONE: Set = Set {
    along: Some(ALONG),
    besides: &[("", |model, draft, place| divide(model, draft, place, Gather::Step, Reduce::Last))],
    shards: Some(Shards::State),
    auto: Auto::Replicas,
    ..Set::new("zero1", "as `data`, with the optimizer state sharded; parameters are gathered once a step")
};

pub(super) const TWO: Set = Set {
    along: Some(ALONG),
    besides: &[("", |model, draft, place| divide(model, draft, place, Gather::Step, Reduce::Each))],
    shards: Some(Shards::Gradients),
    ..Set::new("zero2", "as `zero1`, with gradients sharded too, and reduced with each micro-batch")
};

pub(super) const THREE: Set = Set {
    along: Some(ALONG),
    besides: &[("", |model, draft, place| divide(model, draft, place, Gather::Pass, Reduce::Each))],
    aliases: &["fsdp"],
    shards: Some(Shards::Parameters),
    auto: Auto::Replicas,
    ..Set::new("zero3", "as `zero2`, with parameters sharded too, and gathered for each layer when it runs")
};

const ALONG: Along = Along {
    choose: data::choose,
    why: data::why,
    chunks: None,
    must_find: true,
    stages: None,
    places: None,
    exchange: None,
};

fn divide(
    model: &Model<'_>,
    draft: &mut Draft<'_>,
    place: &AxisPlace<'_>,
    gather: Gather,
    reduce: Reduce,
) -> Result<()> {
    if place.size == 1 {
        return Ok(());
    }
    let groups = ParamSharding::over(draft.devices(), place.size, place.stride);
    let graph = model.graph;
    let uses = graph.uses();
    for tensor in graph.tensor_ids().filter(|tensor| !names(graph, *tensor).is_empty()) {
        let same = uses[tensor.index()].iter().all(|(op, input)| reads_same(model, place, *op, *input));
        if same && divisible(graph, tensor, place.size) {
            draft.sharding(
                tensor,
                Some(ParamSharding { groups: Arc::clone(&groups), dim: None, gather, reduce }),
            );
        }
    }
    Ok(())
}

/// Whether the devices along the axis read the same of an operator's input.
fn reads_same(model: &Model<'_>, place: &AxisPlace<'_>, op: OpId, input: usize) -> bool {
    let dims = model.analysis.op(op);
    let once = model.analysis.rules[op.index()].as_ref().is_some_and(|rule| rule.inputs[input].once);
    match place.choice[op.index()] {
        None | Some(On::Copies) => true,
        Some(On::Value) => !once,
        Some(on @ On::Exchange { .. }) => !on.loops().any(|index| dims.inputs[input].contains(&Some(index))),
        Some(On::Loop(index)) => {
            let reduced = matches!(dims.loops[index].kind, Kind::Reduce(_));
            !(dims.inputs[input].contains(&Some(index)) || once && reduced)
        }
    }
}

/// Whether some dim is as long as there are parts: less is not worth a message.
fn divisible(graph: &Graph, tensor: TensorId, parts: u32) -> bool {
    graph.tensor(tensor).shape.iter().any(|size| *size >= i64::from(parts))
}
