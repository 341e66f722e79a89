//! `sequence`, `zigzag`, `ulysses`: every operator splits the sequence, wherever it has one.
//!
//! The sequence is what queries of attention are along; of a model without attention, the tokens of its inputs. Attention
//! itself is of a part of the queries over all keys and values, which lowering gathers; under `ulysses` it is of a part of
//! the heads, so that queries, keys and values change places instead.
//!
//! Where attention is causal, later queries see more keys. Under `zigzag` each device has a part from the front and one as
//! far from the back, which together see as many keys as any other two.
//!
//! A model may repeat its keys and values for the heads of a group before attention reads them. That is done after they
//! have moved, so that each moves once.

use std::collections::BTreeMap;

use graph::{Op, OpId, Source, TensorId};
use rules::families;

use super::{Along, Auto, Model, Set, batch, too_few};

pub(super) const SEQUENCE: Set = Set {
    along: Some(Along::new(choose, why)),
    aliases: &["cp"],
    auto: Auto::Instead(is_worth_it),
    ..Set::new(
        "sequence",
        "context parallelism: operators are split along the sequence, that of attention's queries or of \
          the input tokens",
    )
};

pub(super) const ZIGZAG: Set = Set {
    along: Some(Along {
        places: Some(front_and_back),
        ..Along::new(
            |model, size| choose(model, parts_of(size)),
            |model, op, size| why(model, op, parts_of(size)),
        )
    }),
    auto: Auto::Instead(is_worth_it),
    ..Set::new(
        "zigzag",
        "as `sequence`, balanced for causal attention: of 2n chunks device i has chunks i and 2n-1-i",
    )
};

pub(super) const ULYSSES: Set = Set {
    along: Some(Along::new(choose_heads, why)),
    auto: Auto::Instead(is_worth_it),
    ..Set::new("ulysses", "as `sequence`, but attention is split along the heads")
};

pub(super) fn choose(model: &Model<'_>, parts: u32) -> Vec<Option<usize>> {
    chosen(model, &repeated(model), parts)
}

/// All but what is repeated.
fn chosen(model: &Model<'_>, repeated: &BTreeMap<OpId, OpId>, parts: u32) -> Vec<Option<usize>> {
    let classes = classes(model);
    let fits = |op: OpId| open_loops(model, op, &classes).find(|index| is_long(model, op, *index, parts));
    model.graph.op_ids().map(|op| if repeated.contains_key(&op) { None } else { fits(op) }).collect()
}

fn choose_heads(model: &Model<'_>, parts: u32) -> Vec<Option<usize>> {
    let repeated = repeated(model);
    let mut chosen = chosen(model, &repeated, parts);
    for op in model.graph.op_ids().filter(|op| is_attention(model.graph.op(*op))) {
        let heads = named(model, op, "h").find(|index| is_long(model, op, *index, parts));
        chosen[op.index()] = heads.or(chosen[op.index()]);
    }
    for (op, attention) in repeated {
        let heads = chosen[attention.index()].map(|index| model.classes.of_loop(attention, index));
        let same = open_loops(model, op, heads.as_slice()).find(|index| is_long(model, op, *index, parts));
        chosen[op.index()] = same;
    }
    chosen
}

/// What repeats keys and values for attention, and what is between; with the attention that reads it.
fn repeated(model: &Model<'_>) -> BTreeMap<OpId, OpId> {
    let mut repeats = BTreeMap::new();
    for attention in model.graph.op_ids().filter(|op| is_attention(model.graph.op(*op))) {
        for tensor in model.graph.op(attention).inputs().into_iter().skip(1).take(2) {
            repeats.extend(repeating(model, tensor).into_iter().map(|op| (op, attention)));
        }
    }
    repeats
}

/// The views that a tensor is made by, up to the first one that enlarges it.
fn repeating(model: &Model<'_>, mut tensor: TensorId) -> Vec<OpId> {
    let numel = |id: TensorId| model.graph.tensor(id).shape.iter().product::<i64>();
    let (mut views, mut enlarging) = (vec![], 0);
    while let Some((op, _)) = model.graph.producer(tensor) {
        let it = model.graph.op(op);
        let is_view = families::nature_of(&it.target).is_view;
        let ([from], true) = (&it.inputs()[..], is_view) else { break };
        views.push(op);
        if numel(*from) < numel(tensor) {
            enlarging = views.len();
        }
        tensor = *from;
    }
    views.truncate(enlarging);
    views
}

pub(super) fn why(model: &Model<'_>, op: OpId, parts: u32) -> String {
    if repeated(model).contains_key(&op) {
        return "it repeats keys and values, which are moved before that".into();
    }
    open_loops(model, op, &classes(model)).next().map_or_else(
        || "it has no sequence that may be split".into(),
        |index| too_few("its sequence", model.analysis.op(op).loops[index].size, parts),
    )
}

/// Two parts for each device.
fn parts_of(size: u32) -> u32 {
    if size == 1 { 1 } else { size.saturating_mul(2) }
}

/// The device of each part.
fn front_and_back(size: u32) -> Vec<u32> {
    if size == 1 { vec![0] } else { (0..size).chain((0..size).rev()).collect() }
}

/// The loops of an operator over some classes that may be split, the outermost first; of scores over a sequence those
/// of queries come first.
pub(super) fn open_loops<'m>(
    model: &'m Model<'_>,
    op: OpId,
    classes: &'m [usize],
) -> impl Iterator<Item = usize> + 'm {
    let loops = &model.analysis.op(op).loops;
    let open = move |index: &usize| loops[*index].kind != rules::Kind::Whole;
    let along = move |index: &usize| classes.contains(&model.classes.of_loop(op, *index));
    (0..loops.len()).filter(open).filter(along)
}

pub(super) fn is_long(model: &Model<'_>, op: OpId, index: usize, parts: u32) -> bool {
    model.analysis.op(op).loops[index].size >= i64::from(parts)
}

pub(super) fn has_attention(model: &Model<'_>) -> bool {
    model.graph.op_ids().any(|op| is_attention(model.graph.op(op)))
}

/// Where there is attention, and a batch is not enough for so many devices.
fn is_worth_it(model: &Model<'_>, devices: u32) -> bool {
    has_attention(model) && batch::is_short(model, devices)
}

fn is_attention(op: &Op) -> bool {
    families::nature_of(&op.target).attends
}

/// The loops of a dim of an operator's rule that may be split.
fn named<'m>(model: &'m Model<'_>, op: OpId, name: &str) -> impl Iterator<Item = usize> + use<'m> {
    let dim = model.analysis.rules[op.index()].as_ref().and_then(|rule| rule.find(name));
    let loops = &model.analysis.op(op).loops;
    (0..loops.len())
        .filter(move |index| Some(loops[*index].dim) == dim && loops[*index].kind != rules::Kind::Whole)
}

/// The classes of the sequence: those of queries, or of tokens that are given.
fn classes(model: &Model<'_>) -> Vec<usize> {
    let attention = model.graph.op_ids().filter(|op| is_attention(model.graph.op(*op)));
    let mut classes: Vec<usize> = attention
        .flat_map(|op| named(model, op, "l").map(move |index| model.classes.of_loop(op, index)))
        .collect();
    if classes.is_empty() {
        classes = of_inputs(model);
    }
    classes.sort_unstable();
    classes.dedup();
    classes
}

/// The second dims of numbers of tokens, and of rows for each token.
fn of_inputs(model: &Model<'_>) -> Vec<usize> {
    let mut classes = vec![];
    for id in model.graph.tensor_ids() {
        let tensor = model.graph.tensor(id);
        let tokens = match tensor.shape.len() {
            2 => !tensor.dtype.is_float(),
            rank => rank == 3,
        };
        let factors = &model.analysis.factors[id.index()];
        if tokens && matches!(tensor.source, Source::Input { .. }) && factors[1].len() == 1 {
            classes.push(model.classes.of_factor(id, factors[0].len()));
        }
    }
    classes
}

#[cfg(test)]
mod tests {
    use super::super::tests::devices_of_attention;

    #[test]
    fn parts_from_both_ends_are_on_one_device() {
        assert_eq!(devices_of_attention("sequence", 2), [0, 1]);
        assert_eq!(devices_of_attention("zigzag", 2), [0, 1, 1, 0]);
        assert_eq!(devices_of_attention("zigzag", 3), [0, 1, 2, 2, 1, 0]);
        assert_eq!(devices_of_attention("zigzag:2 x megatron:2", 4), [0, 1, 2, 3, 2, 3, 0, 1]);
        assert_eq!(devices_of_attention("data:2 x zigzag:2", 4), [0, 1, 1, 0, 2, 3, 3, 2]);
        assert_eq!(devices_of_attention("zigzag", 1), [0]);
    }
}
