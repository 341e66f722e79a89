//! Over dims: sums, means, the greatest, and statistics of these.

use crate::number::Num;
use crate::ops::elements::{
    ElementRows, add, exp, extreme, log, log_softmax, mul, rows, scaled, softmax, sqrt, sub, sum, unrows,
};
use crate::ops::{Made, OpCall};
use crate::tape::{ElementKind, T, Tape};

impl OpCall<'_, '_> {
    pub(super) fn reduction(&mut self) -> Made<Option<Vec<T>>> {
        let output = match self.name {
            "sum" => self.over(1, 2, None, |tape, row| Ok(sum(tape, row)))?,
            "mean" => self.over(1, 2, Some(ElementKind::Float), |tape, row| Ok(mean(tape, row)))?,
            "amax" => self.over(1, 2, None, |tape, row| Ok(extreme_of_row(tape, row, true)?.0))?,
            "amin" => self.over(1, 2, None, |tape, row| Ok(extreme_of_row(tape, row, false)?.0))?,
            "prod" => self.over(1, 2, None, |tape, row| Ok(product(tape, row)))?,
            "any" => self.over(1, 2, Some(ElementKind::Bool), |tape, row| Ok(any(tape, row, true)))?,
            "all" => self.over(1, 2, Some(ElementKind::Bool), |tape, row| Ok(any(tape, row, false)))?,
            "count_nonzero" => self.over(1, 9, Some(ElementKind::Int), |tape, row| Ok(count(tape, row)))?,
            "logsumexp" => self.over(1, 2, Some(ElementKind::Float), log_sum_exp)?,
            "max" | "min" => return self.extremes().map(Some),
            "argmax" | "argmin" => self.place()?,
            "var" | "std" | "var_mean" | "std_mean" => return self.spread().map(Some),
            "softmax" | "_softmax" | "special_softmax" | "_safe_softmax" => {
                let safe = self.name == "_safe_softmax";
                self.by_row(|tape, row| softmax(tape, row, safe))?
            }
            "log_softmax" | "_log_softmax" | "special_log_softmax" => self.by_row(log_softmax)?,
            "cumsum" => self.by_row(|tape, row| {
                let mut sums: Vec<u32> = vec![];
                for at in row {
                    sums.push(match sums.last() {
                        Some(before) => add(tape, *before, *at),
                        None => sum(tape, &[*at]),
                    });
                }
                Ok(sums)
            })?,
            "linalg_vector_norm" if self.is_euclidean() => {
                self.over(2, 3, Some(ElementKind::Float), |tape, row| {
                    let squares: Vec<u32> = row.iter().map(|at| mul(tape, *at, *at)).collect();
                    let total = sum(tape, &squares);
                    Ok(sqrt(tape, total))
                })?
            }
            _ => return Ok(None),
        };
        Ok(Some(vec![output]))
    }

    fn is_euclidean(&self) -> bool {
        self.number(1, "ord").unwrap_or(Num::int(2)) == Num::int(2)
    }

    fn over(
        &mut self,
        dims: usize,
        keep: usize,
        kind: Option<ElementKind>,
        mut f: impl FnMut(&mut Tape, &[u32]) -> Made<u32>,
    ) -> Made<T> {
        let x = self.tensor(0, "self")?;
        // The overload without dims takes a dtype in their place.
        let along = self.dims(dims, "dim", x.rank())?;
        let keep = self.flag(keep, "keepdim", false);
        let asked = self.args.iter().chain(self.kwargs.iter().map(|(_, arg)| arg));
        let asked = asked
            .into_iter()
            .find_map(|arg| if let super::OpArg::Dtype(d) = arg { Some(super::kind(*d)) } else { None });
        let made = asked.or(kind).unwrap_or(if x.kind == ElementKind::Bool && self.name == "sum" {
            ElementKind::Int
        } else {
            x.kind
        });
        let grouped = rows(&x, &along);
        let at = grouped.rows.iter().map(|row| f(self.tape, row)).collect::<Made<Vec<u32>>>()?;
        Ok(T::new(made, grouped.shape_of(keep), at))
    }

    fn by_row(&mut self, mut f: impl FnMut(&mut Tape, &[u32]) -> Made<Vec<u32>>) -> Made<T> {
        let x = self.tensor(0, "self")?;
        let dim = self.dim(self.int(1, "dim", -1), x.rank())?;
        let grouped = rows(&x, &[dim]);
        let made = grouped.rows.iter().map(|row| f(self.tape, row)).collect::<Made<Vec<_>>>()?;
        Ok(unrows(
            &x.shape,
            &[dim],
            &made,
            if x.kind == ElementKind::Bool { ElementKind::Int } else { x.kind },
        ))
    }

    /// `max` and `min`, of all or along a dim, with the place.
    fn extremes(&mut self) -> Made<Vec<T>> {
        let x = self.tensor(0, "self")?;
        let greatest = self.name == "max";
        let all = self.target.ends_with(".default");
        let dims =
            if all { (0..x.rank()).collect() } else { vec![self.dim(self.int(1, "dim", 0), x.rank())?] };
        let keep = self.flag(2, "keepdim", false) && !all;
        let ElementRows { kept, shape, rows } = rows(&x, &dims);
        let (mut values, mut places) = (vec![], vec![]);
        for row in &rows {
            let (at, place) = if all {
                extreme_of_row(self.tape, row, greatest)?
            } else {
                extreme(self.tape, row, greatest)?
            };
            values.push(sum(self.tape, &[at]));
            places.push(self.tape.constant(Num::count(place)));
        }
        let shape = if keep { kept } else { shape };
        let values = T::new(x.kind, shape.clone(), values);
        Ok(if all { vec![values] } else { vec![values, T::new(ElementKind::Int, shape, places)] })
    }

    fn place(&mut self) -> Made<T> {
        let x = self.tensor(0, "self")?;
        let greatest = self.name == "argmax";
        let along = self.dims(1, "dim", x.rank())?;
        let grouped = rows(&x, &along);
        let keep = self.flag(2, "keepdim", false);
        let mut at = vec![];
        for row in &grouped.rows {
            let (_, place) = extreme(self.tape, row, greatest)?;
            at.push(self.tape.constant(Num::count(place)));
        }
        Ok(T::new(ElementKind::Int, grouped.shape_of(keep), at))
    }

    fn spread(&mut self) -> Made<Vec<T>> {
        let x = self.tensor(0, "self")?;
        // `default` and `dim` have a flag for what `correction` says by number.
        let whole = self.target.ends_with(".default");
        let by_number = self.target.ends_with(".correction");
        let dims = if whole { (0..x.rank()).collect() } else { self.dims(1, "dim", x.rank())? };
        let flag_at = if whole { 1 } else { 2 };
        let (less, keep_at) = match by_number {
            true => (self.number(2, "correction").unwrap_or(Num::ONE), 3),
            false => (Num::of_bool(self.flag(flag_at, "unbiased", true)), 3),
        };
        let keep = self.flag(keep_at, "keepdim", false) && !whole;
        let grouped = rows(&x, &dims);
        let (mut spreads, mut means) = (vec![], vec![]);
        for row in &grouped.rows {
            let (centre, squares) = moments(self.tape, row);
            let total = sum(self.tape, &squares);
            let var = scaled(self.tape, total, Num::count(row.len()).minus(less).inverse());
            spreads.push(if self.name.starts_with("std") { sqrt(self.tape, var) } else { var });
            means.push(centre);
        }
        let shape = grouped.shape_of(keep);
        let mut made = vec![T::new(ElementKind::Float, shape.clone(), spreads)];
        made.extend(self.name.ends_with("mean").then(|| T::new(ElementKind::Float, shape, means)));
        Ok(made)
    }
}

pub(super) fn mean(tape: &mut Tape, row: &[u32]) -> u32 {
    let total = sum(tape, row);
    scaled(tape, total, Num::count(row.len()).inverse())
}

/// The mean, and the squares of what is left without it.
pub(super) fn moments(tape: &mut Tape, row: &[u32]) -> (u32, Vec<u32>) {
    let centre = mean(tape, row);
    let squares = row.iter().map(|at| {
        let far = sub(tape, *at, centre);
        mul(tape, far, far)
    });
    let squares = squares.collect();
    (centre, squares)
}

/// Equals share the gradient.
fn extreme_of_row(tape: &mut Tape, row: &[u32], greatest: bool) -> Made<(u32, usize)> {
    let (best, place) = extreme(tape, row, greatest)?;
    let value = tape.value(best);
    let equal: Vec<u32> = row.iter().copied().filter(|at| tape.value(*at) == value).collect();
    let share = Num::count(equal.len()).inverse();
    Ok((tape.node(value, equal.into_iter().map(|at| (at, share))), place))
}

fn product(tape: &mut Tape, row: &[u32]) -> u32 {
    let one = tape.constant(Num::ONE);
    row.iter().fold(one, |made, at| mul(tape, made, *at))
}

fn any(tape: &mut Tape, row: &[u32], wanted: bool) -> u32 {
    let holds = row.iter().any(|at| tape.value(*at).is_true() == wanted) == wanted;
    tape.constant(Num::of_bool(holds))
}

fn count(tape: &mut Tape, row: &[u32]) -> u32 {
    let nonzero = row.iter().filter(|at| tape.value(**at).is_true()).count();
    tape.constant(Num::count(nonzero))
}

pub(super) fn log_sum_exp(tape: &mut Tape, row: &[u32]) -> Made<u32> {
    let (most, _) = extreme(tape, row, true)?;
    let value = tape.value(most);
    let most = tape.constant(value);
    let exps: Vec<u32> = row
        .iter()
        .map(|at| {
            let shifted = sub(tape, *at, most);
            exp(tape, shifted)
        })
        .collect();
    let total = sum(tape, &exps);
    let log_total = log(tape, total);
    Ok(add(tape, log_total, most))
}
