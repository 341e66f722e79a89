//! Walks the cells into which boxes cut a space.

use rules::Interval;

/// What is asked of a cell: given the boxes that cover it, and the cell.
pub(crate) type Visit<'v, T> = &'v mut dyn FnMut(&[usize], &[Interval]) -> Option<T>;

/// Shows `visit` every cell, with the boxes that cover it, until it gives something.
/// Linear in the boxes (but for sorting) if they form a grid.
pub(crate) fn sweep<T>(space: &[Interval], boxes: &[&[Interval]], visit: Visit<'_, T>) -> Option<T> {
    let all: Vec<usize> = (0..boxes.len()).filter(|&i| boxes[i].iter().all(|i| !i.is_empty())).collect();
    along(space, boxes, &all, &mut Vec::with_capacity(space.len()), visit)
}

fn along<T>(
    space: &[Interval],
    boxes: &[&[Interval]],
    among: &[usize],
    cell: &mut Vec<Interval>,
    visit: Visit<'_, T>,
) -> Option<T> {
    let dim = cell.len();
    if dim == space.len() {
        return visit(among, cell);
    }
    let frame = space[dim];
    let mut sorted: Vec<usize> = among.to_vec();
    sorted.sort_by_key(|&i| boxes[i][dim].lo);
    let mut active: Vec<usize> = vec![];
    let mut next = 0;
    for step in steps(frame, among.iter().map(|&i| boxes[i][dim])) {
        active.retain(|&i| boxes[i][dim].hi > step.lo);
        while next < sorted.len() && boxes[sorted[next]][dim].lo <= step.lo {
            if boxes[sorted[next]][dim].hi > step.lo {
                active.push(sorted[next]);
            }
            next += 1;
        }
        cell.push(step);
        let result = along(space, boxes, &active, cell, visit);
        cell.pop();
        if result.is_some() {
            return result;
        }
    }
    None
}

/// The pieces between all ends of intervals, inside a frame.
fn steps(frame: Interval, intervals: impl Iterator<Item = Interval>) -> Vec<Interval> {
    let mut ends = vec![frame.lo, frame.hi];
    ends.extend(intervals.flat_map(|i| [i.lo, i.hi]).filter(|end| frame.lo < *end && *end < frame.hi));
    ends.sort_unstable();
    ends.dedup();
    ends.windows(2).map(|pair| Interval { lo: pair[0], hi: pair[1] }).collect()
}

#[cfg(test)]
mod tests {
    use super::{Interval, sweep};

    fn at(lo: i64, hi: i64) -> Interval {
        Interval { lo, hi }
    }

    /// Each cell of a space of one dim, with the boxes that cover it.
    fn cells(space: Interval, boxes: &[Interval]) -> Vec<(Interval, Vec<usize>)> {
        let boxes: Vec<&[Interval]> = boxes.iter().map(std::slice::from_ref).collect();
        let mut cells = vec![];
        sweep::<()>(&[space], &boxes, &mut |inside, cell| {
            cells.push((cell[0], inside.to_vec()));
            None
        });
        cells
    }

    #[test]
    fn cells_are_those_of_the_space() {
        assert_eq!(cells(at(0, 3), &[at(0, 2)]), [(at(0, 2), vec![0]), (at(2, 3), vec![])]);
        // Boxes may reach beyond it, or end where it begins.
        assert_eq!(cells(at(2, 4), &[at(0, 2), at(0, 6)]), [(at(2, 4), vec![1])]);
        assert_eq!(cells(at(2, 4), &[at(0, 1), at(5, 6)]), [(at(2, 4), vec![])]);
    }

    #[test]
    fn what_has_no_elements_has_no_cells_and_covers_none() {
        assert!(cells(at(0, 0), &[]).is_empty());
        assert_eq!(cells(at(0, 2), &[at(1, 1)]), [(at(0, 2), vec![])]);
    }
}
