//! Layouts on axes: where the shards of a tensor are, and how they get to where they are needed.
//!
//! An [`Mesh`] is a set of devices as a row of axes. A [`Sharding`] says what each axis does with a
//! tensor: divide a factor, hold partial results, or copy. [`route()`] leads from one sharding to another in
//! hops, by the fewest bytes. [`Placed`] gives the shardings that an operator's parts read and write, and
//! [`Names`] print them. What forms no such pattern is not a sharding, and stays a list of shards.
//!
//! Layouts know no graphs and no programs.

mod frame;
pub mod hop;
pub mod mesh;
pub mod operands;
pub mod pieces;
mod recognise;
mod route;
pub mod sharding;
mod state;
mod steps;
mod text;

pub use hop::{Hop, Kind};
pub use mesh::{Axis, Mesh};
pub use operands::{Operand, Placed, Read};
pub use pieces::Pieces;
pub use route::{Price, route, route_by};
pub use sharding::{Cut, Shard, Sharding};
pub use text::Names;
