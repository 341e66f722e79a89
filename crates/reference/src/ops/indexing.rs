//! Elements by numbers that are data. Numbers beyond the dim come round, on every side alike: those of parts are of the whole.

use crate::number::Num;
use crate::ops::elements::{broadcast, expand, indices, linear, sum};
use crate::ops::movement::permuted;
use crate::ops::{Made, OpArg, OpCall, wrong};
use crate::tape::{ElementKind, T};

impl OpCall<'_, '_> {
    pub(super) fn indexing(&mut self) -> Made<Option<Vec<T>>> {
        let output = match self.name {
            "embedding" => self.embedded()?,
            "gather" | "take_along_dim" => self.gathered()?,
            "index_select" => self.rows_of()?,
            "index" | "_unsafe_index" => return self.by_tensors(),
            "one_hot" => self.hot()?,
            "scatter_add" | "scatter" if !self.target.contains("reduce") => {
                self.put(self.name == "scatter_add")?
            }
            "index_add" => self.added_rows()?,
            _ => return Ok(None),
        };
        Ok(Some(vec![output]))
    }

    fn embedded(&mut self) -> Made<T> {
        let (weight, numbers) = (self.tensor(0, "weight")?, self.tensor(1, "indices")?);
        let padding = self.int(2, "padding_idx", -1);
        if weight.rank() != 2 || weight.shape[0] == 0 {
            return wrong("an embedding without rows");
        }
        let total = weight.shape[0];
        self.looked_up(&weight, &numbers, 0, total, padding)
    }

    /// Rows of a part of a table, zeros where it has not that row. The row of padding gets no gradient.
    pub(super) fn looked_up(
        &mut self,
        weight: &T,
        numbers: &T,
        start: i64,
        total: usize,
        padding: i64,
    ) -> Made<T> {
        let (rows, width) = (weight.shape[0] as i64, weight.shape[1]);
        let mut at = Vec::with_capacity(numbers.numel() * width);
        for number in numbers.at.iter() {
            let number = self.tape.value(*number);
            let row = number.index(total) as i64;
            for column in 0..width {
                let is_here = (start..start + rows).contains(&row);
                let place = |row: i64| weight.at[(row - start) as usize * width + column];
                at.push(if is_here && row == padding {
                    let value = self.tape.value(place(row));
                    self.tape.constant(value)
                } else if is_here {
                    place(row)
                } else {
                    self.tape.constant(Num::ZERO)
                });
            }
        }
        Ok(T::new(weight.kind, [&numbers.shape[..], &[width]].concat(), at))
    }

    fn gathered(&mut self) -> Made<T> {
        let (dim_at, numbers_at) = if self.name == "gather" { (1, 2) } else { (2, 1) };
        let (x, numbers) = (self.tensor(0, "self")?, self.tensor(numbers_at, "index")?);
        let dim = self.dim(self.int(dim_at, "dim", 0), x.rank())?;
        let fits = x.rank() == numbers.rank()
            && (0..x.rank()).all(|at| at == dim || numbers.shape[at] <= x.shape[at]);
        if !fits || x.rank() == 0 || x.shape[dim] == 0 {
            return wrong(format!("{}: {:?} by {:?}", self.target, x.shape, numbers.shape));
        }
        let mut at = vec![];
        for (mut index, number) in indices(&numbers.shape).zip(numbers.at.iter()) {
            let number = self.tape.value(*number);
            index[dim] = number.index(x.shape[dim]);
            at.push(x.at[linear(&index, &x.shape)]);
        }
        Ok(T::new(x.kind, numbers.shape, at))
    }

    fn rows_of(&mut self) -> Made<T> {
        let (x, numbers) = (self.tensor(0, "self")?, self.tensor(2, "index")?);
        let dim = self.dim(self.int(1, "dim", 0), x.rank())?;
        let mut shape = x.shape.clone();
        if x.rank() == 0 || shape[dim] == 0 {
            return wrong("rows of nothing");
        }
        shape[dim] = numbers.numel();
        let mut at = vec![];
        for mut index in indices(&shape) {
            let number = self.tape.value(numbers.at[index[dim]]);
            index[dim] = number.index(x.shape[dim]);
            at.push(x.at[linear(&index, &x.shape)]);
        }
        Ok(T::new(x.kind, shape, at))
    }

    fn by_tensors(&mut self) -> Made<Option<Vec<T>>> {
        let x = self.tensor(0, "self")?;
        let Some(OpArg::List(items)) = self.arg(1, "indices") else { return Ok(None) };
        let items: Vec<Option<T>> = items
            .iter()
            .map(|item| if let OpArg::Tensor(x) = item { Some(x.clone()) } else { None })
            .collect();
        if items.iter().flatten().any(|it| it.kind == ElementKind::Bool) {
            return Ok(None);
        }
        let dims: Vec<usize> = (0..items.len()).filter(|dim| items[*dim].is_some()).collect();
        let (Some(first), Some(last)) = (dims.first(), dims.last()) else { return Ok(Some(vec![x])) };
        if items.len() > x.rank() || dims.iter().any(|dim| x.shape[*dim] == 0) {
            return wrong("more numbers than dims");
        }
        let shapes: Vec<&[usize]> = items.iter().flatten().map(|it| &it.shape[..]).collect();
        let common = broadcast(&shapes)?;
        let numbers = items.iter().flatten().map(|it| expand(it, &common)).collect::<Made<Vec<T>>>()?;
        // Dims that are indexed come first unless they are neighbours.
        let neighbours = last - first + 1 == dims.len();
        let rest: Vec<usize> = (0..x.rank()).filter(|dim| !dims.contains(dim)).collect();
        let before = if neighbours { *first } else { 0 };
        let sizes: Vec<usize> = rest.iter().map(|dim| x.shape[*dim]).collect();
        let shape = [&sizes[..before], &common, &sizes[before..]].concat();
        self.room(shape.iter().product())?;
        let mut at = vec![];
        for index in indices(&shape) {
            let inner = linear(&index[before..before + common.len()], &common);
            let mut from = vec![0; x.rank()];
            let outer = index[..before].iter().chain(&index[before + common.len()..]);
            rest.iter().zip(outer).for_each(|(dim, at)| from[*dim] = *at);
            for (dim, numbers) in dims.iter().zip(&numbers) {
                from[*dim] = self.tape.value(numbers.at[inner]).index(x.shape[*dim]);
            }
            at.push(x.at[linear(&from, &x.shape)]);
        }
        Ok(Some(vec![T::new(x.kind, shape, at)]))
    }

    fn hot(&mut self) -> Made<T> {
        let (x, classes) = (self.tensor(0, "self")?, self.int(1, "num_classes", -1));
        let Ok(classes) = usize::try_from(classes) else {
            return wrong("one_hot without a number of classes");
        };
        let mut at = vec![];
        for number in x.at.iter() {
            let number = self.tape.value(*number);
            let class = number.index(classes);
            at.extend((0..classes).map(|other| self.tape.constant(Num::of_bool(class == other))));
        }
        Ok(T::new(ElementKind::Int, [&x.shape[..], &[classes]].concat(), at))
    }

    fn put(&mut self, adds: bool) -> Made<T> {
        let (x, numbers) = (self.tensor(0, "self")?, self.tensor(2, "index")?);
        let dim = self.dim(self.int(1, "dim", 0), x.rank())?;
        let source = self.operand(3, "src")?;
        let source = if source.rank() == 0 { expand(&source, &numbers.shape)? } else { source };
        let small =
            |x: &T| x.rank() == numbers.rank() && numbers.shape.iter().zip(&x.shape).all(|(a, b)| a <= b);
        if !small(&source) || x.rank() != numbers.rank() || x.rank() == 0 || x.shape[dim] == 0 {
            return wrong(format!("{}: shapes that do not fit", self.target));
        }
        let mut at = x.at.to_vec();
        for (index, number) in indices(&numbers.shape).zip(numbers.at.iter()) {
            let new = source.at[linear(&index, &source.shape)];
            let mut to = index;
            to[dim] = self.tape.value(*number).index(x.shape[dim]);
            if to.iter().zip(&x.shape).any(|(at, size)| at >= size) {
                return wrong(format!("{}: shapes that do not fit", self.target));
            }
            let place = linear(&to, &x.shape);
            at[place] = if adds { sum(self.tape, &[at[place], new]) } else { new };
        }
        Ok(T { at: at.into(), ..x })
    }

    fn added_rows(&mut self) -> Made<T> {
        let (x, numbers, source) =
            (self.tensor(0, "self")?, self.tensor(2, "index")?, self.tensor(3, "source")?);
        let dim = self.dim(self.int(1, "dim", 0), x.rank())?;
        let by = self.number(9, "alpha").unwrap_or(Num::ONE);
        if x.rank() == 0 || source.rank() != x.rank() || source.shape[dim] != numbers.numel() {
            return wrong(format!("{}: shapes that do not fit", self.target));
        }
        let mut order: Vec<usize> = (0..x.rank()).collect();
        order.swap(0, dim);
        let (turned, source) = (permuted(&x, &order), permuted(&source, &order));
        let width = source.numel() / source.shape[0].max(1);
        if width != turned.numel() / turned.shape[0].max(1) || turned.shape[0] == 0 {
            return wrong(format!("{}: shapes that do not fit", self.target));
        }
        let mut at = turned.at.to_vec();
        for (row, number) in numbers.at.iter().enumerate() {
            let to = self.tape.value(*number).index(turned.shape[0]);
            for column in 0..width {
                let new = super::elements::scaled(self.tape, source.at[row * width + column], by);
                at[to * width + column] = sum(self.tape, &[at[to * width + column], new]);
            }
        }
        Ok(permuted(&T { at: at.into(), ..turned }, &order))
    }
}
