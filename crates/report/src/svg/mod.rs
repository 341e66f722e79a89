//! Pictures of a plan for papers and slides: a timeline, an order of blocks, plans beside each other, a sharding.
//!
//! Each is one SVG on a light ground whose text is text. The same plan gives the same bytes.

mod compared;
mod held;
mod order;
mod palette;
mod picture;
mod sharding;
mod timeline;

pub use compared::{ComparedTitle, compared};
pub use order::{OrderBlock, OrderPicture, order};
pub use sharding::sharding;
pub use timeline::timeline;
