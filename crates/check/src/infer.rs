//! The intervals of an operator's loops, from what its operands hold.

use graph::OpId;
use rules::Interval;

use crate::facts::Facts;
use crate::fault::Fault;
use crate::held::Scene;
use crate::region::{is_any, unify};
use crate::share::Store;

/// The interval of each loop that an operand carries, and which operand each input is.
pub(crate) fn infer(
    store: &Store,
    scene: &Scene<'_>,
    op: OpId,
) -> Result<(Vec<Option<Interval>>, Vec<usize>), Fault> {
    let dims = scene.facts.analysis.op(op);
    let mut at: Vec<Option<Interval>> = vec![None; dims.loops.len()];
    let positions = positions(scene, op).ok_or_else(|| other_tensors(scene, op))?;
    for (held, &position) in scene.inputs.iter().zip(&positions) {
        for (carried, found) in dims.inputs[position].iter().zip(store.region(held.region)) {
            let Some(l) = *carried else { continue };
            let joined = at[l].map_or(Some(*found), |known| unify(known, *found));
            let Some(joined) = joined else {
                let known = at[l].map(text).unwrap_or_default();
                return Err(Fault::new(
                    "SW0504",
                    format!("the operands of a local operator disagree along `{}`", dims.loops[l].name),
                )
                .why(format!(
                    "expected {known} of %{} as of the operands before it, found {}",
                    scene.facts.graph.tensor(held.of.tensor).name,
                    text(*found)
                ))
                .operator(scene.facts.graph.describe(op)));
            };
            at[l] = Some(joined);
        }
    }
    Ok((at, positions))
}

fn text(i: Interval) -> String {
    if is_any(i) { format!("any {}", i.len()) } else { format!("{}..{}", i.lo, i.hi) }
}

/// Which operand each input of the local operator is, as far as tensors tell. Operands that another
/// part is given may be absent.
fn positions(scene: &Scene<'_>, op: OpId) -> Option<Vec<usize>> {
    let expected = &scene.facts.op(op).inputs;
    let found = scene.inputs.iter().map(|held| held.of.tensor);
    if expected.len() == scene.inputs.len() && found.clone().eq(expected.iter().copied()) {
        return Some((0..expected.len()).collect());
    }
    let rule = scene.facts.analysis.rules[op.index()].as_ref();
    let optional = |p: &usize| rule.is_some_and(|rule| rule.inputs[*p].once || rule.inputs[*p].absent);
    let mut order: Vec<usize> = (0..expected.len()).filter(|p| !optional(p)).collect();
    order.extend((0..expected.len()).filter(optional));
    let mut taken = vec![false; expected.len()];
    found
        .map(|tensor| {
            let position = order.iter().copied().find(|&p| !taken[p] && expected[p] == tensor)?;
            taken[position] = true;
            Some(position)
        })
        .collect()
}

fn other_tensors(scene: &Scene<'_>, op: OpId) -> Fault {
    let facts = scene.facts;
    let name = |t: graph::TensorId| format!("%{}", facts.graph.tensor(t).name);
    let expected: Vec<String> = facts.op(op).inputs.iter().map(|t| name(*t)).collect();
    let found: Vec<String> = scene.inputs.iter().map(|held| name(held.of.tensor)).collect();
    Fault::new("SW0504", "a local operator reads other tensors than its operator")
        .why(format!("expected {}, found {}", expected.join(", "), found.join(", ")))
        .operator(facts.graph.describe(op))
}

/// The part of an operator in words.
pub(crate) fn describe(facts: &Facts<'_>, op: OpId, at: &[Interval]) -> String {
    let loops = &facts.analysis.op(op).loops;
    let cut = loops.iter().zip(at).filter(|(l, i)| **i != Interval::whole(l.size));
    let parts: Vec<String> = cut.map(|(l, i)| format!("{} {}", l.name, text(*i))).collect();
    if parts.is_empty() { "the whole of it".into() } else { parts.join(", ") }
}
