//! Loops that no operand carries, such as those of a new tensor: from the arguments of what is
//! executed. Each argument is linear in where a part begins and in how long it is.

use graph::OpId;
use rules::{Interval, Kind};

use crate::args::found_ints;
use crate::held::Scene;
use crate::region::any;

/// The integers that the rule gives for a part, in the order of its arguments.
type Ints<'f> = &'f mut dyn FnMut(&[Interval]) -> Vec<i64>;

/// Fills in the loops that no operand carries, from the arguments that depend on them.
pub(crate) fn solve(scene: &Scene<'_>, op: OpId, at: &[Option<Interval>], ints: Ints<'_>) -> Vec<Interval> {
    let loops = &scene.facts.analysis.op(op).loops;
    let mut known: Vec<Interval> =
        at.iter().zip(loops).map(|(i, l)| i.unwrap_or(Interval::whole(l.size))).collect();
    for l in 0..at.len() {
        if at[l].is_none() && loops[l].kind == Kind::Map && loops[l].size > 1 && !scene.facts.op(op).random {
            known[l] = solve_loop(scene, op, &known, l, ints).unwrap_or(known[l]);
        }
    }
    known
}

fn solve_loop(scene: &Scene<'_>, op: OpId, at: &[Interval], l: usize, ints: Ints<'_>) -> Option<Interval> {
    let dims = scene.facts.analysis.op(op);
    let rule = scene.facts.analysis.rules[op.index()].as_ref()?;
    let size = dims.loops[l].size;
    let mut with = |lo: i64, hi: i64| {
        let mut at = at.to_vec();
        at[l] = Interval { lo, hi };
        ints(&at)
    };
    let (full, less) = (with(0, size), with(0, size - 1));
    let found = found_ints(scene.local, &scene.table.constants);
    let contiguous = rule.dim(dims.loops[l].dim).contiguous;
    let moved = if contiguous { with(1, size) } else { less.clone() };
    if full.len() != found.len() || less.len() != found.len() || moved.len() != found.len() {
        return None;
    }
    // Each argument is linear in where the part begins and in its length.
    let row = |j: usize| (moved[j] - less[j], full[j] - less[j], found[j] - full[j]);
    let rows: Vec<(i64, i64, i64)> = (0..found.len()).map(row).filter(|r| r.0 != 0 || r.1 != 0).collect();
    let (lo, delta) = solve_rows(&rows)?;
    let len = size + delta;
    if !(0..=size).contains(&len) || lo < 0 || lo + len > size {
        return None;
    }
    Some(if contiguous { Interval { lo, hi: lo + len } } else { any(len, size) })
}

/// Where a part begins and by how much it is shorter than all, from rows of
/// `a * begin + b * change = c`; both zero where no row tells.
fn solve_rows(rows: &[(i64, i64, i64)]) -> Option<(i64, i64)> {
    let Some(&(a, b, c)) = rows.first() else { return Some((0, 0)) };
    let divide = |x: i64, y: i64| (y != 0 && x % y == 0).then(|| x / y);
    for &(d, e, f) in rows {
        let det = a * e - b * d;
        if det != 0 {
            return Some((divide(c * e - b * f, det)?, divide(a * f - c * d, det)?));
        }
    }
    if b == 0 { Some((divide(c, a)?, 0)) } else { Some((0, divide(c, b)?)) }
}
