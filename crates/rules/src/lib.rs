//! How each operator may be split, by named dims.
//!
//! A [`Rule`] is text first: `b k+, n k+, !n -> b n` says that a linear may be split along `b`, `n`
//! or `k`, that splitting `k` leaves partial sums, and that the bias is given to one part only.
//! [`families`] holds the rules, one file a family; [`factors`] follows dims through the graph, so
//! that `(3 h d)` can be split along `h`; [`local`] says what a sub-operator computes, and [`cost`] what that
//! costs; [`rewriting`] makes several operators of one, for dims that only these can be split along; [`slicing`]
//! does so along the model's sequence; [`classes`] says which factors are one dim of the model;
//! [`discovered`] makes rules of what was found by trying; [`of_constants`] says what is the same in each step.
//!
//! Rules know one operator and its shapes. They know no devices, no plans, no programs.

pub mod algebra;
pub mod classes;
mod constants;
pub mod cost;
pub mod discovered;
pub mod factors;
pub mod families;
pub mod given;
pub mod interval;
mod joined;
pub mod local;
pub mod rewriting;
pub mod slicing;
mod split;
mod view;

pub use algebra::{Dim, DimId, Kind, Operand, Passes, Reduction, Rule, Through};
pub use constants::of_constants;
pub use cost::{Bytes, Cost, Kept, Meanwhile};
pub use factors::{Analysis, Loop, OpDims};
pub use families::{Family, rule_of};
pub use interval::{Interval, Region, parts};
pub use joined::Joined;
pub use local::{LocalArg, LocalOp, Part};
pub use rewriting::{Rewriting, Rewritten, rewrite};
pub use slicing::{Sliced, Slices};
pub use split::{MOST_PARTS, On, Split};
pub use view::View;
