//! Windows: the greatest of each, or the mean.

use crate::number::Num;
use crate::ops::elements::{extreme, indices, linear, scaled, sum};
use crate::ops::{Made, OpCall};
use crate::tape::{T, Tape};

impl OpCall<'_, '_> {
    pub(super) fn pooling(&mut self) -> Made<Option<Vec<T>>> {
        let Some((name, dims)) = split_name(self.name) else { return Ok(None) };
        let x = self.tensor(0, "self")?;
        if x.rank() < dims {
            return super::wrong("a window over more dims than there are");
        }
        match name {
            "adaptive_avg_pool" | "_adaptive_avg_pool" => {
                self.adaptive(&x, dims).map(|made| Some(vec![made]))
            }
            "max_pool" if !self.flag(5, "ceil_mode", false) => {
                let pick = |tape: &mut Tape, all: &[u32], _: usize| {
                    let (best, _) = extreme(tape, all, true)?;
                    Ok(sum(tape, &[best]))
                };
                self.windows(&x, dims, true, pick).map(|made| Some(vec![made]))
            }
            "avg_pool" if !self.flag(4, "ceil_mode", false) && self.ints(6, "divisor_override").is_none() => {
                let all_count = self.flag(5, "count_include_pad", true);
                let mean = |tape: &mut Tape, all: &[u32], size: usize| {
                    let total = sum(tape, all);
                    let count = if all_count { size } else { all.len() };
                    Ok(scaled(tape, total, Num::count(count).inverse()))
                };
                self.windows(&x, dims, false, mean).map(|made| Some(vec![made]))
            }
            _ => Ok(None),
        }
    }

    fn windows(
        &mut self,
        x: &T,
        dims: usize,
        dilates: bool,
        mut f: impl FnMut(&mut Tape, &[u32], usize) -> Made<u32>,
    ) -> Made<T> {
        let per_dim = |given: Option<Vec<i64>>, default: &[i64]| match given {
            Some(values) if values.len() == 1 => vec![values[0]; dims],
            Some(values) if values.len() == dims => values,
            _ => default.to_vec(),
        };
        let size = per_dim(self.ints(1, "kernel_size"), &vec![1; dims]);
        let stride = per_dim(self.ints(2, "stride"), &size);
        let padding = per_dim(self.ints(3, "padding"), &vec![0; dims]);
        let apart = if dilates { per_dim(self.ints(4, "dilation"), &vec![1; dims]) } else { vec![1; dims] };
        let lead = x.rank() - dims;
        let mut shape = x.shape[..lead].to_vec();
        for dim in 0..dims {
            let span = x.shape[lead + dim] as i64 + 2 * padding[dim] - apart[dim] * (size[dim] - 1) - 1;
            shape.push(if span < 0 { 0 } else { (span / stride[dim].max(1) + 1) as usize });
        }
        let window: Vec<usize> = size.iter().map(|size| (*size).max(0) as usize).collect();
        let (inner, count) = (indices(&window).collect::<Vec<_>>(), window.iter().product());
        self.room(shape.iter().product::<usize>() * count)?;
        let mut at = vec![];
        for index in indices(&shape) {
            let element = |within: &Vec<usize>| {
                let mut from = index[..lead].to_vec();
                for dim in 0..dims {
                    let place = index[lead + dim] as i64 * stride[dim] - padding[dim]
                        + within[dim] as i64 * apart[dim];
                    from.push(usize::try_from(place).ok().filter(|at| *at < x.shape[lead + dim])?);
                }
                Some(x.at[linear(&from, &x.shape)])
            };
            let all: Vec<u32> = inner.iter().filter_map(element).collect();
            at.push(f(self.tape, &all, count)?);
        }
        Ok(T::new(x.kind, shape, at))
    }

    fn adaptive(&mut self, x: &T, dims: usize) -> Made<T> {
        let lead = x.rank() - dims;
        let sizes = match self.arg(1, "output_size") {
            Some(super::OpArg::List(items)) => {
                items.iter().map(|item| if let super::OpArg::Int(v) = item { *v } else { -1 }).collect()
            }
            Some(super::OpArg::Int(size)) => vec![*size; dims],
            _ => vec![-1; dims],
        };
        let mut shape = x.shape[..lead].to_vec();
        for dim in 0..dims {
            let length = x.shape[lead + dim];
            shape.push(sizes.get(dim).map_or(length, |size| usize::try_from(*size).unwrap_or(length)));
        }
        let mut at = vec![];
        for index in indices(&shape) {
            let span = |dim: usize| {
                let (length, made, at) = (x.shape[lead + dim], shape[lead + dim], index[lead + dim]);
                (at * length / made, ((at + 1) * length).div_ceil(made))
            };
            let spans: Vec<(usize, usize)> = (0..dims).map(span).collect();
            let sizes: Vec<usize> = spans.iter().map(|(lo, hi)| hi - lo).collect();
            let all: Vec<u32> = indices(&sizes)
                .map(|within| {
                    let inner = within.iter().zip(&spans).map(|(at, (lo, _))| at + lo);
                    let from: Vec<usize> = index[..lead].iter().copied().chain(inner).collect();
                    x.at[linear(&from, &x.shape)]
                })
                .collect();
            let total = sum(self.tape, &all);
            at.push(scaled(self.tape, total, Num::count(all.len()).inverse()));
        }
        Ok(T::new(x.kind, shape, at))
    }
}

fn split_name(name: &str) -> Option<(&str, usize)> {
    let (name, dims) =
        name.strip_suffix('d').and_then(|rest| rest.split_at_checked(rest.len().checked_sub(1)?))?;
    Some((name, dims.parse().ok().filter(|dims| (1..=3).contains(dims))?))
}
