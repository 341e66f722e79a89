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
        let found = along(space, boxes, &active, cell, visit);
        cell.pop();
        if found.is_some() {
            return found;
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
