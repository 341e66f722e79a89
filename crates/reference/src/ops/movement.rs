//! Elements that only move: views, pieces, and what is put together.

use std::rc::Rc;

use crate::number::Num;
use crate::ops::elements::{expand, indices, linear, picked, strides};
use crate::ops::{Made, OpCall, wrong};
use crate::tape::T;

impl OpCall<'_, '_> {
    pub(super) fn movement(&mut self) -> Made<Option<Vec<T>>> {
        let output = match self.name {
            "view" | "_unsafe_view" | "reshape" => self.reshaped()?,
            "view_as" | "reshape_as" => {
                let (x, like) = (self.tensor(0, "self")?, self.tensor(1, "other")?);
                viewed(&x, &like.shape.iter().map(|size| *size as i64).collect::<Vec<_>>())?
            }
            "flatten" => self.flattened()?,
            "unflatten" => self.unflattened()?,
            "squeeze" => self.squeezed()?,
            "unsqueeze" => self.unsqueezed()?,
            "transpose" | "swapaxes" | "swapdims" => {
                let x = self.tensor(0, "self")?;
                let (a, b) = (
                    self.dim(self.int(1, "dim0", 0), x.rank())?,
                    self.dim(self.int(2, "dim1", 0), x.rank())?,
                );
                let mut order: Vec<usize> = (0..x.rank()).collect();
                if !order.is_empty() {
                    order.swap(a, b);
                }
                permuted(&x, &order)
            }
            "t" | "numpy_T" => {
                let x = self.tensor(0, "self")?;
                permuted(&x, &(0..x.rank()).rev().collect::<Vec<_>>())
            }
            "mT" => {
                let x = self.tensor(0, "self")?;
                let mut order: Vec<usize> = (0..x.rank()).collect();
                if order.len() > 1 {
                    let last = order.len() - 1;
                    order.swap(last, last - 1);
                }
                permuted(&x, &order)
            }
            "permute" => {
                let x = self.tensor(0, "self")?;
                let order = self.dims(1, "dims", x.rank())?;
                self.in_order(&x, &order)?
            }
            "movedim" => self.moved()?,
            "expand" | "broadcast_to" => self.expanded()?,
            "expand_as" => {
                let (x, like) = (self.tensor(0, "self")?, self.tensor(1, "other")?);
                expand(&x, &like.shape)?
            }
            "repeat" | "tile" => self.repeated()?,
            "repeat_interleave" if self.target.ends_with("self_int") => self.interleaved()?,
            "split" | "split_with_sizes" | "unsafe_split" | "unsafe_split_with_sizes" | "chunk" => {
                return self.split().map(Some);
            }
            "unbind" => return self.unbound().map(Some),
            "cat" | "concat" | "concatenate" => {
                let all = self.tensors(0, "tensors")?;
                let dim = self.int(1, "dim", 0);
                self.joined(&all, dim)?
            }
            "stack" => self.stacked()?,
            "select" => self.selection()?,
            "slice" => self.sliced()?,
            "narrow" => {
                let x = self.tensor(0, "self")?;
                let dim = self.dim(self.int(1, "dim", 0), x.rank())?;
                let (start, length) = (self.int(2, "start", 0), self.int(3, "length", 0));
                let start = if start < 0 { start + x.shape[dim] as i64 } else { start };
                self.range(&x, dim, start, start + length, 1)?
            }
            "slice_scatter" | "select_scatter" => self.scattered()?,
            "flip" | "fliplr" | "flipud" => self.flipped()?,
            "roll" => self.rolled()?,
            "constant_pad_nd" | "pad" => return self.padded(),
            "diagonal" => self.diagonal()?,
            "unfold" => self.unfolded()?,
            "tril" | "triu" => self.triangle()?,
            "glu" => return self.gated().map(Some),
            _ => return Ok(None),
        };
        Ok(Some(vec![output]))
    }

    fn reshaped(&mut self) -> Made<T> {
        viewed(&self.tensor(0, "self")?, &self.sizes(1, "size")?)
    }

    fn flattened(&mut self) -> Made<T> {
        let x = self.tensor(0, "self")?;
        let first = self.dim(self.int(1, "start_dim", 0), x.rank())?;
        let last = self.dim(self.int(2, "end_dim", -1), x.rank())?;
        if x.rank() == 0 || last < first {
            return viewed(&x, &[1]);
        }
        let mut shape = x.shape[..first].to_vec();
        shape.push(x.shape[first..=last].iter().product());
        shape.extend(&x.shape[last + 1..]);
        Ok(T { shape, ..x })
    }

    fn unflattened(&mut self) -> Made<T> {
        let x = self.tensor(0, "self")?;
        let dim = self.dim(self.int(1, "dim", 0), x.rank())?;
        let mut sizes: Vec<i64> = x.shape.iter().map(|size| *size as i64).collect();
        sizes.splice(dim..=dim, resolved(&self.sizes(2, "sizes")?, x.shape[dim])?);
        viewed(&x, &sizes)
    }

    fn squeezed(&mut self) -> Made<T> {
        let x = self.tensor(0, "self")?;
        let all = self.target == "aten.squeeze.default";
        let dims = if all { (0..x.rank()).collect() } else { self.dims(1, "dim", x.rank())? };
        let shape = x.shape.iter().enumerate().filter(|(dim, size)| **size != 1 || !dims.contains(dim));
        let shape = shape.map(|(_, size)| *size).collect();
        Ok(T { shape, ..x })
    }

    fn unsqueezed(&mut self) -> Made<T> {
        let x = self.tensor(0, "self")?;
        let dim = self.dim(self.int(1, "dim", 0), x.rank() + 1)?;
        let mut shape = x.shape.clone();
        shape.insert(dim, 1);
        Ok(T { shape, ..x })
    }

    fn in_order(&self, x: &T, order: &[usize]) -> Made<T> {
        let mut seen = order.to_vec();
        seen.sort_unstable();
        if seen.iter().copied().eq(0..x.rank()) { Ok(permuted(x, order)) } else { wrong("no order of dims") }
    }

    fn moved(&mut self) -> Made<T> {
        let x = self.tensor(0, "self")?;
        let from = self.dims(1, "source", x.rank())?;
        let to = self.dims(2, "destination", x.rank())?;
        let mut places: Vec<(usize, usize)> = to.into_iter().zip(from.iter().copied()).collect();
        places.sort_unstable();
        let mut order: Vec<usize> = (0..x.rank()).filter(|dim| !from.contains(dim)).collect();
        places.into_iter().for_each(|(to, from)| order.insert(to.min(order.len()), from));
        self.in_order(&x, &order)
    }

    fn expanded(&mut self) -> Made<T> {
        let (x, sizes) = (self.tensor(0, "self")?, self.sizes(1, "size")?);
        let Some(lead) = sizes.len().checked_sub(x.rank()) else { return wrong("too many dims to expand") };
        let size = |(dim, size): (usize, &i64)| match usize::try_from(*size) {
            Ok(size) => Ok(size),
            Err(_) if dim >= lead => Ok(x.shape[dim - lead]),
            Err(_) => wrong("a size of -1"),
        };
        let shape = sizes.iter().enumerate().map(size).collect::<Made<Vec<usize>>>()?;
        self.room(shape.iter().product())?;
        expand(&x, &shape)
    }

    fn repeated(&mut self) -> Made<T> {
        let (x, times) = (self.tensor(0, "self")?, self.sizes(1, "repeats")?);
        let mut sizes = x.shape.clone();
        let mut times: Vec<usize> = times.iter().map(|times| (*times).max(0) as usize).collect();
        while sizes.len() < times.len() {
            sizes.insert(0, 1);
        }
        while times.len() < sizes.len() {
            times.insert(0, 1);
        }
        let shape: Vec<usize> = sizes.iter().zip(&times).map(|(size, times)| size * times).collect();
        self.room(shape.iter().product())?;
        Ok(picked(&x, shape, |index| {
            let index: Vec<usize> = index.iter().zip(&sizes).map(|(at, size)| at % size).collect();
            linear(&index, &sizes)
        }))
    }

    fn interleaved(&mut self) -> Made<T> {
        let x = self.tensor(0, "self")?;
        let times = self.int(1, "repeats", 1).max(0) as usize;
        let x = if self.ints(2, "dim").is_none() { viewed(&x, &[-1])? } else { x };
        let dim = self.dim(self.int(2, "dim", 0), x.rank())?;
        let mut shape = x.shape.clone();
        shape[dim] *= times;
        Ok(along(&x, shape, dim, |at| at / times))
    }

    fn flipped(&mut self) -> Made<T> {
        let x = self.tensor(0, "self")?;
        let dims = match self.name {
            "flipud" => vec![0],
            "fliplr" => vec![1],
            _ => self.dims(1, "dims", x.rank())?,
        };
        let sizes = x.shape.clone();
        Ok(picked(&x, sizes.clone(), |index| {
            let turned =
                |(dim, at): (usize, &usize)| if dims.contains(&dim) { sizes[dim] - 1 - at } else { *at };
            linear(&index.iter().enumerate().map(turned).collect::<Vec<_>>(), &sizes)
        }))
    }

    fn rolled(&mut self) -> Made<T> {
        let x = self.tensor(0, "self")?;
        let shifts = self.sizes(1, "shifts")?;
        let dims = self.ints(2, "dims").unwrap_or_default();
        if dims.is_empty() {
            let (flat, shape) = (viewed(&x, &[-1])?, x.shape.clone());
            let size = x.numel().max(1) as i64;
            let moved =
                along(&flat, flat.shape.clone(), 0, |at| (at as i64 - shifts[0]).rem_euclid(size) as usize);
            return Ok(T { shape, ..moved });
        }
        let mut shifted = x;
        for (shift, dim) in shifts.iter().zip(dims) {
            let dim = self.dim(dim, shifted.rank())?;
            let size = shifted.shape[dim].max(1) as i64;
            let shape = shifted.shape.clone();
            shifted = along(&shifted, shape, dim, |at| (at as i64 - shift).rem_euclid(size) as usize);
        }
        Ok(shifted)
    }

    fn padded(&mut self) -> Made<Option<Vec<T>>> {
        if self.text(2, "mode").is_some_and(|mode| mode != "constant") {
            return Ok(None);
        }
        let at_value = if self.name == "pad" { 3 } else { 2 };
        let value = self.number(at_value, "value").unwrap_or(Num::ZERO);
        let (x, pads) = (self.tensor(0, "self")?, self.sizes(1, "pad")?);
        let (mut before, mut shape) = (vec![0i64; x.rank()], x.shape.clone());
        for (place, pair) in pads.chunks(2).enumerate() {
            let (Some(dim), [low, high]) = (x.rank().checked_sub(place + 1), pair) else {
                return wrong("odd pads");
            };
            before[dim] = *low;
            shape[dim] = usize::try_from(shape[dim] as i64 + low + high).unwrap_or(0);
        }
        let fill = self.tape.constant(value);
        let at = indices(&shape).map(|index| {
            let from: Option<Vec<usize>> = index
                .iter()
                .zip(&before)
                .zip(&x.shape)
                .map(|((at, low), size)| usize::try_from(*at as i64 - low).ok().filter(|at| at < size))
                .collect();
            from.map_or(fill, |index| x.at[linear(&index, &x.shape)])
        });
        let at = at.collect();
        Ok(Some(vec![T::new(x.kind, shape, at)]))
    }

    fn diagonal(&mut self) -> Made<T> {
        let x = self.tensor(0, "self")?;
        let offset = self.int(1, "offset", 0);
        let (a, b) =
            (self.dim(self.int(2, "dim1", 0), x.rank())?, self.dim(self.int(3, "dim2", 1), x.rank())?);
        let (skip_a, skip_b) = ((-offset).max(0) as usize, offset.max(0) as usize);
        let length = x.shape[a].saturating_sub(skip_a).min(x.shape[b].saturating_sub(skip_b));
        let rest: Vec<usize> = (0..x.rank()).filter(|dim| *dim != a && *dim != b).collect();
        let mut shape: Vec<usize> = rest.iter().map(|dim| x.shape[*dim]).collect();
        shape.push(length);
        let sizes = x.shape.clone();
        Ok(picked(&x, shape, |index| {
            let mut from = vec![0; sizes.len()];
            rest.iter().zip(index).for_each(|(dim, at)| from[*dim] = *at);
            let at = index[index.len() - 1];
            (from[a], from[b]) = (at + skip_a, at + skip_b);
            linear(&from, &sizes)
        }))
    }

    fn unfolded(&mut self) -> Made<T> {
        let x = self.tensor(0, "self")?;
        let dim = self.dim(self.int(1, "dimension", 0), x.rank())?;
        let (size, step) = (self.int(2, "size", 1).max(0) as usize, self.int(3, "step", 1).max(1) as usize);
        if x.rank() == 0 || size > x.shape[dim] {
            return wrong("a window that is longer than the dim");
        }
        let mut shape = x.shape.clone();
        shape[dim] = (x.shape[dim] - size) / step + 1;
        shape.push(size);
        let sizes = x.shape.clone();
        Ok(picked(&x, shape, |index| {
            let mut from = index[..sizes.len()].to_vec();
            from[dim] = from[dim] * step + index[sizes.len()];
            linear(&from, &sizes)
        }))
    }

    fn triangle(&mut self) -> Made<T> {
        let x = self.tensor(0, "self")?;
        let by = self.int(1, "diagonal", 0);
        if x.rank() < 2 {
            return wrong("a triangle of no matrix");
        }
        let (lower, zero) = (self.name == "tril", self.tape.constant(Num::ZERO));
        let at = indices(&x.shape).zip(x.at.iter()).map(|(index, at)| {
            let far = index[index.len() - 1] as i64 - index[index.len() - 2] as i64;
            if (far <= by && lower) || (far >= by && !lower) { *at } else { zero }
        });
        let at: Rc<[u32]> = at.collect();
        Ok(T { at, ..x })
    }

    fn gated(&mut self) -> Made<Vec<T>> {
        let x = self.tensor(0, "self")?;
        let dim = self.dim(self.int(1, "dim", -1), x.rank())?;
        let half = x.shape[dim] as i64 / 2;
        let (a, b) = (self.range(&x, dim, 0, half, 1)?, self.range(&x, dim, half, 2 * half, 1)?);
        let gate =
            super::run(self.tape, self.env, "aten.sigmoid.default", vec![super::OpArg::Tensor(b)], vec![])?;
        let [gate] = &gate[..] else { return wrong("no gate") };
        let args = [&a, gate].map(|x| super::OpArg::Tensor(x.clone())).to_vec();
        super::run(self.tape, self.env, "aten.mul.Tensor", args, vec![])
    }
}

fn resolved(sizes: &[i64], count: usize) -> Made<Vec<i64>> {
    let known: i64 = sizes.iter().filter(|size| **size >= 0).product();
    let open = sizes.iter().filter(|size| **size < 0).count();
    if open == 0 {
        return Ok(sizes.to_vec());
    }
    if open > 1 || known == 0 {
        return wrong(format!("sizes {sizes:?}"));
    }
    Ok(sizes.iter().map(|size| if *size < 0 { count as i64 / known } else { *size }).collect())
}

pub(super) fn viewed(x: &T, sizes: &[i64]) -> Made<T> {
    let shape: Vec<usize> = resolved(sizes, x.numel())?.iter().map(|size| *size as usize).collect();
    if shape.iter().product::<usize>() != x.numel() {
        return wrong(format!("{:?} viewed as {sizes:?}", x.shape));
    }
    Ok(T { shape, ..x.clone() })
}

pub(super) fn permuted(x: &T, order: &[usize]) -> T {
    let steps = strides(&x.shape);
    let shape = order.iter().map(|dim| x.shape[*dim]).collect();
    picked(x, shape, |index| index.iter().zip(order).map(|(at, dim)| at * steps[*dim]).sum())
}

/// Elements along one dim by their place.
pub(super) fn along(x: &T, shape: Vec<usize>, dim: usize, from: impl Fn(usize) -> usize) -> T {
    let steps = strides(&x.shape);
    picked(x, shape, |index| {
        let place =
            |(at_dim, at): (usize, &usize)| steps[at_dim] * if at_dim == dim { from(*at) } else { *at };
        index.iter().enumerate().map(place).sum()
    })
}
