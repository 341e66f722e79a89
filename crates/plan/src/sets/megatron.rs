//! `megatron`: pairs of contractions around an elementwise or attention core, split along the dim
//! between them: the heads of an attention, the inner dim of an MLP, the channels between two
//! convolutions, the vocabulary between an embedding's or a projection's weight and the loss.
//!
//! Such a dim is a class of factors (see [`crate::classes`]) that begins in a weight, ends in a sum
//! or in an operator with its own algorithm, is no part of an input, and that every operator it
//! passes may split.
//!
//! A contraction stands between two such dims where nothing keeps the values between layers whole, as in
//! convolution nets: the one that comes first splits it. The other may still split the operators that it
//! runs through alone, if that divides one more contraction: what the one leaves as partial sums is then
//! scattered to the other's parts, not summed on each device.

use graph::{OpId, Source, TensorId};
use rules::{Kind, Reduction, families};

use super::{Along, Auto, Model, Set, sequence, too_few};

pub(super) const SET: Set = Set {
    along: Some(Along::new(choose_shared, why)),
    aliases: &["tp"],
    auto: Auto::Model,
    ..Set::new(
        "megatron",
        "tensor parallelism: splits the dim between two matmuls (heads, inner dim of an MLP, vocabulary)",
    )
};

pub(super) const WITH_SEQUENCE: Set = Set {
    along: Some(Along::new(choose_with_sequence, why_not_even_sequence)),
    auto: Auto::Instead(|model, _| sequence::has_attention(model)),
    ..Set::new(
        "megatron-sp",
        "as `megatron`, and operators that it leaves whole are split along the sequence",
    )
};

/// What lies between two pairs of contractions is of a part of the tokens: sums are scattered to those parts, and gathered
/// before the next pair.
fn choose_with_sequence(model: &Model<'_>, parts: u32) -> Vec<Option<usize>> {
    let chosen = choose_shared(model, parts);
    // Without pairs this were `sequence` by another name.
    if chosen.iter().all(Option::is_none) {
        return chosen;
    }
    chosen.into_iter().zip(sequence::choose(model, parts)).map(|(index, other)| index.or(other)).collect()
}

fn why_not_even_sequence(model: &Model<'_>, op: OpId, parts: u32) -> String {
    format!("{}; and {}", why(model, op, parts), sequence::why(model, op, parts))
}

/// [`choose`], and what dims that share contractions with those split besides.
fn choose_shared(model: &Model<'_>, parts: u32) -> Vec<Option<usize>> {
    let mut chosen = choose(model, parts);
    for class in candidates(model, parts) {
        let loops = &model.classes.all[class].loops;
        let free: Vec<(OpId, usize)> =
            loops.iter().filter(|(op, _)| chosen[op.index()].is_none()).copied().collect();
        let alone = |(op, index): &(OpId, usize)| chosen[op.index()].is_none() && maps(model, *op, *index);
        if free.iter().any(|(op, _)| contracts(model, *op))
            && loops.iter().all(|it| alone(it) || contracts(model, it.0))
        {
            free.into_iter().for_each(|(op, index)| chosen[op.index()] = Some(index));
        }
    }
    chosen
}

/// The dims of which no operator is split along another.
pub(super) fn choose(model: &Model<'_>, parts: u32) -> Vec<Option<usize>> {
    let mut chosen: Vec<Option<usize>> = vec![None; model.graph.ops.len()];
    for class in candidates(model, parts) {
        let loops = &model.classes.all[class].loops;
        if loops.iter().all(|(op, _)| chosen[op.index()].is_none()) {
            loops.iter().for_each(|&(op, index)| chosen[op.index()] = Some(index));
        }
    }
    chosen
}

/// Most often the dim that it would split is too short.
pub(super) fn why(model: &Model<'_>, op: OpId, parts: u32) -> String {
    let fewer = |index: &usize| {
        let class = model.classes.of_loop(op, *index);
        let size = model.classes.all[class].size;
        let short = (2..i64::from(parts)).contains(&size) && !model.inputs[class];
        (short && qualifies(model, class, 2)).then_some(size)
    };
    let loops = 0..model.analysis.op(op).loops.len();
    loops.filter_map(|index| fewer(&index)).next().map_or_else(
        || "it is on no dim between two matmuls that every operator along the way can split".into(),
        |size| too_few("the dim between two matmuls", size, parts),
    )
}

/// Classes that qualify, in the order of their first operator.
pub(super) fn candidates(model: &Model<'_>, parts: u32) -> Vec<usize> {
    let mut candidates: Vec<usize> =
        (0..model.classes.all.len()).filter(|&c| !model.inputs[c] && qualifies(model, c, parts)).collect();
    candidates.sort_by_key(|&c| model.classes.all[c].loops[0]);
    candidates
}

fn qualifies(model: &Model<'_>, class: usize, parts: u32) -> bool {
    let it = &model.classes.all[class];
    let kind = |&(op, index): &(OpId, usize)| model.analysis.op(op).loops[index].kind;
    let once = it.loops.windows(2).all(|w| w[0].0 != w[1].0);
    let ends = |k: Kind| matches!(k, Kind::Reduce(Reduction::Sum) | Kind::Own);
    it.size >= i64::from(parts)
        && !it.stuck
        && once
        && it.loops.iter().all(|l| kind(l) != Kind::Whole)
        && it.loops.iter().any(|l| ends(kind(l)))
        && it.loops.iter().any(|&(op, index)| match kind(&(op, index)) {
            Kind::Map => in_weight(model, op, index),
            _ => is_vocabulary(model, op, index) || is_inside(model, op, index),
        })
}

/// Whether a summed loop runs over a dim of a weight that the model's inputs look up: what an
/// embedding has of its own, if no projection shares it.
fn is_vocabulary(model: &Model<'_>, op: OpId, index: usize) -> bool {
    let inputs = model.graph.op(op).inputs();
    let is_input = |t: &TensorId| matches!(model.graph.tensor(*t).source, Source::Input { .. });
    let carriers = model.analysis.op(op).inputs.iter().zip(&inputs).filter(|(c, _)| c.contains(&Some(index)));
    inputs.iter().any(is_input) && carriers.into_iter().all(|(_, t)| model.is_weight(*t))
}

/// Whether a loop runs over the inner dim of experts, both of whose contractions are in one operator.
fn is_inside(model: &Model<'_>, op: OpId, index: usize) -> bool {
    let inner = families::nature_of(&model.graph.op(op).target).inner;
    let name = model.analysis.op(op).loops[index].name.split('.').next();
    inner.is_some() && inner == name
}

/// Whether a loop runs over a dim of a weight that the operator contracts something with.
fn in_weight(model: &Model<'_>, op: OpId, index: usize) -> bool {
    let dims = model.analysis.op(op);
    let contracts = dims.loops.iter().any(|l| l.kind == Kind::Reduce(Reduction::Sum)) || ends_own(model, op);
    let weight = |(tensor, carried): (TensorId, &Vec<Option<usize>>)| {
        model.is_weight(tensor) && carried.contains(&Some(index))
    };
    contracts && model.graph.op(op).inputs().into_iter().zip(&dims.inputs).any(weight)
}

fn maps(model: &Model<'_>, op: OpId, index: usize) -> bool {
    model.analysis.op(op).loops[index].kind == Kind::Map
}

/// Whether an operator sums over a dim of a weight, be it one that stays whole: a depthwise convolution's window.
fn contracts(model: &Model<'_>, op: OpId) -> bool {
    let dims = model.analysis.op(op);
    let made: Vec<usize> = dims.outputs.iter().flatten().filter_map(|carried| *carried).collect();
    let inputs = model.graph.op(op).inputs().into_iter().zip(&dims.inputs);
    let mut weights = inputs.filter(|(tensor, _)| model.is_weight(*tensor));
    !ends_own(model, op)
        && weights.any(|(_, carried)| carried.iter().flatten().any(|index| !made.contains(index)))
}

/// Whether a dim with its own algorithm ends in an operator: what is looked up, or summed beside a bias.
fn ends_own(model: &Model<'_>, op: OpId) -> bool {
    let dims = model.analysis.op(op);
    let is_made = |index: usize| dims.outputs.iter().flatten().any(|carried| *carried == Some(index));
    (0..dims.loops.len()).any(|index| dims.loops[index].kind == Kind::Own && !is_made(index))
}

#[cfg(test)]
mod tests {
    use super::super::tests::splits;

    const HEADS: &str = "qkv n.1, q c.0, qh c, kh c, vh c, qt c, kt c, vt c, a h, at b, ar c, y k.0";

    #[test]
    fn the_heads_are_split() {
        assert_eq!(splits("megatron", 2), HEADS);
    }

    #[test]
    fn what_that_leaves_whole_is_split_along_the_sequence() {
        assert_eq!(splits("megatron-sp", 2), format!("{HEADS}, loss b"));
    }
}
