//! Where the shards of a tensor are, and how they get to where they are needed.
//!
//! A [`Mesh`] is a set of devices as a row of axes. A [`Sharding`] says what each axis does with a tensor: divide a factor,
//! hold partial results, or copy; [`Names`] print it. [`propagate`] says what a split of an operator makes of its operands.
//! Which collectives lead from one sharding to another is said here and nowhere else, in three ways that laws hold
//! together:
//!
//! - [`route()`] leads there in hops, by the fewest bytes or by another price;
//! - [`greedy()`] takes the steps of a fixed order, and needs no search: for those who ask millions of times;
//! - [`single()`] finds the one collective between lists of shards that may form no such pattern.
//!
//! The crate knows no graphs, no plans and no programs.

mod frame;
mod greedy;
pub mod hop;
pub mod mesh;
pub mod operands;
pub mod pieces;
pub mod propagate;
mod recognise;
mod route;
pub mod sharding;
mod single;
mod state;
mod steps;
mod text;
mod uses;

pub use greedy::{By, Step, greedy, is_regular};
pub use hop::{Along, Hop, HopKind};
pub use mesh::{Axis, Mesh};
pub use operands::{Placed, Read};
pub use pieces::Pieces;
pub use propagate::{Has, Input};
pub use route::{Price, route, route_by};
pub use sharding::{Cut, Shard, Sharding};
pub use single::{Get, List, Member, Method, Participants, ShardRef, locally, single};
pub use text::Names;
pub use uses::{AXES, AxisSet, COPIES, PARTIAL, Uses};
