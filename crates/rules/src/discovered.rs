//! Rules that are found by trying: which splits of a function's tensors to try, and the text of those that hold.
//!
//! Whoever runs the function says which hold. Two that do never share an element of a tensor's dim, so what is
//! left of each dim, the *gaps*, is whole, and all together are one rule.

mod splits;
mod text;

use crate::algebra::{Kind, Reduction};

pub use splits::{Split, places, splits};
pub use text::Proposed;

/// A factor of a tensor's dim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FactorPlace {
    /// Which of the inputs, or of the outputs.
    pub operand: usize,
    pub dim: usize,
    /// How many elements of the dim lie outside of it.
    pub outer: i64,
}

/// Place and size of what is left of a dim.
pub type Gap = (FactorPlace, i64);

/// A split that holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValidSplit {
    pub split: Split,
    pub kind: Kind,
    /// Where the outputs have the dim, if they do.
    pub outputs: Vec<FactorPlace>,
    /// Inputs that only the first part is given.
    pub once: Vec<usize>,
}

/// What is known of a function with tensors of these shapes.
#[derive(Clone, Debug, Default)]
pub struct Discovery {
    pub inputs: Vec<Vec<i64>>,
    pub outputs: Vec<Vec<i64>>,
    pub held: Vec<ValidSplit>,
}

impl Discovery {
    /// Whether nothing of it is part of a split that holds.
    pub fn is_open(&self, split: &Split) -> bool {
        self.held.iter().all(|held| {
            let apart =
                |place: &FactorPlace| held.split.inputs.iter().all(|other| held.apart(*other, *place, split));
            let argument = held.split.argument.is_none() || held.split.argument != split.argument;
            argument && split.inputs.iter().all(apart)
        })
    }

    /// Takes it up, if its outputs are apart from those of others.
    pub fn hold(&mut self, held: ValidSplit) -> bool {
        let apart = |other: &ValidSplit| {
            let outputs = held.outputs.iter();
            outputs
                .flat_map(|place| other.outputs.iter().map(move |other_place| (place, other_place)))
                .all(|(place, other_place)| other.apart(*other_place, *place, &held.split))
        };
        let fits = self.is_open(&held.split) && self.held.iter().all(apart);
        if fits {
            self.held.push(held);
        }
        fits
    }

    /// What no split that holds divides, of the inputs and of the outputs.
    pub fn gaps(&self) -> (Vec<Gap>, Vec<Gap>) {
        let gaps_of = |shapes: &[Vec<i64>], side: SplitSide| {
            let dims = |(operand, shape): (usize, &Vec<i64>)| {
                (0..shape.len()).map(move |dim| (operand, dim)).collect::<Vec<_>>()
            };
            let terms = shapes.iter().enumerate().flat_map(dims).flat_map(|(operand, dim)| {
                self.terms(side, operand, dim).into_iter().filter_map(|term| match term {
                    SplitTerm::Gap(gap) => Some(gap),
                    SplitTerm::ValidSplit(_) => None,
                })
            });
            terms.collect()
        };
        (gaps_of(&self.inputs, SplitSide::Inputs), gaps_of(&self.outputs, SplitSide::Outputs))
    }

    /// What a dim is a product of, outer to inner.
    fn terms(&self, side: SplitSide, operand: usize, dim: usize) -> Vec<SplitTerm> {
        let shape = if side == SplitSide::Inputs { &self.inputs } else { &self.outputs };
        let size = shape[operand][dim];
        let mut cuts: Vec<(i64, usize)> = vec![];
        for (id, held) in self.held.iter().enumerate() {
            let places = if side == SplitSide::Inputs { &held.split.inputs } else { &held.outputs };
            let here = places.iter().filter(|place| (place.operand, place.dim) == (operand, dim));
            cuts.extend(here.map(|place| (place.outer, id)));
        }
        cuts.sort_unstable();
        let (mut terms, mut done) = (vec![], 1);
        let gap = |done: i64, until: i64| {
            let gap = (FactorPlace { operand, dim, outer: done }, until / done);
            (gap.1 > 1).then_some(SplitTerm::Gap(gap))
        };
        for (outer, id) in cuts {
            terms.extend(gap(done, outer));
            terms.push(SplitTerm::ValidSplit(id));
            done = outer * self.held[id].split.size;
        }
        terms.extend(gap(done, size));
        terms
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum SplitSide {
    Inputs,
    Outputs,
}

#[derive(Clone, Copy)]
enum SplitTerm {
    ValidSplit(usize),
    Gap(Gap),
}

impl ValidSplit {
    /// Whether `place`, one of its places, and `other` of `split` share nothing: one lies in the other's elements.
    fn apart(&self, place: FactorPlace, other: FactorPlace, split: &Split) -> bool {
        let inside = |outer: i64, size: i64, inner: i64| inner % (outer * size) == 0;
        (place.operand, place.dim) != (other.operand, other.dim)
            || inside(place.outer, self.split.size, other.outer)
            || inside(other.outer, split.size, place.outer)
    }
}

/// The kind that a mark stands for, or none.
pub fn kind_of(mark: &str) -> Option<Kind> {
    let all = Reduction::MARKS.iter().map(|row| Kind::Reduce(row.0));
    all.chain([Kind::Map, Kind::Whole]).find(|kind| kind.to_string() == mark)
}
