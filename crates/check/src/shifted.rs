//! The numbers of ranks along an axis: the same for all, but for where slices lie.
//!
//! What is held whole by all of them, and read in parts, is sliced by each a step further on. As with the intervals of
//! tables, the ranks that are followed show what slices give, and that this moves on; here it is seen that the numbers do, all along the
//! axis, and that no slice leaves what it slices. Nothing else may depend on where a rank is.

use program::{Arg, Instr, PerRank, Role, Slice};
use rules::Interval;

use crate::axis::{Lines, moved};

/// Whether all numbers of a role are as they must be for a few ranks to stand for all.
pub(crate) fn numbers(role: &Role, lines: &Lines) -> bool {
    let moves: Vec<bool> = role.table.constants.iter().map(|per_rank| !lines.constant(per_rank)).collect();
    if !moves.contains(&true) {
        return true;
    }
    let numbers = Numbers { constants: &role.table.constants, moves: &moves };
    role.body.instrs().all(|instr| match instr {
        Instr::Slice(slice) => lines.each().all(|line| numbers.moves_on(slice, line)),
        _ => !instr.args().any(|(arg, _)| numbers.moves(arg)),
    })
}

struct Numbers<'r> {
    constants: &'r [PerRank<i64>],
    /// Which of them are not the same along the axis.
    moves: &'r [bool],
}

impl Numbers<'_> {
    fn moves(&self, arg: &Arg) -> bool {
        matches!(arg, Arg::Hole(hole) if self.moves[*hole as usize])
    }

    fn get(&self, arg: &Arg, rank: usize) -> Option<i64> {
        match arg {
            Arg::Int(value) => Some(*value),
            Arg::Hole(hole) => Some(*self.constants[*hole as usize].get(rank)),
            _ => None,
        }
    }

    /// Whether a slice moves on by one step from each rank of a line to the next, within what is sliced, which is as large
    /// for all.
    fn moves_on(&self, slice: &Slice, line: &[usize]) -> bool {
        let sizes: Vec<&Arg> = slice.extents.iter().flatten().collect();
        sizes.len() == slice.region.len()
            && !sizes.iter().any(|size| self.moves(size))
            && slice.region.iter().zip(sizes).all(|((lo, hi), size)| {
                !(self.moves(lo) || self.moves(hi)) || self.is_within(lo, hi, size, line).unwrap_or(false)
            })
    }

    fn is_within(&self, lo: &Arg, hi: &Arg, size: &Arg, line: &[usize]) -> Option<bool> {
        let at = |rank: usize| Some(Interval { lo: self.get(lo, rank)?, hi: self.get(hi, rank)? });
        let (first, second, size) = (at(line[0])?, at(line[1])?, self.get(size, line[0])?);
        for (position, rank) in (0_i64..).zip(line) {
            let interval = at(*rank)?;
            // Of nothing it cannot be said where it lies.
            let is_part = interval.lo >= 0 && interval.lo < interval.hi && interval.hi <= size;
            if !is_part || interval != moved(first, second.lo.wrapping_sub(first.lo), position) {
                return Some(false);
            }
        }
        Some(true)
    }
}
