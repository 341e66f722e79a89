//! The shardings that an operator's parts read and write, from how a plan splits it.

use rules::{On, OpDims, Reduction, Split};

use crate::mesh::{Axis, Mesh, row, walk};
use crate::pieces::Pieces;
use crate::propagate::{self, Has, Input};
use crate::sharding::{Cut, Sharding};

/// An operator whose parts are on a row of axes.
#[derive(Clone, Debug)]
pub struct Placed<'a> {
    dims: &'a OpDims,
    splits: &'a [Split],
    base: u32,
    /// For each split the axes along which it goes, outermost first.
    axes: Vec<Vec<Axis>>,
}

/// What the parts of an operator are given of an operand, and the gradient that they give back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Read {
    pub value: Sharding,
    pub gradient: Sharding,
}

impl<'a> Placed<'a> {
    /// `None` if the devices form no mesh, or no row along the splits.
    pub fn new(dims: &'a OpDims, splits: &'a [Split], devices: &[u32]) -> Option<Placed<'a>> {
        // What exchanges rows is rewritten first.
        if splits.iter().any(|split| matches!(split.on, On::Exchange { .. })) {
            return None;
        }
        let (base, mut left) = row(devices)?;
        Mesh::new(base, &left)?;
        let mut axes = vec![];
        for split in splits.iter().rev() {
            let (mut split_axes, mut parts) = (vec![], split.parts);
            while parts > 1 {
                let mut axis = left.pop()?;
                if axis.size > parts {
                    let (outer, inner) = axis.split(parts)?;
                    left.push(outer);
                    axis = inner;
                }
                (parts % axis.size == 0).then(|| split_axes.insert(0, axis))?;
                parts /= axis.size;
            }
            axes.insert(0, split_axes);
        }
        debug_assert_eq!(walk(base, &axes.concat()), devices);
        Some(Placed { dims, splits, base, axes })
    }

    /// What the parts write of an output whose factors have these sizes.
    pub fn written(&self, output: usize, sizes: &[i64]) -> Option<Sharding> {
        let carried = &self.dims.outputs[output];
        let reduced = |split: &Split| propagate::reduced(self.dims, split.on, Reduction::Sum);
        let reduction = self.splits.iter().find_map(reduced).unwrap_or(Reduction::Sum);
        self.sharding(sizes, carried, |on| propagate::written(self.dims, carried, on), reduction)
    }

    /// What the parts read of an input whose factors have these sizes.
    pub fn read(&self, input: Input<'_>, sizes: &[i64]) -> Option<Read> {
        let (value, gradient) =
            (|on| propagate::read(self.dims, input, on), |on| propagate::gradient(self.dims, input, on));
        Some(Read {
            value: self.sharding(sizes, input.carried, value, Reduction::Sum)?,
            gradient: self.sharding(sizes, input.carried, gradient, Reduction::Sum)?,
        })
    }

    /// The parts that are not given an operand are on other devices than its sharding.
    fn sharding(
        &self,
        sizes: &[i64],
        carried: &[Option<usize>],
        has: impl Fn(On) -> Has,
        reduction: Reduction,
    ) -> Option<Sharding> {
        let splits = || self.splits.iter().zip(&self.axes);
        let cut = |(&size, carried): (&i64, &Option<usize>)| {
            let divides = |on: On| has(on) == Has::Piece && carried.is_some_and(|l| on == On::Loop(l));
            let over = || splits().filter(|(split, _)| divides(split.on));
            let counts: Vec<u32> = over().map(|(split, _)| split.parts).collect();
            let axes = over().flat_map(|(_, axes)| axes).copied().collect();
            Cut { axes, pieces: Pieces::nested(size, &counts) }
        };
        let cuts: Vec<Cut> = sizes.iter().zip(carried).map(cut).collect();
        let along = |wanted: Has| -> Vec<Axis> {
            splits()
                .filter(|(split, _)| has(split.on) == wanted)
                .flat_map(|(_, axes)| axes)
                .copied()
                .collect()
        };
        Sharding::new(self.base, cuts, &along(Has::Share), &along(Has::Copy), reduction)
    }
}
