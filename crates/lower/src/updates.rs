//! Which rank computes the update of a parameter that ranks hold in parts, where the plan wants that of the whole.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use graph::{Graph, TensorId};
use plan::{Plan, is_updated_whole};
use program::{RankId, Role, Update};
use rules::{Analysis, Region};

/// Dealt out from the largest on, each to the rank that has got the least so far, among those that hold parts.
pub fn updates(graph: &Graph, analysis: &Analysis, plan: &Plan, roles: &[Role]) -> Vec<Update> {
    let mut tensors: Vec<(TensorId, Vec<RankId>)> = graph
        .tensor_ids()
        .filter(|tensor| is_updated_whole(plan, graph, *tensor))
        .filter_map(|tensor| Some((tensor, holders(roles, tensor, &Region::whole(&analysis.flat(tensor)))?)))
        .collect();
    let size = |tensor: TensorId| graph.tensor(tensor).shape.iter().product::<i64>();
    tensors.sort_by_key(|(tensor, _)| Reverse(size(*tensor)));
    let mut loads = vec![0; plan.devices as usize];
    let mut dealt = |(tensor, holders): (TensorId, Vec<RankId>)| {
        let rank = holders.into_iter().min_by_key(|rank| loads[rank.index()])?;
        loads[rank.index()] += size(tensor);
        Some(Update { tensor, rank })
    };
    let mut updates: Vec<Update> = tensors.into_iter().filter_map(&mut dealt).collect();
    updates.sort_by_key(|update| update.tensor);
    updates
}

/// The ranks that hold any of a tensor, in their order, if some of them have only parts.
fn holders(roles: &[Role], tensor: TensorId, whole: &Region) -> Option<Vec<RankId>> {
    let (mut ranks, mut divided) = (BTreeSet::new(), false);
    for role in roles {
        let of_it = role.table.shards.iter().filter(|shard| shard.tensor == tensor);
        for per_rank in of_it.map(|shard| &shard.region) {
            ranks.extend(&role.ranks);
            divided |= (0..role.ranks.len()).any(|at| per_rank.get(at) != whole);
        }
    }
    divided.then(|| ranks.into_iter().collect())
}
