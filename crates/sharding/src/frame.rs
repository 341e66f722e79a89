//! Axes of which two shardings can speak.

use crate::mesh::{Axis, Mesh, cut_at, digits, marks};
use crate::sharding::Sharding;

/// The devices before, and those after if they are others. Axes in turn stand last.
pub(crate) struct Frame {
    pub(crate) sides: Vec<Side>,
    /// The second side's devices are all among the first's, and have the same numbers on their axes.
    pub(crate) inside: bool,
}

pub(crate) struct Side {
    pub(crate) base: u32,
    pub(crate) axes: Vec<Axis>,
}

impl Frame {
    pub(crate) fn new(from: &Sharding, to: &Sharding) -> Frame {
        let (a, b) = (from.mesh(), to.mesh());
        if a == b {
            let mut axes = refined(&from.axes(), &to.axes());
            if axes == refined(&to.axes(), &from.axes()) {
                axes.extend(chunks(from, to));
                return Frame { sides: vec![Side { base: a.base(), axes }], inside: true };
            }
        }
        // By the numbers of devices, and by their place in the row.
        let both = |sharding: &Sharding, on: &Mesh, other: &Sharding, beside: &Mesh| {
            let mut at = marks(&refined(&other.axes(), &[]));
            at.extend(places(on, beside));
            at.sort_unstable();
            let mut axes = cut_at(&refined(&sharding.axes(), &other.axes()), &at);
            axes.extend(chunks(sharding, sharding));
            Side { base: on.base(), axes }
        };
        let sides = [both(from, &a, to, &b), both(to, &b, from, &a)];
        let inside = is_inside(&sides[0], &sides[1]);
        Frame { sides: sides.into(), inside }
    }
}

/// The axes of devices of one sharding, split where another one's begin or end, with falling strides.
fn refined(axes: &[Axis], other: &[Axis]) -> Vec<Axis> {
    let devices = |axes: &[Axis]| axes.iter().copied().filter(|a| !a.in_turn()).collect::<Vec<Axis>>();
    let mut refined = cut_at(&devices(axes), &marks(&devices(other)));
    refined.sort_unstable_by_key(|a| std::cmp::Reverse(a.stride));
    refined
}

/// The axes in turn of both: those of one size are one.
fn chunks(from: &Sharding, to: &Sharding) -> Vec<Axis> {
    let axes_in_order =
        |sharding: &Sharding| sharding.axes().into_iter().filter(|a| a.in_turn()).collect::<Vec<Axis>>();
    let (mut all, mut left) = (axes_in_order(from), axes_in_order(from));
    for axis in axes_in_order(to) {
        match left.iter().position(|a| *a == axis) {
            Some(at) => drop(left.remove(at)),
            None => all.push(axis),
        }
    }
    all
}

/// The strides of a mesh before which as many devices lie as before an axis of another one.
fn places(on: &Mesh, other: &Mesh) -> Vec<u64> {
    let (mut strides, mut other_counts, mut count) = (vec![], vec![], 1_u64);
    for axis in other.axes().iter().rev() {
        other_counts.push(count);
        count *= u64::from(axis.size);
    }
    other_counts.push(count);
    let mut before = 1_u64;
    for axis in on.axes().iter().rev() {
        let inside = other_counts.iter().filter(|c| *c % before == 0).map(|c| c / before);
        strides.extend(inside.map(|size| size * u64::from(axis.stride)));
        before *= u64::from(axis.size);
    }
    strides
}

fn is_inside(outer: &Side, inner: &Side) -> bool {
    let axes: Vec<Axis> = outer.axes.iter().copied().filter(|a| !a.in_turn()).collect();
    let Some(digits) = digits(outer.base, &axes, inner.base) else { return false };
    let first = |axis: &Axis| axes.iter().position(|a| a == axis).is_some_and(|at| digits[at] == 0);
    inner.axes.iter().all(|axis| axis.in_turn() || first(axis))
}
