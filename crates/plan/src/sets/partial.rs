//! Where the partial sums of a named plan are completed: where that is the fewest bytes.
//!
//! A contraction whose summed dim is split leaves partial sums. An operator that is linear in all the
//! partial sums that it reads may pass them on, so that what is made of them is completed instead: the
//! weighted sum of several experts' rows and not each row. What else the operator reads then gets its
//! gradient in partial sums, which counts too.

use graph::{OpId, TensorId};
use rules::{Kind, Reduction};

use super::Model;
use crate::{On, Split, legal, value_operands};

/// What the sets' choices mean along one axis, for each operator: a loop, or partial sums passed on.
/// `others` are the choices along the other axes that spread over devices.
pub(super) fn passed_on(
    model: &Model<'_>,
    choice: &[Option<usize>],
    others: &[&[Option<usize>]],
    parts: u32,
) -> Vec<Option<On>> {
    let sums = sums(model, choice, others, parts);
    let mut passed: Vec<Option<On>> = choice.iter().map(|index| index.map(On::Loop)).collect();
    for op in (0..model.graph.ops.len()).rev().map(OpId::new) {
        let Some(Sum { from, completed, .. }) = &sums[op.index()] else { continue };
        let wanted = readers(model, op).first().is_some_and(|r| passed[r.index()] == Some(On::Value));
        let read: u64 = from.iter().filter_map(|o| sums[o.index()].as_ref()).map(|sum| sum.cheapest).sum();
        if !from.is_empty() && (wanted || *completed < read) {
            passed[op.index()] = Some(On::Value);
        }
    }
    passed
}

/// Partial sums that an operator could give.
struct Sum {
    /// The operators whose partial sums it would pass on; none where it makes them.
    from: Vec<OpId>,
    /// Bytes of the partial gradients that passing them on, from where they are made, costs.
    gradients: u64,
    /// Bytes that are completed if they are completed here.
    completed: u64,
    /// The same if they are completed here or before, wherever that is least.
    cheapest: u64,
}

fn sums(
    model: &Model<'_>,
    choice: &[Option<usize>],
    others: &[&[Option<usize>]],
    parts: u32,
) -> Vec<Option<Sum>> {
    let needs_grad = model.graph.needs_grad();
    let mut sums: Vec<Option<Sum>> = vec![];
    for op in model.graph.op_ids() {
        let sums_up = |choice: &[Option<usize>]| {
            let chosen = choice[op.index()].map(|index| model.analysis.op(op).loops[index].kind);
            chosen == Some(Kind::Reduce(Reduction::Sum))
        };
        let sum = match made(model, op) {
            Some(bytes) if sums_up(choice) && !others.iter().any(|other| sums_up(other)) => {
                Some(Sum { from: vec![], gradients: 0, completed: bytes, cheapest: bytes })
            }
            Some(bytes) if choice[op.index()].is_none() => {
                passing(model, op, parts, &needs_grad, &sums).map(|(from, gradients)| {
                    let read: u64 =
                        from.iter().filter_map(|o| sums[o.index()].as_ref()).map(|s| s.cheapest).sum();
                    let completed = bytes + gradients;
                    Sum { from, gradients, completed, cheapest: completed.min(read) }
                })
            }
            _ => None,
        };
        sums.push(sum);
    }
    sums
}

/// Whose partial sums an operator may pass on, and the bytes of partial gradients up to here.
fn passing(
    model: &Model<'_>,
    op: OpId,
    parts: u32,
    needs_grad: &[bool],
    sums: &[Option<Sum>],
) -> Option<(Vec<OpId>, u64)> {
    let set = value_operands(model.graph, model.analysis, op)?;
    legal(model.graph, model.analysis, op, &[Split { on: On::Value, parts }]).ok()?;
    let inputs = model.graph.op(op).inputs();
    let mut from = vec![];
    for &position in set {
        let (maker, _) = model.graph.producer(inputs[position])?;
        sums[maker.index()].as_ref()?;
        if readers(model, maker) != [op] {
            return None;
        }
        if !from.contains(&maker) {
            from.push(maker);
        }
    }
    let partial = |t: &TensorId| from.iter().any(|o| model.graph.op(*o).outputs.contains(&Some(*t)));
    let learns = model.graph.op(op).outputs.iter().flatten().any(|t| needs_grad[t.index()]);
    let others = inputs.iter().filter(|t| learns && needs_grad[t.index()] && !partial(t));
    let gradient_bytes: u64 = others.map(|t| bytes(model, *t)).sum();
    let before: u64 = from.iter().filter_map(|o| sums[o.index()].as_ref()).map(|s| s.gradients).sum();
    Some((from, gradient_bytes + before))
}

/// Bytes of what an operator makes, if that is one tensor which only operators read.
fn made(model: &Model<'_>, op: OpId) -> Option<u64> {
    let [Some(tensor)] = model.graph.op(op).outputs[..] else { return None };
    let leaves = model.graph.outputs.contains(&Some(tensor));
    let updates = model.graph.updates.iter().any(|(_, value)| *value == tensor);
    (!leaves && !updates).then(|| bytes(model, tensor))
}

fn bytes(model: &Model<'_>, tensor: TensorId) -> u64 {
    u64::try_from(model.graph.tensor(tensor).bytes()).unwrap_or(0)
}

/// The operators that read what one makes.
fn readers<'m>(model: &'m Model<'_>, op: OpId) -> &'m [OpId] {
    &model.readers[op.index()]
}
