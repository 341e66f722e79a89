//! The shardings that an operator's parts read and write, from how a plan splits it.

use plan::{On, OpPlan};
use rules::{Kind, OpDims, Reduction};

use crate::mesh::{Axis, Mesh, row, walk};
use crate::pieces::Pieces;
use crate::sharding::{Cut, Sharding};

/// An operator whose parts are on a row of axes.
#[derive(Clone, Debug)]
pub struct Placed<'a> {
    dims: &'a OpDims,
    plan: &'a OpPlan,
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

/// What is asked of an operand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Operand {
    /// Its position among the inputs.
    pub input: usize,
    /// It is given to the first part of every summed dim only.
    pub once: bool,
    /// It is one of those that a split by value divides.
    pub linear: bool,
}

impl<'a> Placed<'a> {
    /// `None` if the devices form no mesh, or no row along the splits.
    pub fn of(dims: &'a OpDims, plan: &'a OpPlan) -> Option<Placed<'a>> {
        // What exchanges rows is rewritten first.
        if plan::exchanges(&plan.splits) {
            return None;
        }
        let (base, mut left) = row(&plan.devices)?;
        Mesh::new(base, &left)?;
        let mut axes = vec![];
        for split in plan.splits.iter().rev() {
            let (mut of, mut parts) = (vec![], split.parts);
            while parts > 1 {
                let mut axis = left.pop()?;
                if axis.size > parts {
                    let (outer, inner) = axis.split(parts)?;
                    left.push(outer);
                    axis = inner;
                }
                (parts % axis.size == 0).then(|| of.insert(0, axis))?;
                parts /= axis.size;
            }
            axes.insert(0, of);
        }
        debug_assert_eq!(walk(base, &axes.concat()), plan.devices);
        Some(Placed { dims, plan, base, axes })
    }

    /// What the parts write of an output whose factors have these sizes.
    pub fn written(&self, output: usize, sizes: &[i64]) -> Option<Sharding> {
        let reduction = |on: On| match on {
            On::Loop(l) => match self.dims.loops[l].kind {
                Kind::Reduce(reduction) => Some(reduction),
                _ => None,
            },
            On::Value => Some(Reduction::Sum),
            On::Copies | On::Exchange { .. } => None,
        };
        let how = self.plan.splits.iter().find_map(|s| reduction(s.on)).unwrap_or(Reduction::Sum);
        self.sharding(sizes, &self.dims.outputs[output], |on| reduction(on).is_some(), |_| true, how)
    }

    /// What the parts read of an input whose factors have these sizes.
    pub fn read(&self, operand: Operand, sizes: &[i64]) -> Option<Read> {
        let Operand { input, once, linear } = operand;
        let carried = &self.dims.inputs[input];
        let reduced = |l: usize| matches!(self.dims.loops[l].kind, Kind::Reduce(_));
        // The parts that an operand is not given are on other devices than its sharding.
        let given = |on: On| match on {
            On::Loop(l) => !(once && reduced(l)),
            On::Value => !once,
            On::Copies | On::Exchange { .. } => true,
        };
        let is_value = |on: On| linear && on == On::Value;
        // Gradients are partial over every split that the operand does not have.
        let is_gradient = |on: On| match on {
            On::Loop(l) => !carried.contains(&Some(l)),
            On::Value => !linear,
            On::Copies | On::Exchange { .. } => false,
        };
        Some(Read {
            value: self.sharding(sizes, carried, is_value, given, Reduction::Sum)?,
            gradient: self.sharding(sizes, carried, is_gradient, given, Reduction::Sum)?,
        })
    }

    fn sharding(
        &self,
        sizes: &[i64],
        carried: &[Option<usize>],
        is_partial: impl Fn(On) -> bool,
        given: impl Fn(On) -> bool,
        reduction: Reduction,
    ) -> Option<Sharding> {
        let splits = || self.plan.splits.iter().zip(&self.axes).filter(|(s, _)| given(s.on));
        let cut = |(&size, carried): (&i64, &Option<usize>)| {
            let over = || splits().filter(|(s, _)| carried.is_some_and(|l| s.on == On::Loop(l)));
            let counts: Vec<u32> = over().map(|(s, _)| s.parts).collect();
            let axes = over().flat_map(|(_, axes)| axes).copied().collect();
            Cut { axes, pieces: Pieces::nested(size, &counts) }
        };
        let cuts: Vec<Cut> = sizes.iter().zip(carried).map(cut).collect();
        let divides = |on: On| matches!(on, On::Loop(l) if carried.contains(&Some(l)));
        let along = |holds: &dyn Fn(On) -> bool| -> Vec<Axis> {
            splits().filter(|(s, _)| !divides(s.on) && holds(s.on)).flat_map(|(_, a)| a).copied().collect()
        };
        Sharding::new(self.base, cuts, &along(&is_partial), &along(&|on| !is_partial(on)), reduction)
    }
}
