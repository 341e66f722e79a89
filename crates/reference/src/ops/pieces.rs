//! Pieces of tensors along a dim, and what is put together of several.

use crate::ops::elements::{indices, linear};
use crate::ops::movement::along;
use crate::ops::{Made, OpArg, OpCall, wrong};
use crate::tape::T;

impl OpCall<'_, '_> {
    pub(super) fn split(&mut self) -> Made<Vec<T>> {
        let x = self.tensor(0, "self")?;
        let dim = self.dim(self.int(2, "dim", 0), x.rank())?;
        let size = x.shape.get(dim).copied().unwrap_or(1) as i64;
        let sizes = match self.sizes(1, "split_sizes")?[..] {
            [count] if self.name == "chunk" => pieces(size, (size + count.max(1) - 1) / count.max(1)),
            [each] if !matches!(self.arg(1, "split_size"), Some(OpArg::List(_))) => pieces(size, each),
            ref sizes => sizes.to_vec(),
        };
        if sizes.iter().sum::<i64>() != size {
            return wrong(format!("{}: pieces of {sizes:?} of {size}", self.target));
        }
        let mut start = 0;
        let piece = |length: &i64| {
            start += length;
            self.range(&x, dim, start - length, start, 1)
        };
        sizes.iter().map(piece).collect()
    }

    pub(super) fn unbound(&mut self) -> Made<Vec<T>> {
        let x = self.tensor(0, "self")?;
        let dim = self.dim(self.int(1, "dim", 0), x.rank())?;
        (0..x.shape[dim]).map(|at| self.chosen_at(&x, dim, at as i64)).collect()
    }

    pub(super) fn joined(&self, all: &[T], dim: i64) -> Made<T> {
        let all: Vec<&T> = all.iter().filter(|x| x.shape != [0]).collect();
        let Some(first) = all.first() else { return wrong("nothing to join") };
        let dim = self.dim(dim, first.rank())?;
        let equal = |x: &&T| {
            x.rank() == first.rank() && (0..x.rank()).all(|at| at == dim || x.shape[at] == first.shape[at])
        };
        if !all.iter().all(equal) {
            return wrong(format!("{}: shapes that do not fit", self.target));
        }
        let mut shape = first.shape.clone();
        shape[dim] = all.iter().map(|x| x.shape[dim]).sum();
        let ends: Vec<usize> = all
            .iter()
            .scan(0, |end, x| {
                *end += x.shape[dim];
                Some(*end)
            })
            .collect();
        let at = indices(&shape).map(|mut index| {
            let which = ends.partition_point(|end| *end <= index[dim]);
            index[dim] -= if which == 0 { 0 } else { ends[which - 1] };
            all[which].at[linear(&index, &all[which].shape)]
        });
        let at = at.collect();
        Ok(T::new(first.kind, shape, at))
    }

    pub(super) fn stacked(&mut self) -> Made<T> {
        let all = self.tensors(0, "tensors")?;
        let rank = all.first().map_or(0, T::rank);
        let dim = self.dim(self.int(1, "dim", 0), rank + 1)?;
        let raised = |x: T| {
            let mut shape = x.shape.clone();
            shape.insert(dim.min(shape.len()), 1);
            T { shape, ..x }
        };
        let all: Vec<T> = all.into_iter().map(raised).collect();
        self.joined(&all, dim as i64)
    }

    pub(super) fn selection(&mut self) -> Made<T> {
        let x = self.tensor(0, "self")?;
        let dim = self.dim(self.int(1, "dim", 0), x.rank())?;
        self.chosen_at(&x, dim, self.int(2, "index", 0))
    }

    fn chosen_at(&self, x: &T, dim: usize, at: i64) -> Made<T> {
        if x.rank() == 0 {
            return wrong("a part of a number");
        }
        let at = if at < 0 { at + x.shape[dim] as i64 } else { at };
        let mut piece = self.range(x, dim, at, at + 1, 1)?;
        piece.shape.remove(dim);
        Ok(piece)
    }

    pub(super) fn sliced(&mut self) -> Made<T> {
        let x = self.tensor(0, "self")?;
        let dim = self.dim(self.int(1, "dim", 0), x.rank())?;
        let (start, end, step) = self.bounds(&x, dim, 2);
        self.range(&x, dim, start, end, step)
    }

    fn bounds(&self, x: &T, dim: usize, from: usize) -> (i64, i64, i64) {
        let size = x.shape.get(dim).copied().unwrap_or(1) as i64;
        let wrapped = |at: i64| if at < 0 { (at + size).max(0) } else { at.min(size) };
        let (start, end) =
            (wrapped(self.int(from, "start", 0)), wrapped(self.int(from + 1, "end", i64::MAX)));
        (start, end.max(start), self.int(from + 2, "step", 1))
    }

    pub(super) fn range(&self, x: &T, dim: usize, start: i64, end: i64, step: i64) -> Made<T> {
        let size = x.shape.get(dim).copied().unwrap_or(1) as i64;
        if start < 0 || end > size || end < start || step < 1 || x.rank() == 0 {
            return wrong(format!("{}: {start}..{end} of {size}", self.target));
        }
        let mut shape = x.shape.clone();
        shape[dim] = ((end - start + step - 1) / step) as usize;
        Ok(along(x, shape, dim, |at| start as usize + at * step as usize))
    }

    pub(super) fn scattered(&mut self) -> Made<T> {
        let (x, source) = (self.tensor(0, "self")?, self.tensor(1, "src")?);
        let dim = self.dim(self.int(2, "dim", 0), x.rank())?;
        let (start, end, step) = if self.name == "select_scatter" {
            let at = self.int(3, "index", 0);
            let at = if at < 0 { at + x.shape[dim] as i64 } else { at };
            (at, at + 1, 1)
        } else {
            self.bounds(&x, dim, 3)
        };
        let mut shape = x.shape.clone();
        shape[dim] = ((end - start + step - 1) / step).max(0) as usize;
        if shape.iter().product::<usize>() != source.numel() {
            return wrong(format!("{}: shapes that do not fit", self.target));
        }
        let mut at = x.at.to_vec();
        for (mut index, new) in indices(&shape).zip(source.at.iter()) {
            index[dim] = start as usize + index[dim] * step as usize;
            at[linear(&index, &x.shape)] = *new;
        }
        Ok(T { at: at.into(), ..x })
    }
}

fn pieces(size: i64, each: i64) -> Vec<i64> {
    if each < 1 {
        return vec![size];
    }
    let full = size / each;
    let rest = size % each;
    let mut sizes = vec![each; full as usize];
    sizes.extend((rest > 0 || size == 0).then_some(rest));
    sizes
}
