//! The best way to divide a model within a block, operator by operator.
//!
//! Operators that lie alike are one decision ([`bundles`]), which is for each digit of the devices along which dim
//! ([`choices`]). What that costs ([`space`]): what is computed, what is moved from bundle to bundle ([`messages`]), how
//! parameters are held ([`param_sharding`]), what is kept for backward ([`kept`]). The least sum of it is found exactly.
//!
//! A step takes at least as long as a device computes and waits for values that it needs at once; as its line is busy, with
//! gradients and parameters, too; and as everything before the last backward takes with what cannot be sent before it. So
//! it takes no less than any mean of the three, and a plan that needs less memory than there is costs no less than that sum and a price for each byte
//! over what there is. The least of such a mean over all plans is a bound for the step of each of them ([`find`]).

mod borders;
mod bundles;
mod certificate;
mod choices;
mod demanded;
mod digits;
mod explain;
mod fallback;
mod inner;
mod kept;
mod maker;
mod messages;
mod objective;
mod param_sharding;
mod priced;
mod recomputed;
mod respects;
mod rows;
mod runs;
mod sharding;
mod shared;
mod solution;
mod solved;
mod space;
mod stretched;
mod tables;
mod tied;

pub(crate) use digits::Digits;
pub use explain::{Alternative, Explanation, explain};
pub(crate) use inner::{Inner, RunClaim};
pub(crate) use kept::{Keeps, SpanReads, keeps, lies_in, spans_of};
pub(crate) use maker::Operators;
pub use messages::Count;
pub(crate) use messages::Messages;
pub use objective::Totals;
pub(crate) use recomputed::{idle, recompute, spans};
pub(crate) use respects::Skeleton;
pub(crate) use rows::rows;
pub(crate) use runs::Runs;
pub use solution::{Candidate, Claim, Inside, Stats, find, member};
pub use solved::limit;
pub use tables::{Tables, tables};
pub(crate) use tied::Divided;
