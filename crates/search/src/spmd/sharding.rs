//! How operands lie, if it is said for each digit of the devices which loop of the operator it divides.

use graph::{Graph, OpId};
use plan::{On, Split};
use rules::Analysis;
use sharding::propagate::{self, Has, Input};
use sharding::{COPIES, PARTIAL, Uses};

use super::digits::Digits;

/// For each digit the loop that it divides; none where devices compute the same.
pub(super) type Loops = Vec<Option<usize>>;

/// For each digit what it does with a tensor.
pub(super) type Sharding = Uses;

/// How an operand is read, and how its gradient is given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct OperandRead {
    pub(super) value: Sharding,
    pub(super) gradient: Sharding,
}

/// The splits of an operator: neighbours along one loop are one.
pub(super) fn splits(digits: &Digits, loops: &Loops) -> Vec<Split> {
    let mut splits: Vec<Split> = vec![];
    for (on, &size) in loops.iter().zip(&digits.sizes) {
        let on = on.map_or(On::Copies, On::Loop);
        match splits.last_mut() {
            Some(last) if last.on == on => last.parts *= size,
            _ => splits.push(Split { on, parts: size }),
        }
    }
    splits
}

pub(super) fn read(analysis: &Analysis, op: OpId, input: usize, loops: &Loops) -> OperandRead {
    let dims = analysis.op(op);
    let carried = &dims.inputs[input];
    let once = analysis.rules[op.index()].as_ref().is_some_and(|rule| rule.inputs[input].once);
    // Nothing is split by value here.
    let input = Input { carried, once, linear: false };
    OperandRead {
        value: each(loops, carried, |on| propagate::read(dims, input, on)),
        gradient: each(loops, carried, |on| propagate::gradient(dims, input, on)),
    }
}

pub(super) fn written(analysis: &Analysis, op: OpId, output: usize, loops: &Loops) -> Sharding {
    let dims = analysis.op(op);
    let carried = &dims.outputs[output];
    each(loops, carried, |on| propagate::written(dims, carried, on))
}

/// What each digit does with a tensor along whose factors some loops go. What the first part alone is given counts as if
/// all were.
fn each(loops: &Loops, carried: &[Option<usize>], has: impl Fn(On) -> Has) -> Sharding {
    let does = |on: &Option<usize>| match has(on.map_or(On::Copies, On::Loop)) {
        Has::Piece => factor(carried, *on),
        Has::Share => PARTIAL,
        Has::Copy | Has::First => COPIES,
    };
    std::array::from_fn(|at| loops.get(at).map_or(COPIES, does))
}

fn factor(carried: &[Option<usize>], on: Option<usize>) -> u8 {
    let at = on.and_then(|on| carried.iter().position(|it| *it == Some(on)));
    at.map_or(COPIES, |at| u8::try_from(at + 1).expect("a tensor of few dims"))
}

/// Complete, where it may be partial.
pub(super) fn complete(sharding: Sharding) -> Sharding {
    sharding.map(|it| if it == PARTIAL { COPIES } else { it })
}

/// Elements of the largest shard.
pub(super) fn elements(sizes: &[i64], digits: &Digits, sharding: &Sharding) -> f64 {
    (1..).zip(sizes).map(|(factor, size)| length(*size, factor, digits, sharding) as f64).product()
}

/// Elements that a shard has of another one, at most.
pub(super) fn met(sizes: &[i64], digits: &Digits, one: &Sharding, other: &Sharding) -> f64 {
    let overlap = |factor, size| length(size, factor, digits, one).min(length(size, factor, digits, other));
    (1..).zip(sizes).map(|(factor, size)| overlap(factor, *size) as f64).product()
}

/// Of the largest shard along a factor.
fn length(size: i64, factor: u8, digits: &Digits, sharding: &Sharding) -> i64 {
    let divided = sharding.iter().zip(&digits.sizes).filter(|(it, _)| **it == factor);
    divided.fold(size, |left, (_, parts)| (left + i64::from(*parts) - 1) / i64::from(*parts))
}

/// Whether gradients flow to an operand.
pub(super) fn learns(graph: &Graph, needs_grad: &[bool], op: OpId, input: usize) -> bool {
    let it = graph.op(op);
    needs_grad[it.inputs()[input].index()] && it.passes_on(|tensor| needs_grad[tensor.index()], input)
}
