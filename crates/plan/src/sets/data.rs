//! `data`: every operator splits the batch, wherever it has one.

use graph::{OpId, Source, TensorId};

use super::{Along, Model, Set, too_few};

pub(super) const SET: Set = Set {
    name: "data",
    doc: "every operator that has the batch splits it; the batch is the first dim of the inputs",
    along: Some(Along::of(choose, why)),
    aside: None,
    rounds: None,
    besides: &[],
};

pub(super) fn choose(model: &Model<'_>, parts: u32) -> Vec<Option<usize>> {
    let batch = batch_classes(model);
    let fits = |op, class: &usize| {
        let index = model.classes.open_loop(model.analysis, op, *class)?;
        (model.analysis.op(op).loops[index].size >= i64::from(parts)).then_some(index)
    };
    model.graph.op_ids().map(|op| batch.iter().find_map(|class| fits(op, class))).collect()
}

pub(super) fn why(model: &Model<'_>, op: OpId, parts: u32) -> String {
    let batch = batch_classes(model);
    let own = |class: &usize| model.classes.open_loop(model.analysis, op, *class);
    batch.iter().find_map(own).map_or_else(
        || "it has no batch that may be split".into(),
        |index| too_few("its batch", model.analysis.op(op).loops[index].size, parts),
    )
}

/// The classes of the first dims of the inputs that are as long as the first input's, and of what operators without a
/// rule give that read one of these: what a module that runs as it is makes of a batch begins with it again.
pub(super) fn batch_classes(model: &Model<'_>) -> Vec<usize> {
    let (size, mut classes) = of_inputs(model);
    for op in model.graph.op_ids().filter(|op| model.analysis.rules[op.index()].is_none()) {
        let it = model.graph.op(op);
        let begins = |id: TensorId| {
            (model.graph.tensor(id).shape.first() == Some(&size)).then(|| model.classes.of_factor(id, 0))
        };
        let reads = it.inputs().into_iter().filter_map(begins).any(|class| classes.contains(&class));
        if reads {
            classes.extend(it.outputs.iter().flatten().filter_map(|id| begins(*id)));
        }
    }
    classes.dedup();
    classes
}

/// How long the batch is; 0 if there is none.
pub(super) fn batch(model: &Model<'_>) -> i64 {
    of_inputs(model).0
}

/// How long the batch is, and the classes of the inputs' first dims that are so long.
fn of_inputs(model: &Model<'_>) -> (i64, Vec<usize>) {
    let mut size = None;
    let mut classes = vec![];
    for id in model.graph.tensor_ids() {
        let tensor = model.graph.tensor(id);
        let (Source::Input { .. }, Some(&first)) = (&tensor.source, tensor.shape.first()) else { continue };
        if first > 1 && *size.get_or_insert(first) == first {
            classes.push(model.classes.of_factor(id, 0));
        }
    }
    (size.unwrap_or(0), classes)
}
