//! Steps from one sharding to another in a fixed order, without a search: as quick as looking at the axes.
//!
//! What devices have too much of is cut away, partial results are summed and divided at once where that is wanted, what is
//! cut along another factor is exchanged, and only then gathered. Where axes do not lie as a collective would need them,
//! what each device lacks is exchanged. Where devices could take the steps, [`crate::route()`] takes no more bytes, and mostly
//! as many.

use collective::Collective;

use crate::uses::{AXES, AxisSet, COPIES, PARTIAL, Uses};

/// One step, and what it makes of the sharding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    pub by: By,
    /// The axes that change what they do.
    pub axes: AxisSet,
    pub before: Uses,
    pub after: Uses,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// Devices keep their part of what several have.
    Slice,
    Collective(Collective),
    /// What each device lacks comes from the others.
    Exchange,
}

/// All steps that bring a tensor of so many factors from one sharding to another one, which is complete.
pub fn greedy(from: &Uses, to: &Uses, factors: u8, visit: impl FnMut(Step)) {
    let mut walk = Walk { at: *from, to, visit };
    if is_regular(from, to, factors) {
        walk.regular(factors);
    } else {
        let changed = |at: &usize| from[*at] != to[*at];
        walk.go(By::Exchange, AxisSet::from_axes((0..AXES).filter(changed)));
    }
}

/// Whether the axes of each factor that stay are the first ones of those that divide it, before and after. Where others come
/// before them meanwhile, a step is a price only: no devices could take it.
pub fn is_regular(from: &Uses, to: &Uses, factors: u8) -> bool {
    (1..=factors).all(|factor| {
        let dividing = |uses: &Uses| AxisSet::from_axes((0..AXES).filter(|at| uses[*at] == factor));
        let both = AxisSet(dividing(from).0 & dividing(to).0);
        let first = |all: AxisSet| all.axes().zip(both.axes()).all(|(a, b)| a == b);
        first(dividing(from)) && first(dividing(to))
    })
}

/// From one sharding on to the next.
struct Walk<'t, V> {
    at: Uses,
    to: &'t Uses,
    visit: V,
}

impl<V: FnMut(Step)> Walk<'_, V> {
    fn regular(&mut self, factors: u8) {
        self.go(By::Slice, self.changing(|one, other| one == COPIES && other != COPIES));
        let here = |factor: &u8| self.at.contains(factor) || self.to.contains(factor);
        let factors: Vec<u8> = (1..=factors).filter(here).collect();
        for factor in &factors {
            self.change(PARTIAL, *factor, Collective::ReduceScatter);
        }
        for (one, other) in factors.iter().flat_map(|one| factors.iter().map(move |other| (*one, *other))) {
            if one != other {
                self.change(one, other, Collective::AllToAll);
            }
        }
        self.change(PARTIAL, COPIES, Collective::AllReduce);
        for factor in factors {
            self.change(factor, COPIES, Collective::AllGather);
        }
    }

    /// All axes that do one thing and shall do another.
    fn change(&mut self, one: u8, other: u8, collective: Collective) {
        self.go(By::Collective(collective), self.changing(|a, b| a == one && b == other));
    }

    fn changing(&self, wanted: impl Fn(u8, u8) -> bool) -> AxisSet {
        AxisSet::from_axes((0..AXES).filter(|at| wanted(self.at[*at], self.to[*at])))
    }

    fn go(&mut self, by: By, axes: AxisSet) {
        if axes.is_empty() {
            return;
        }
        let before = self.at;
        axes.axes().for_each(|at| self.at[at] = self.to[at]);
        (self.visit)(Step { by, axes, before, after: self.at });
    }
}
