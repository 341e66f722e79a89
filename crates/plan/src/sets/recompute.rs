//! `recompute`: each layer that repeats is computed again for backward, and only what it reads is kept; of a model without
//! layers, [`segments`] of its operators. With `recompute:selective` also what operators give that are dear to compute; with
//! `recompute:attention` only what products with weights give; with `recompute:none` everything is kept, also where the model
//! itself says otherwise.

use std::collections::{BTreeMap, HashMap};

use diag::{Error, Result};
use graph::OpId;

use super::segments::{save, segments};
use super::{Argument, Auto, AxisPlace, Model, Set};
use crate::Draft;
use crate::glob::enclosing;
use crate::recompute::{is_dear, products};
use crate::select::folded_path;

pub(super) const SET: Set = Set {
    besides: &[("", all), ("selective", selective), ("attention", attention), ("none", none)],
    auto: Auto::Recompute(&[Argument::Word("selective"), Argument::Word("attention"), Argument::None]),
    saves: &[Argument::None],
    examples: &["data x recompute"],
    ..Set::new(
        "recompute",
        "layers that repeat are recomputed for backward; without such layers, segments of operators",
    )
};

fn all(model: &Model<'_>, draft: &mut Draft<'_>, _: &AxisPlace<'_>) -> Result<()> {
    spans(model)?.iter().for_each(|layer| draft.recompute(layer.clone()));
    Ok(())
}

fn selective(model: &Model<'_>, draft: &mut Draft<'_>, _: &AxisPlace<'_>) -> Result<()> {
    all_but(model, draft, |op| is_dear(model.graph, op))
}

fn attention(model: &Model<'_>, draft: &mut Draft<'_>, _: &AxisPlace<'_>) -> Result<()> {
    let products = products(model.graph);
    all_but(model, draft, |op| products.binary_search(&op).is_ok())
}

fn all_but(model: &Model<'_>, draft: &mut Draft<'_>, is_kept: impl Fn(OpId) -> bool) -> Result<()> {
    for layer in spans(model)? {
        draft.recompute(layer.iter().copied().filter(|op| !is_kept(*op)).collect());
    }
    Ok(())
}

/// Also of a model that says otherwise.
fn none(_: &Model<'_>, draft: &mut Draft<'_>, _: &AxisPlace<'_>) -> Result<()> {
    draft.recompute(vec![]);
    Ok(())
}

fn spans<'m>(model: &'m Model<'_>) -> Result<&'m [Vec<OpId>]> {
    layers_or_segments(model, "recompute")
}

/// The layers of a model, or segments of its operators where it has none, or none that keep less than they read. Refuses
/// a model without a backward.
pub(super) fn layers_or_segments<'m>(model: &'m Model<'_>, set: &str) -> Result<&'m [Vec<OpId>]> {
    let layers = layers(model);
    let saves = || *model.layers_save.get_or_init(|| save(model, layers));
    if !layers.is_empty() && saves() {
        return Ok(layers);
    }
    let segments = model.segments.get_or_init(|| segments(model));
    if segments.is_empty() && !layers.is_empty() {
        return Ok(layers);
    }
    if segments.is_empty() {
        return Err(Error::new(
            "SW0309",
            format!("`{set}` finds nothing that is saved for backward in {}", model.graph.model),
        )
        .why("it has no layers that repeat, and no operator of it gets a gradient")
        .fix(format!("leave `{set}` out, or let some parameter or input of the model need a gradient")));
    }
    Ok(segments)
}

/// A module whose name is a number.
struct NumberedModule {
    /// How many names its path has.
    depth: usize,
    ops: Vec<OpId>,
    /// Whether another module of such a list does the same.
    repeats: bool,
}

/// The operators of each module that repeats; where such a module is almost all made of others that all repeat, these
/// are the layers.
pub(super) fn layers<'m>(model: &'m Model<'_>) -> &'m [Vec<OpId>] {
    model.layers.get_or_init(|| repeating(model))
}

fn repeating(model: &Model<'_>) -> Vec<Vec<OpId>> {
    let mut layers: Vec<Vec<OpId>> = vec![];
    let mut open = numbered(model, model.graph.op_ids(), 0);
    while let Some(module) = open.pop() {
        let inner = numbered(model, module.ops.iter().copied(), module.depth);
        let covered: usize = inner.iter().map(|it| it.ops.len()).sum();
        let made_of_layers = covered * 4 >= module.ops.len() * 3 && inner.iter().all(|it| it.repeats);
        if module.repeats && !made_of_layers {
            layers.push(module.ops);
        } else {
            open.extend(inner);
        }
    }
    layers.sort();
    layers
}

/// Operators by the path up to the next number, from a depth on.
fn numbered(model: &Model<'_>, ops: impl Iterator<Item = OpId>, depth: usize) -> Vec<NumberedModule> {
    let mut by_path: BTreeMap<&str, (usize, Vec<OpId>)> = BTreeMap::new();
    for op in ops {
        let path = &model.graph.op(op).module[..];
        if let Some((at, module)) = enclosing(path).enumerate().skip(depth).find(|(_, path)| is_number(path))
        {
            by_path.entry(module).or_insert_with(|| (at + 1, vec![])).1.push(op);
        }
    }
    let is = |(path, (_, ops)): (&&str, &(usize, Vec<OpId>))| (folded_path(parent(path)), does(model, ops));
    let all: Vec<_> = by_path.iter().map(is).collect();
    let mut counts: HashMap<_, usize> = HashMap::new();
    all.iter().for_each(|one| *counts.entry(one).or_default() += 1);
    let modules = by_path.into_values().zip(&all);
    modules.map(|((depth, ops), one)| NumberedModule { depth, ops, repeats: counts[one] > 1 }).collect()
}

/// What a module does that is dear to compute, or all that it does if nothing is: layers with and without a mask, a
/// shift or dropout are alike.
fn does<'m>(model: &Model<'m>, ops: &[OpId]) -> Vec<&'m str> {
    let target = |op: &OpId| &model.graph.op(*op).target[..];
    let dear: Vec<&str> = ops.iter().filter(|op| is_dear(model.graph, **op)).map(target).collect();
    if dear.is_empty() { ops.iter().map(target).collect() } else { dear }
}

/// Also of a module that is called again: `h.0@1`.
fn is_number(path: &str) -> bool {
    let name = path.rsplit('.').next().unwrap_or_default();
    let name = name.split('@').next().unwrap_or_default();
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_digit())
}

fn parent(path: &str) -> &str {
    path.rsplit_once('.').map_or("", |(parent, _)| parent)
}
