//! Where parameters live between steps, those that live alike together.

use std::collections::BTreeMap;

use graph::{Graph, Source};
use plan::{Gather, Plan, Reduce};

/// Parameters of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptParams {
    /// Among how many devices each is divided.
    pub over: usize,
    pub gather: Gather,
    pub reduce: Reduce,
    pub count: usize,
    pub bytes: u64,
}

/// Those that are divided, by how; all others are where they are read.
pub fn kept(graph: &Graph, plan: &Plan) -> Vec<KeptParams> {
    let mut counts: BTreeMap<(usize, Gather, Reduce), (usize, u64)> = BTreeMap::new();
    for tensor in &graph.tensors {
        let Source::Param { names, .. } = &tensor.source else { continue };
        let Some(sharding) = names.first().and_then(|name| plan.param_shardings.get(name)) else {
            continue;
        };
        let over = sharding.groups.first().map_or(1, Vec::len);
        let entry = counts.entry((over, sharding.gather, sharding.reduce)).or_default();
        entry.0 += 1;
        entry.1 += tensor.numel().unsigned_abs() * tensor.dtype.bytes() as u64;
    }
    let kept_params =
        |((over, gather, reduce), (count, bytes))| KeptParams { over, gather, reduce, count, bytes };
    counts.into_iter().map(kept_params).collect()
}
