//! Tails through operators that only count the elements of a tensor in other dims.

use crate::state::Tail;

/// A part of a row of elements: so many, or all of a tail, by its number.
#[derive(Clone, Copy)]
enum TailPiece {
    Plain(i64),
    Tail(usize),
}

/// The tails of a tensor in another shape of as many elements, in the same order; nothing where one would be cut.
pub(crate) fn reshaped(from: &[i64], tails: &[Tail], to: &[i64]) -> Option<Vec<Tail>> {
    if from.contains(&0) {
        return None;
    }
    let mut left = pieces(from, tails);
    left.reverse();
    let mut reshaped: Vec<Option<Tail>> = vec![None; tails.len()];
    for (dim, &size) in to.iter().enumerate() {
        let (mut need, mut outer, mut last) = (size, 1, None);
        while need > 1 {
            let taken = match left.pop()? {
                TailPiece::Tail(which) if last.is_none() && need % tails[which].long == 0 => {
                    last = Some(which);
                    reshaped[which] = Some(Tail { dim, outer, inner: 1, ..tails[which].clone() });
                    need /= tails[which].long;
                    continue;
                }
                TailPiece::Tail(_) => return None,
                TailPiece::Plain(count) if need % count == 0 => count,
                TailPiece::Plain(count) if count % need == 0 => {
                    left.push(TailPiece::Plain(count / need));
                    need
                }
                TailPiece::Plain(_) => return None,
            };
            need /= taken;
            match last {
                Some(which) => reshaped[which].as_mut()?.inner *= taken,
                None => outer *= taken,
            }
        }
    }
    reshaped.into_iter().collect()
}

/// All elements, those that lie together without a tail as one piece.
fn pieces(shape: &[i64], tails: &[Tail]) -> Vec<TailPiece> {
    let mut all = vec![];
    for (dim, &size) in shape.iter().enumerate() {
        match tails.iter().position(|tail| tail.dim == dim) {
            Some(which) => {
                put(&mut all, tails[which].outer);
                all.push(TailPiece::Tail(which));
                put(&mut all, tails[which].inner);
            }
            None => put(&mut all, size),
        }
    }
    all
}

fn put(all: &mut Vec<TailPiece>, count: i64) {
    match all.last_mut() {
        Some(TailPiece::Plain(before)) => *before *= count,
        _ => all.push(TailPiece::Plain(count)),
    }
}
