//! The least sum of tables over variables with few values, exactly.
//!
//! Each variable takes one of its values; each table gives a cost to the values of a few variables. To eliminate a
//! variable is to replace all tables that speak of it by one over their other variables, which has the least that the
//! variable can be chosen for. After the last one the least sum is left, and going back gives the values.
//!
//! Costs are whole numbers in `f64`, so sums are exact, whatever their order, up to 2^53, and what cannot be is
//! [`NEVER`]. Tables are kept once and with their least entry at zero: layers of a network that are alike give tables
//! that are alike, and what was eliminated once is known. So time grows with what is different. Values with which a sum is
//! larger than one that is known are left out before (`reach`).

mod least;
mod order;
mod reach;
mod sharpen;
mod solve;
mod table;

use std::rc::Rc;

pub use solve::{Least, Solver};
pub use table::Table;

/// The cost of what cannot be.
pub const NEVER: f64 = f64::INFINITY;

/// Tables over variables. Those of a table are different; the last runs fastest.
#[derive(Clone, Debug, Default)]
pub struct Problem {
    /// How many values each variable has.
    pub sizes: Vec<usize>,
    pub terms: Vec<Term>,
}

/// A table over some variables.
#[derive(Clone, Debug)]
pub struct Term {
    pub scope: Vec<usize>,
    pub costs: Rc<[f64]>,
}

impl Problem {
    /// What values cost.
    pub fn cost(&self, values: &[usize]) -> f64 {
        self.terms.iter().map(|term| term.costs[place(&self.sizes, &term.scope, values)]).sum()
    }
}

/// Where a table over a scope has the entry of these values.
fn place(sizes: &[usize], scope: &[usize], values: &[usize]) -> usize {
    scope.iter().fold(0, |at, &variable| at * sizes[variable] + values[variable])
}
