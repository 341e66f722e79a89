//! Pipelines whose stages are found: where the model is cut, how many devices each stage has, and how it is divided on them.
//!
//! The model can be cut into [`segments`], and the devices into [`groups`]. What a run of segments takes on a group is found
//! operator by operator, as plans of one block are ([`crate::spmd`]); of all pipelines of these runs the one that takes
//! least is found exactly ([`cuts`]), as a step of it goes ([`flow`]). Like all plans it is lowered and simulated.

mod ask;
mod before;
mod costs;
mod cuts;
mod explain;
mod flow;
mod folded;
mod groups;
mod left;
mod reversed;
mod rows;
mod segments;

pub use ask::{Ask, Costs, Run};
pub use cuts::{Chosen, Pipeline, cut};
pub use explain::Claimed;
pub(crate) use explain::explain;
pub use flow::{Flow, Stage};
pub use rows::rows;

/// What is known of the search for pipelines.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stats {
    /// How many places there are to cut, groups of devices that differ, and pipelines and ends of them that were looked at.
    pub places: usize,
    pub groups: usize,
    pub looked: usize,
    /// Whether all of them were, and nothing was left out since it was enough, late, or too large.
    pub is_whole: bool,
    /// How long that took.
    pub seconds: f64,
}
