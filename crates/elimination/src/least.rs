//! The table that is left of several once their common variable is chosen for the least.

/// A table with the variable as its last axis, and for each axis of the result how far its entries are apart.
pub(crate) struct TableRow<'t> {
    pub(crate) costs: &'t [f64],
    pub(crate) strides: Vec<usize>,
}

/// After so many sums it is asked whether to stop.
const OFTEN: usize = 1 << 22;

/// For each entry of the result the least over so many values of the sums of rows; none once `stop` says so.
pub(crate) fn least(
    shape: &[usize],
    values: usize,
    rows: &[TableRow<'_>],
    stop: &dyn Fn() -> bool,
) -> Option<Vec<f64>> {
    let entries = shape.iter().product();
    let mut result = Vec::with_capacity(entries);
    let (mut starts, mut sums) = (vec![0; rows.len()], vec![0.0; values]);
    let (shape, rows) = joined(shape, rows);
    let (rows, Some((&size, outer))) = (&rows[..], shape.split_last()) else { return Some(result) };
    let inner: Vec<usize> = rows.iter().map(|row| row.strides[outer.len()]).collect();
    let (mut at, mut places) = (vec![0; outer.len()], starts.clone());
    let mut since = 0;
    for _ in 0..entries / size {
        places.copy_from_slice(&starts);
        for _ in 0..size {
            since += values;
            if since > OFTEN {
                since = 0;
                if stop() {
                    return None;
                }
            }
            result.push(least_of(rows, &places, values, &mut sums));
            places.iter_mut().zip(&inner).for_each(|(place, stride)| *place += stride);
        }
        step(outer, &mut at, rows, &mut starts);
    }
    Some(result)
}

/// To the next entry of the result.
fn step(shape: &[usize], at: &mut [usize], rows: &[TableRow<'_>], starts: &mut [usize]) {
    for axis in (0..shape.len()).rev() {
        at[axis] += 1;
        if at[axis] < shape[axis] {
            starts.iter_mut().zip(rows).for_each(|(start, row)| *start += row.strides[axis]);
            return;
        }
        at[axis] = 0;
        let back = shape[axis] - 1;
        starts.iter_mut().zip(rows).for_each(|(start, row)| *start -= row.strides[axis] * back);
    }
}

fn least_of(rows: &[TableRow<'_>], starts: &[usize], values: usize, sums: &mut [f64]) -> f64 {
    let slice = |index: usize| &rows[index].costs[starts[index]..starts[index] + values];
    match rows.len() {
        1 => slice(0).iter().copied().fold(f64::INFINITY, lesser),
        2 => min_pair(slice(0), slice(1), |a, b| a + b),
        _ => {
            sums.copy_from_slice(slice(0));
            for index in 1..rows.len() - 1 {
                sums.iter_mut().zip(slice(index)).for_each(|(sum, cost)| *sum += cost);
            }
            min_pair(sums, slice(rows.len() - 1), |a, b| a + b)
        }
    }
}

/// So many at once.
const LANES: usize = 8;

/// The smallest of what pairs come to.
pub(crate) fn min_pair(a: &[f64], b: &[f64], of: impl Fn(f64, f64) -> f64) -> f64 {
    let mut minima = [f64::INFINITY; LANES];
    let (left, right) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let rest = left.remainder().iter().zip(right.remainder());
    for (left, right) in left.zip(right) {
        for lane in 0..LANES {
            minima[lane] = lesser(of(left[lane], right[lane]), minima[lane]);
        }
    }
    rest.map(|(a, b)| of(*a, *b)).chain(minima).fold(f64::INFINITY, lesser)
}

pub(crate) fn lesser(a: f64, b: f64) -> f64 {
    if a < b { a } else { b }
}

/// The same entries with the axes in another order.
pub(crate) fn permuted(shape: &[usize], costs: &[f64], axes: &[usize]) -> Vec<f64> {
    let mut strides = vec![1; shape.len()];
    for axis in (0..shape.len().saturating_sub(1)).rev() {
        strides[axis] = strides[axis + 1] * shape[axis + 1];
    }
    let to: Vec<usize> = axes.iter().map(|axis| shape[*axis]).collect();
    let mut permuted = vec![0.0; costs.len()];
    add(&to, &mut permuted, TableRow { costs, strides: axes.iter().map(|axis| strides[*axis]).collect() });
    permuted
}

/// Adds the entries of a row to those of a table.
pub(crate) fn add(shape: &[usize], to: &mut [f64], row: TableRow<'_>) {
    let (shape, rows) = joined(shape, &[row]);
    let Some((&size, outer)) = shape.split_last() else { return };
    let inner = rows[0].strides[outer.len()];
    let (mut at, mut starts) = (vec![0; outer.len()], vec![0]);
    for line in to.chunks_mut(size) {
        let from = &rows[0].costs[starts[0]..];
        match inner {
            0 => line.iter_mut().for_each(|it| *it += from[0]),
            1 => line.iter_mut().zip(from).for_each(|(it, cost)| *it += cost),
            _ => line.iter_mut().zip(from.iter().step_by(inner)).for_each(|(it, cost)| *it += cost),
        }
        step(outer, &mut at, &rows, &mut starts);
    }
}

/// The same with one axis for those that run as one in all rows, and without those of one entry; at least one is left.
fn joined<'t>(shape: &[usize], rows: &[TableRow<'t>]) -> (Vec<usize>, Vec<TableRow<'t>>) {
    let mut sizes: Vec<usize> = vec![];
    let mut joined: Vec<TableRow<'t>> =
        rows.iter().map(|row| TableRow { costs: row.costs, strides: vec![] }).collect();
    for (axis, &size) in shape.iter().enumerate().filter(|(_, size)| **size != 1) {
        let runs_on = |(row, joined_row): (&TableRow<'t>, &TableRow<'t>)| {
            joined_row.strides.last().is_some_and(|apart| *apart == row.strides[axis] * size)
        };
        if rows.iter().zip(&joined).all(runs_on) && !sizes.is_empty() {
            *sizes.last_mut().expect("there is one") *= size;
            joined.iter_mut().for_each(|row| {
                row.strides.pop();
            });
        } else {
            sizes.push(size);
        }
        rows.iter().zip(&mut joined).for_each(|(row, whole)| whole.strides.push(row.strides[axis]));
    }
    if sizes.is_empty() {
        sizes.push(1);
        joined.iter_mut().for_each(|row| row.strides.push(0));
    }
    (sizes, joined)
}
