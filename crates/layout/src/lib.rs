//! Layouts on axes: where the shards of a tensor are, and how they get to where they are needed.
//!
//! An [`Arrangement`] is a set of devices as a row of axes. A [`Spread`] says what each axis does with a tensor: divide a
//! factor, hold partial results, or copy. What forms no such pattern is not a spread, and stays a list of shards.
//!
//! Layouts know no graphs and no programs.

pub mod arrangement;
pub mod pieces;
mod recognise;
pub mod spread;

pub use arrangement::{Arrangement, Axis};
pub use pieces::Pieces;
pub use spread::{Cut, Shard, Spread};
