//! How operands lie, if it is said for each digit of the devices which loop of the operator it divides.

use graph::{Graph, OpId};
use plan::{On, Split};
use rules::{Analysis, Kind};

use super::digits::{COPIES, Digits, PARTIAL};

/// For each digit the loop that it divides; none where devices compute the same.
pub(super) type Loops = Vec<Option<usize>>;

/// For each digit what it does with a tensor.
pub(super) type Spread = Vec<u8>;

/// How an operand is read, and how its gradient is given back.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Read {
    pub(super) value: Spread,
    pub(super) gradient: Spread,
}

/// The splits of an operator: neighbours along one loop are one.
pub(super) fn splits(digits: &Digits, loops: &Loops) -> Vec<Split> {
    let mut found: Vec<Split> = vec![];
    for (on, &size) in loops.iter().zip(&digits.sizes) {
        let on = on.map_or(On::Copies, On::Loop);
        match found.last_mut() {
            Some(last) if last.on == on => last.parts *= size,
            _ => found.push(Split { on, parts: size }),
        }
    }
    found
}

pub(super) fn read(analysis: &Analysis, op: OpId, input: usize, loops: &Loops) -> Read {
    let dims = analysis.op(op);
    let carried = &dims.inputs[input];
    let once = analysis.rules[op.index()].as_ref().is_some_and(|rule| rule.inputs[input].once);
    let divides = |on: &Option<usize>| factor(carried, *on);
    let gradient = |on: &Option<usize>| match on {
        Some(index) if carried.contains(&Some(*index)) => factor(carried, *on),
        Some(index) if once && matches!(dims.loops[*index].kind, Kind::Reduce(_)) => COPIES,
        Some(_) => PARTIAL,
        None => COPIES,
    };
    Read { value: loops.iter().map(divides).collect(), gradient: loops.iter().map(gradient).collect() }
}

pub(super) fn written(analysis: &Analysis, op: OpId, output: usize, loops: &Loops) -> Spread {
    let dims = analysis.op(op);
    let carried = &dims.outputs[output];
    let of = |on: &Option<usize>| match on {
        Some(index) if matches!(dims.loops[*index].kind, Kind::Reduce(_)) => PARTIAL,
        _ => factor(carried, *on),
    };
    loops.iter().map(of).collect()
}

fn factor(carried: &[Option<usize>], on: Option<usize>) -> u8 {
    let at = on.and_then(|on| carried.iter().position(|it| *it == Some(on)));
    at.map_or(COPIES, |at| u8::try_from(at + 1).expect("a tensor of few dims"))
}

/// Complete, where it may be partial.
pub(super) fn complete(spread: &Spread) -> Spread {
    spread.iter().map(|it| if *it == PARTIAL { COPIES } else { *it }).collect()
}

/// Elements of the largest shard.
pub(super) fn elements(sizes: &[i64], digits: &Digits, spread: &Spread) -> f64 {
    lengths(sizes, digits, spread).iter().map(|size| *size as f64).product()
}

/// Elements that a shard has of another one, at most.
pub(super) fn met(sizes: &[i64], digits: &Digits, one: &Spread, other: &Spread) -> f64 {
    let (one, other) = (lengths(sizes, digits, one), lengths(sizes, digits, other));
    one.into_iter().zip(other).map(|(a, b)| a.min(b) as f64).product()
}

fn lengths(sizes: &[i64], digits: &Digits, spread: &Spread) -> Vec<i64> {
    let mut left: Vec<i64> = sizes.to_vec();
    for (it, &size) in spread.iter().zip(&digits.sizes) {
        if *it != COPIES && *it != PARTIAL {
            let factor = &mut left[usize::from(*it) - 1];
            *factor = (*factor + i64::from(size) - 1) / i64::from(size);
        }
    }
    left
}

/// Whether gradients flow to an operand.
pub(super) fn learns(graph: &Graph, needs_grad: &[bool], op: OpId, input: usize) -> bool {
    let it = graph.op(op);
    needs_grad[it.inputs()[input].index()] && it.passes_on(|tensor| needs_grad[tensor.index()], input)
}
