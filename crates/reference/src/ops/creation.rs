//! Tensors that come from their arguments alone.

use crate::number::Num;
use crate::ops::{Made, OpCall, wrong};
use crate::tape::{ElementKind, T};

impl OpCall<'_, '_> {
    pub(super) fn creation(&mut self) -> Made<Option<Vec<T>>> {
        let output = match self.name {
            "zeros" | "empty" => self.filled_with(0, Num::ZERO)?,
            "ones" => self.filled_with(0, Num::ONE)?,
            "full" => self.filled_with(0, self.number(1, "fill_value").unwrap_or(Num::ZERO))?,
            "new_zeros" | "new_empty" | "empty_like" => {
                let at = usize::from(self.name != "empty_like");
                if at == 0 {
                    let x = self.tensor(0, "self")?;
                    let at = x.at.iter().map(|_| self.tape.constant(Num::ZERO)).collect();
                    return Ok(Some(vec![T { at, ..x }]));
                }
                self.filled_with(at, Num::ZERO)?
            }
            "new_ones" => self.filled_with(1, Num::ONE)?,
            "new_full" => self.filled_with(1, self.number(2, "fill_value").unwrap_or(Num::ZERO))?,
            "scalar_tensor" => {
                let value = self.number(0, "s").unwrap_or(Num::ZERO);
                let kind = self.asked_kind(ElementKind::Float);
                T::new(kind, vec![], vec![self.tape.constant(value)])
            }
            "arange" => self.counted()?,
            "eye" => self.unit()?,
            _ => return Ok(None),
        };
        Ok(Some(vec![output]))
    }

    fn asked_kind(&self, default: ElementKind) -> ElementKind {
        self.kind_of(99, "dtype").unwrap_or(default)
    }

    fn filled_with(&mut self, at: usize, value: Num) -> Made<T> {
        let sizes = self.sizes(at, "size")?;
        let shape: Vec<usize> = sizes.iter().map(|size| (*size).max(0) as usize).collect();
        let count = shape.iter().product();
        self.room(count)?;
        let kind = match self.arg(at + 1, "fill_value") {
            Some(super::OpArg::Bool(_)) => ElementKind::Bool,
            Some(super::OpArg::Int(_)) => ElementKind::Int,
            _ => ElementKind::Float,
        };
        let kind = self.asked_kind(kind);
        Ok(T::new(kind, shape, (0..count).map(|_| self.tape.constant(value)).collect()))
    }

    fn counted(&mut self) -> Made<T> {
        let numbers: Vec<f64> = self.args.iter().filter_map(as_float).collect();
        let (start, end, step) = match numbers[..] {
            [end] => (0.0, end, 1.0),
            [start, end] => (start, end, 1.0),
            [start, end, step] if step != 0.0 => (start, end, step),
            _ => return wrong("arange without an end"),
        };
        let count = ((end - start) / step).ceil().max(0.0);
        self.room(count as usize)?;
        let whole = [start, end, step].iter().all(|x| x.fract() == 0.0);
        let kind = self.asked_kind(if whole { ElementKind::Int } else { ElementKind::Float });
        let value = |at: usize| Num::float(start).plus(Num::count(at).times(Num::float(step)));
        let at: Vec<u32> = (0..count as usize).map(|at| self.tape.constant(value(at))).collect();
        Ok(T::new(kind, vec![at.len()], at))
    }

    fn unit(&mut self) -> Made<T> {
        let rows = self.int(0, "n", 0).max(0) as usize;
        let columns = if self.target.ends_with(".m") { self.int(1, "m", 0).max(0) as usize } else { rows };
        self.room(rows * columns)?;
        let mut at = vec![];
        for row in 0..rows {
            at.extend((0..columns).map(|column| self.tape.constant(Num::of_bool(row == column))));
        }
        let kind = self.asked_kind(ElementKind::Float);
        Ok(T::new(kind, vec![rows, columns], at))
    }
}

fn as_float(arg: &super::OpArg) -> Option<f64> {
    match arg {
        super::OpArg::Int(value) => Some(*value as f64),
        super::OpArg::Float(value) => Some(*value),
        _ => None,
    }
}
