//! What the batch of a model is: what the first dims of its inputs are along.
//!
//! Some models have inputs with other first dims: patches of images beside tokens, nodes beside edges. Others make rows
//! of their own: what a graph's edges look up. Where such rows are what much of the work is along, and no batch, they
//! are divided as the batch is.

use graph::{OpId, Source, TensorId};
use rules::{View, families};

use super::Model;

/// Of the work of a model rows have at least one part in so many, if they are divided.
const MUCH: u128 = 20;

/// The classes of the batch, and of rows beside it.
pub(super) fn split_classes(model: &Model<'_>) -> Vec<usize> {
    let mut split = batch_classes(model);
    let groups = groups(model);
    if groups.len() > 1 {
        for (_, rows) in groups {
            // Of the batch itself nothing is left.
            if is_much(model, work(model, &rows, &split)) {
                split.extend(rows);
            }
        }
    }
    split.extend(rows_made(model, &split));
    split
}

/// The classes of the rows that products with weights make which are along none of some classes, if these products
/// have much of the work together: their first dims. Beside a batch, dims of one element may stand before these, as before
/// the patches of all images.
fn rows_made(model: &Model<'_>, split: &[usize]) -> Vec<usize> {
    let mut rows = vec![];
    for op in model.graph.op_ids().filter(|op| is_product(model, *op) && !has_any(model, *op, split)) {
        let Some(id) = model.graph.op(op).outputs.first().copied().flatten() else { continue };
        let shape = &model.graph.tensor(id).shape;
        let leading = if split.is_empty() { 1 } else { shape.len() };
        if shape.iter().take(leading).any(|size| *size > 1) {
            rows.push(model.classes.of_factor(id, 0));
        }
    }
    rows.sort_unstable();
    rows.dedup();
    if is_much(model, work(model, &rows, split)) { rows } else { vec![] }
}

/// The classes of the first dims of the inputs that are as long as the first input's, and of what operators without a
/// rule give that read one of these: what a module that runs as it is makes of a batch begins with it again.
pub(super) fn batch_classes(model: &Model<'_>) -> Vec<usize> {
    let (size, mut classes) = of_batch(model);
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

/// Whether the batch has fewer elements than there are devices.
pub(super) fn is_short(model: &Model<'_>, devices: u32) -> bool {
    of_batch(model).0 < i64::from(devices)
}

/// How long the batch is, and the classes of the inputs' first dims that are so long: those of the first input, unless
/// nearly nothing of the work is along them, and some is along others.
fn of_batch(model: &Model<'_>) -> (i64, Vec<usize>) {
    let mut groups = groups(model);
    if groups.len() < 2 {
        return groups.pop().unwrap_or_default();
    }
    let much = |(_, classes): &(i64, Vec<usize>)| is_much(model, work(model, classes, &[]));
    let at = groups.iter().position(much).unwrap_or(0);
    groups.remove(at)
}

/// The lengths of the inputs' first dims, in their order, each with the classes of those that are so long. And of what
/// a product with a weight makes that is as long, and has none of these classes: a graph has its nodes again once their
/// messages are summed, and text its batch once the features of images are put into it.
fn groups(model: &Model<'_>) -> Vec<(i64, Vec<usize>)> {
    let mut groups = of_inputs(model);
    let known: Vec<usize> = groups.iter().flat_map(|group| group.1.iter().copied()).collect();
    for op in model.graph.op_ids().filter(|op| is_product(model, *op) && !has_any(model, *op, &known)) {
        let Some(id) = model.graph.op(op).outputs.first().copied().flatten() else { continue };
        let length = model.graph.tensor(id).shape.first();
        if let Some(group) = groups.iter_mut().find(|group| Some(&group.0) == length) {
            group.1.push(model.classes.of_factor(id, 0));
        }
    }
    groups
}

fn of_inputs(model: &Model<'_>) -> Vec<(i64, Vec<usize>)> {
    let mut groups: Vec<(i64, Vec<usize>)> = vec![];
    for id in model.graph.tensor_ids() {
        let tensor = model.graph.tensor(id);
        let (Source::Input { .. }, Some(&size)) = (&tensor.source, tensor.shape.first()) else { continue };
        if size > 1 {
            let class = model.classes.of_factor(id, 0);
            match groups.iter_mut().find(|group| group.0 == size) {
                Some(group) => group.1.push(class),
                None => groups.push((size, vec![class])),
            }
        }
    }
    groups
}

/// The operations of products with weights along some classes, and not along others.
fn work(model: &Model<'_>, along: &[usize], others: &[usize]) -> u128 {
    if along.is_empty() {
        return 0;
    }
    let ops = model.graph.op_ids().filter(|op| has_any(model, *op, along) && !has_any(model, *op, others));
    ops.map(|op| u128::from(products(model)[op.index()])).sum()
}

fn is_much(model: &Model<'_>, work: u128) -> bool {
    let all = || products(model).iter().copied().map(u128::from).sum::<u128>();
    work > 0 && work * MUCH >= all()
}

fn has_any(model: &Model<'_>, op: OpId, classes: &[usize]) -> bool {
    classes.iter().any(|class| model.classes.open_loop(model.analysis, op, *class).is_some())
}

/// For each operator its operations, if it is a product with a weight.
fn products<'m>(model: &'m Model<'_>) -> &'m [u64] {
    model.products.get_or_init(|| {
        let needs_grad = model.graph.needs_grad();
        let flops = |op: OpId| {
            let (view, rule) = (View::new(model.graph, op), model.analysis.rules[op.index()].as_ref());
            let whole = model.analysis.part(model.graph, op, &model.analysis.op(op).whole(), true, 0);
            let executed = families::executed(view, rule, &whole);
            families::cost_of(view, rule, &whole, &executed, &needs_grad).flops
        };
        model.graph.op_ids().map(|op| if is_product(model, op) { flops(op) } else { 0 }).collect()
    })
}

/// Whether an operator sums over a dim of a weight, and does not look up its rows.
fn is_product(model: &Model<'_>, op: OpId) -> bool {
    let dims = model.analysis.op(op);
    let made = |index: &usize| dims.outputs.iter().flatten().any(|carried| *carried == Some(*index));
    let looks_up = families::nature_of(&model.graph.op(op).target).looks_up;
    let mut inputs = model.graph.op(op).inputs().into_iter().zip(&dims.inputs);
    !looks_up && inputs.any(|(id, carried)| model.is_weight(id) && !carried.iter().flatten().all(made))
}
