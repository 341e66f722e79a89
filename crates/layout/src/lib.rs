//! Layouts on axes: where the shards of a tensor are, and how they get to where they are needed.
//!
//! An [`Arrangement`] is a set of devices as a row of axes. A [`Spread`] says what each axis does with a
//! tensor: divide a factor, hold partial results, or copy. [`route`] leads from one spread to another in
//! hops, by the fewest bytes. [`Placed`] gives the spreads that an operator's parts read and write, and
//! [`Names`] print them. What forms no such pattern is not a spread, and stays a list of shards.
//!
//! Layouts know no graphs and no programs.

pub mod arrangement;
mod frame;
pub mod hop;
pub mod operands;
pub mod pieces;
mod recognise;
mod route;
pub mod spread;
mod state;
mod steps;
mod text;

pub use arrangement::{Arrangement, Axis};
pub use hop::{Hop, Kind};
pub use operands::{Operand, Placed, Read};
pub use pieces::Pieces;
pub use route::{Price, route, route_by};
pub use spread::{Cut, Shard, Spread};
pub use text::Names;
