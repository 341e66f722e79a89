//! How families go through tensors: element by element with broadcasting, row by row, and by index.

use crate::number::Num;
use crate::ops::{Made, Stop, wrong};
use crate::tape::{ElementKind, T, Tape};

/// How far apart neighbours along each dim are.
pub fn strides(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; shape.len()];
    for dim in (0..shape.len().saturating_sub(1)).rev() {
        strides[dim] = strides[dim + 1] * shape[dim + 1];
    }
    strides
}

/// All indices of a shape, in their order.
pub fn indices(shape: &[usize]) -> impl Iterator<Item = Vec<usize>> {
    let shape = shape.to_vec();
    let count: usize = shape.iter().product();
    (0..count).map(move |mut linear| {
        let mut index = vec![0; shape.len()];
        for dim in (0..shape.len()).rev() {
            index[dim] = linear % shape[dim];
            linear /= shape[dim];
        }
        index
    })
}

pub fn linear(index: &[usize], shape: &[usize]) -> usize {
    index.iter().zip(shape).fold(0, |sum, (at, size)| sum * size + at)
}

pub fn broadcast(shapes: &[&[usize]]) -> Made<Vec<usize>> {
    let rank = shapes.iter().map(|shape| shape.len()).max().unwrap_or(0);
    let mut sizes = vec![1; rank];
    for shape in shapes {
        for (size, made) in shape.iter().rev().zip(sizes.iter_mut().rev()) {
            if *made == 1 {
                *made = *size;
            } else if *size != 1 && size != made {
                return wrong(format!("shapes {shapes:?} do not broadcast"));
            }
        }
    }
    Ok(sizes)
}

pub fn expand(x: &T, shape: &[usize]) -> Made<T> {
    if x.shape == shape {
        return Ok(x.clone());
    }
    let Some(lead) = shape.len().checked_sub(x.rank()) else { return wrong("too many dims to expand") };
    let fits = x.shape.iter().zip(&shape[lead..]).all(|(old, size)| *old == 1 || old == size);
    if !fits {
        return wrong(format!("{:?} does not expand to {shape:?}", x.shape));
    }
    let steps = strides(&x.shape);
    Ok(picked(x, shape.to_vec(), |index| {
        let dims = x.shape.iter().zip(&index[lead..]).zip(&steps);
        dims.map(|((size, at), step)| if *size == 1 { 0 } else { at * step }).sum()
    }))
}

/// Elements of `x` by index.
pub fn picked(x: &T, shape: Vec<usize>, from: impl Fn(&[usize]) -> usize) -> T {
    let at = indices(&shape).map(|index| x.at[from(&index)]).collect();
    T::new(x.kind, shape, at)
}

/// Element by element.
pub fn each(
    tape: &mut Tape,
    operands: &[T],
    kind: ElementKind,
    mut f: impl FnMut(&mut Tape, &[u32]) -> u32,
) -> Made<T> {
    let shapes: Vec<&[usize]> = operands.iter().map(|x| &x.shape[..]).collect();
    let shape = broadcast(&shapes)?;
    let all = operands.iter().map(|x| expand(x, &shape)).collect::<Made<Vec<T>>>()?;
    let count = shape.iter().product::<usize>();
    let mut given = vec![0; all.len()];
    let mut at = Vec::with_capacity(count);
    for place in 0..count {
        given.iter_mut().zip(&all).for_each(|(one, x)| *one = x.at[place]);
        at.push(f(tape, &given));
    }
    Ok(T::new(kind, shape, at))
}

/// The rows of `x` along some dims, and the shape of what is left.
pub struct ElementRows {
    /// With the dims as ones.
    pub kept: Vec<usize>,
    pub shape: Vec<usize>,
    pub rows: Vec<Vec<u32>>,
}

pub fn rows(x: &T, dims: &[usize]) -> ElementRows {
    let along = |dim: &usize| x.rank() > 0 && dims.contains(dim);
    let kept: Vec<usize> = (0..x.rank()).map(|dim| if along(&dim) { 1 } else { x.shape[dim] }).collect();
    let shape = (0..x.rank()).filter(|dim| !along(dim)).map(|dim| x.shape[dim]).collect();
    let length: usize = (0..x.rank()).filter(along).map(|dim| x.shape[dim]).product();
    let mut rows = vec![Vec::with_capacity(length); kept.iter().product()];
    for (at, index) in x.at.iter().zip(indices(&x.shape)) {
        let row =
            index.iter().zip(&kept).fold(0, |sum, (at, size)| sum * size + if *size == 1 { 0 } else { *at });
        rows[row].push(*at);
    }
    ElementRows { kept, shape, rows }
}

impl ElementRows {
    pub fn shape_of(&self, keep: bool) -> Vec<usize> {
        if keep { self.kept.clone() } else { self.shape.clone() }
    }
}

/// The reverse of [`rows`]: one number for each element of each row.
pub fn unrows(shape: &[usize], dims: &[usize], rows: &[Vec<u32>], kind: ElementKind) -> T {
    let kept: Vec<usize> =
        shape.iter().enumerate().map(|(dim, size)| if dims.contains(&dim) { 1 } else { *size }).collect();
    let mut next = vec![0; rows.len()];
    let at = indices(shape).map(|index| {
        let row =
            index.iter().zip(&kept).fold(0, |sum, (at, size)| sum * size + if *size == 1 { 0 } else { *at });
        next[row] += 1;
        rows[row][next[row] - 1]
    });
    let at = at.collect();
    T::new(kind, shape.to_vec(), at)
}

// Numbers.

pub fn sum(tape: &mut Tape, all: &[u32]) -> u32 {
    let value = all.iter().fold(Num::ZERO, |sum, at| sum.plus(tape.value(*at)));
    tape.node(value, all.iter().map(|at| (*at, Num::ONE)))
}

pub fn scaled(tape: &mut Tape, x: u32, by: Num) -> u32 {
    let value = tape.value(x).times(by);
    tape.node(value, [(x, by)])
}

pub fn add(tape: &mut Tape, a: u32, b: u32) -> u32 {
    sum(tape, &[a, b])
}

pub fn sub(tape: &mut Tape, a: u32, b: u32) -> u32 {
    let value = tape.value(a).minus(tape.value(b));
    tape.node(value, [(a, Num::ONE), (b, Num::ONE.negated())])
}

pub fn mul(tape: &mut Tape, a: u32, b: u32) -> u32 {
    let (x, y) = (tape.value(a), tape.value(b));
    tape.node(x.times(y), [(a, y), (b, x)])
}

pub fn div(tape: &mut Tape, a: u32, b: u32) -> u32 {
    let (x, inverse) = (tape.value(a), tape.value(b).inverse());
    let value = x.times(inverse);
    tape.node(value, [(a, inverse), (b, value.times(inverse).negated())])
}

pub fn exp(tape: &mut Tape, x: u32) -> u32 {
    let value = match tape.value(x) {
        Num::NEG_INF => Num::ZERO,
        other => table(other, &[EXP]),
    };
    tape.node(value, [(x, value)])
}

pub fn log(tape: &mut Tape, x: u32) -> u32 {
    let given = tape.value(x);
    tape.node(table(given, &[LOG]), [(x, given.inverse())])
}

pub fn rsqrt(tape: &mut Tape, x: u32) -> u32 {
    let given = tape.value(x);
    let value = table(given, &[RSQRT]);
    let slope = value.over(given.times(Num::int(-2)));
    tape.node(value, [(x, slope)])
}

pub fn sqrt(tape: &mut Tape, x: u32) -> u32 {
    let given = tape.value(x);
    let value = table(given, &[SQRT]);
    tape.node(value, [(x, value.times(Num::int(2)).inverse())])
}

const EXP: u64 = 101;
const LOG: u64 = 102;
const RSQRT: u64 = 103;
const SQRT: u64 = 104;

/// The table of a function at a number.
pub fn table(x: Num, which: &[u64]) -> Num {
    match x {
        Num::NAN => x,
        x => Num::table(&[which, &[x.bits()]].concat()),
    }
}

/// Sum of products.
pub fn dot(tape: &mut Tape, pairs: &[(u32, u32)], more: Option<u32>) -> u32 {
    let start = more.map_or(Num::ZERO, |at| tape.value(at));
    let product = |sum: Num, (a, b): &(u32, u32)| sum.plus(tape.value(*a).times(tape.value(*b)));
    let value = pairs.iter().fold(start, product);
    let mut edges = Vec::with_capacity(2 * pairs.len() + 1);
    if tape.records {
        for (a, b) in pairs {
            if tape.needs(*a) {
                edges.push((*a, tape.value(*b)));
            }
            if tape.needs(*b) {
                edges.push((*b, tape.value(*a)));
            }
        }
        edges.extend(more.map(|at| (at, Num::ONE)));
    }
    tape.node(value, edges)
}

/// The greatest, or the least, and its position: the first of equals.
pub fn extreme(tape: &mut Tape, all: &[u32], greatest: bool) -> Made<(u32, usize)> {
    let mut best: Option<usize> = None;
    for (at, node) in all.iter().enumerate() {
        let wins = best.is_none_or(|best| {
            let order = tape.value(*node).compare(tape.value(all[best]));
            if greatest { order.is_gt() } else { order.is_lt() }
        });
        if wins {
            best = Some(at);
        }
    }
    let Some(at) = best else { return Err(Stop::Wrong("the greatest of nothing".into())) };
    Ok((all[at], at))
}

/// `exp(x - m) / sum`, with the greatest of the row as `m`, which has no gradient.
pub fn softmax(tape: &mut Tape, row: &[u32], masked_is_zero: bool) -> Made<Vec<u32>> {
    let Some((shifted, exps)) = exps(tape, row)? else { return Ok(vec![]) };
    if masked_is_zero && shifted.iter().all(|at| tape.value(*at) == Num::NAN) && !row.is_empty() {
        return Ok(row.iter().map(|_| tape.constant(Num::ZERO)).collect());
    }
    // An inverse is dear, and one serves the row.
    let (one, total) = (tape.constant(Num::ONE), sum(tape, &exps));
    let share = div(tape, one, total);
    Ok(exps.iter().map(|at| mul(tape, *at, share)).collect())
}

pub fn log_softmax(tape: &mut Tape, row: &[u32]) -> Made<Vec<u32>> {
    let Some((shifted, exps)) = exps(tape, row)? else { return Ok(vec![]) };
    let total = sum(tape, &exps);
    let total = log(tape, total);
    Ok(shifted.iter().map(|at| sub(tape, *at, total)).collect())
}

type Exps = (Vec<u32>, Vec<u32>);

fn exps(tape: &mut Tape, row: &[u32]) -> Made<Option<Exps>> {
    if row.is_empty() {
        return Ok(None);
    }
    let (most, _) = extreme(tape, row, true)?;
    let value = tape.value(most);
    let most = tape.constant(value);
    let shifted: Vec<u32> = row.iter().map(|at| sub(tape, *at, most)).collect();
    let exps = shifted.iter().map(|at| exp(tape, *at)).collect();
    Ok(Some((shifted, exps)))
}
