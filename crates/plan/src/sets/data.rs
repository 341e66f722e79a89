//! `data`: every operator splits the batch, or rows beside it, wherever it has them.

use graph::OpId;

use super::batch::split_classes;
use super::{Along, Auto, Model, Set, Shards, too_few};

pub(super) const SET: Set = Set {
    along: Some(Along::new(choose, why)),
    aliases: &["ddp", "dp"],
    shards: Some(Shards::Nothing),
    auto: Auto::Replicas,
    ..Set::new("data", "data parallelism: operators are split along the batch, the first dim of the inputs")
};

pub(super) fn choose(model: &Model<'_>, parts: u32) -> Vec<Option<usize>> {
    let split = model.split.get_or_init(|| split_classes(model));
    let fits = |op, class: &usize| {
        let index = model.classes.open_loop(model.analysis, op, *class)?;
        (model.analysis.op(op).loops[index].size >= i64::from(parts)).then_some(index)
    };
    let chosen: Vec<_> =
        model.graph.op_ids().map(|op| split.iter().find_map(|class| fits(op, class))).collect();
    // What is made of nothing is made whole where it is read whole.
    let is_read = |op: OpId| model.readers[op.index()].iter().any(|reader| chosen[reader.index()].is_some());
    let wanted = |op: OpId| !model.graph.op(op).inputs().is_empty() || is_read(op);
    model.graph.op_ids().map(|op| chosen[op.index()].filter(|_| wanted(op))).collect()
}

pub(super) fn why(model: &Model<'_>, op: OpId, parts: u32) -> String {
    let split = model.split.get_or_init(|| split_classes(model));
    let loop_of = |class: &usize| model.classes.open_loop(model.analysis, op, *class);
    split.iter().find_map(loop_of).map_or_else(
        || "it has no batch that may be split".into(),
        |index| match model.analysis.op(op).loops[index].size {
            size if size >= i64::from(parts) => "its result is read whole".into(),
            size => too_few("its batch", size, parts),
        },
    )
}
