//! `recompute`: each layer that repeats is computed again for backward, and only what it reads is kept. With
//! `recompute:selective` also what operators give that are dear to compute; with `recompute:none` everything is
//! kept, also where the model itself says otherwise.

use std::collections::BTreeMap;

use diag::{Error, Result};
use graph::OpId;

use super::{Model, Place, Set};
use crate::Draft;
use crate::recompute::is_dear;

pub(super) const SET: Set = Set {
    name: "recompute",
    doc: "each of the layers that repeat is computed again for backward",
    along: None,
    rounds: None,
    besides: &[("", all), ("selective", selective), ("none", none)],
};

fn all(model: &Model<'_>, draft: &mut Draft<'_>, _: &Place<'_>) -> Result<()> {
    found(model)?.into_iter().for_each(|layer| draft.recompute(layer));
    Ok(())
}

fn selective(model: &Model<'_>, draft: &mut Draft<'_>, _: &Place<'_>) -> Result<()> {
    for mut layer in found(model)? {
        layer.retain(|op| !is_dear(model.graph, *op));
        draft.recompute(layer);
    }
    Ok(())
}

/// Also of a model that says otherwise.
fn none(_: &Model<'_>, draft: &mut Draft<'_>, _: &Place<'_>) -> Result<()> {
    draft.recompute(vec![]);
    Ok(())
}

fn found(model: &Model<'_>) -> Result<Vec<Vec<OpId>>> {
    layers_for(model, "recompute")
}

/// Refuses a model without any.
pub(super) fn layers_for(model: &Model<'_>, set: &str) -> Result<Vec<Vec<OpId>>> {
    let layers = layers(model);
    if layers.is_empty() {
        return Err(Error::new("SW0309", format!("`{set}` finds no layers in {}", model.graph.model))
            .why("layers are modules of a list, such as `h.0` and `h.1`, of which two do the same")
            .fix(format!("say in a plan file which operators are meant: `{set} \"encoder\"`")));
    }
    Ok(layers)
}

/// A module whose name is a number.
struct Numbered {
    /// How many names its path has.
    depth: usize,
    ops: Vec<OpId>,
    /// Whether two modules beside each other, of which it is one or beside which it is, do the same.
    repeats: bool,
}

/// The operators of each module that repeats; where such a module is almost all made of others, these are
/// the layers.
fn layers(model: &Model<'_>) -> Vec<Vec<OpId>> {
    let mut layers: Vec<Vec<OpId>> = vec![];
    let mut open = numbered(model, model.graph.op_ids(), 0);
    while let Some(module) = open.pop() {
        let inner = numbered(model, module.ops.iter().copied(), module.depth);
        let covered: usize = inner.iter().filter(|it| it.repeats).map(|it| it.ops.len()).sum();
        if module.repeats && covered * 4 < module.ops.len() * 3 {
            layers.push(module.ops);
        } else {
            open.extend(inner);
        }
    }
    layers.sort();
    layers
}

/// Operators by the path up to the next number, from a depth on.
fn numbered(model: &Model<'_>, ops: impl Iterator<Item = OpId>, depth: usize) -> Vec<Numbered> {
    let mut found: BTreeMap<&str, (usize, Vec<OpId>)> = BTreeMap::new();
    for op in ops {
        let path = &model.graph.op(op).module[..];
        let ends = path.match_indices('.').map(|(at, _)| at).chain([path.len()]);
        if let Some((at, end)) = ends.enumerate().skip(depth).find(|(_, end)| is_number(&path[..*end])) {
            found.entry(&path[..end]).or_insert_with(|| (at + 1, vec![])).1.push(op);
        }
    }
    let does = |ops: &[OpId]| ops.iter().map(|op| &model.graph.op(*op).target[..]).collect::<Vec<_>>();
    let mut beside: BTreeMap<&str, Vec<Vec<&str>>> = BTreeMap::new();
    for (path, (_, ops)) in &found {
        beside.entry(parent(path)).or_default().push(does(ops));
    }
    let repeats = |path: &str| {
        let all = &beside[parent(path)];
        all.iter().enumerate().any(|(at, one)| all[..at].contains(one))
    };
    let modules = found.iter().map(|(path, (depth, ops))| (repeats(path), *depth, ops.clone()));
    modules.map(|(repeats, depth, ops)| Numbered { depth, ops, repeats }).collect()
}

fn is_number(path: &str) -> bool {
    let name = path.rsplit('.').next().unwrap_or_default();
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_digit())
}

fn parent(path: &str) -> &str {
    path.rsplit_once('.').map_or("", |(parent, _)| parent)
}
