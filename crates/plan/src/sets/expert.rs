//! `expert`: the experts of mixtures are spread over the devices, and everything else splits the batch, as
//! `data` does. Where a token has fewer experts than there are devices, its rows go to its experts and back; else all
//! tokens are gathered for the experts, and what these give is summed into the tokens' places.

use graph::OpId;
use rules::families;

use super::{Along, Auto, Model, Set, data, too_few};
use crate::{On, exchange};

pub(super) const SET: Set = Set {
    along: Some(Along { exchange: Some(exchange), ..Along::new(choose, why) }),
    aliases: &["ep"],
    auto: Auto::Instead(|model, _| has_experts(model)),
    ..Set::new(
        "expert",
        "expert parallelism: mixtures are split along the experts, all other operators along the batch",
    )
};

/// Without experts that it may divide it divides nothing: that is `data`.
fn choose(model: &Model<'_>, parts: u32) -> Vec<Option<usize>> {
    let spread = |op: OpId| {
        let index = experts(model, op)?;
        (model.analysis.op(op).loops[index].size >= i64::from(parts)).then_some(index)
    };
    let spread: Vec<Option<usize>> = model.graph.op_ids().map(spread).collect();
    if spread.iter().all(Option::is_none) {
        return spread;
    }
    let batch = data::choose(model, parts).into_iter();
    batch.zip(spread).map(|(batch, expert)| expert.or(batch)).collect()
}

/// Rows of tokens for fewer experts than devices are fewer bytes than all tokens on all devices.
fn exchange(model: &Model<'_>, parts: u32) -> Vec<Option<On>> {
    let batch = data::choose(model, parts);
    let exchange_of = |op: OpId| {
        let experts = exchange::experts(model.graph, model.analysis, op)?;
        let chosen = *model.graph.op(op).inputs().get(CHOSEN)?;
        let slots = *model.graph.tensor(chosen).shape.get(1)?;
        let tokens = batch[op.index()].filter(|_| slots < i64::from(parts))?;
        Some(exchange::on_experts(tokens, experts))
    };
    model.graph.op_ids().map(exchange_of).collect()
}

/// The operand of the numbers of each token's experts.
const CHOSEN: usize = 1;

fn why(model: &Model<'_>, op: OpId, parts: u32) -> String {
    experts(model, op).map_or_else(
        || data::why(model, op, parts),
        |index| too_few("its mixture", model.analysis.op(op).loops[index].size, parts),
    )
}

fn has_experts(model: &Model<'_>) -> bool {
    model.graph.op_ids().any(|op| experts(model, op).is_some())
}

/// The loop over the experts of an operator that has some.
fn experts(model: &Model<'_>, op: OpId) -> Option<usize> {
    let dim = families::nature_of(&model.graph.op(op).target).experts?;
    model.analysis.op(op).loops.iter().position(|it| it.name == dim)
}
