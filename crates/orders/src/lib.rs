//! Finds in which order devices run blocks for one micro-batch after another: the steady state with the fewest bubbles, and
//! the whole step around it, each with what it cannot be better than.
//!
//! A [`Problem`] is what one micro-batch goes through: blocks with times, devices (one or several at once), what they keep and free, and
//! what they wait for, in any order without a circle; and the room of each device. A [`Repetend`] is a time for each block of it, so that the next
//! micro-batch may follow after a period, and the next one after another; a [`Whole`] has the times of a step's micro-batches. [`fault`]
//! looks at times alone, and shares nothing with the search.
//!
//! The same problem gives the same answer, unless a time is set until which to search. Knows nothing of models, plans or programs.

mod bounds;
mod figure;
mod loops;
mod net;
mod pack;
mod pairs;
mod pipeline;
mod problem;
mod repetend;
mod search;
mod shapes;
mod solve;
mod strategies;
mod text;
mod valid;
mod whole;

pub use bounds::makespan_bound;
pub use figure::{figure, words};
pub use loops::{loops, loops_of_step, timetable, timetables};
pub use pipeline::{BlockCosts, of_pipeline};
pub use problem::{Block, Problem};
pub use repetend::{Limits, Repetend, repetend};
pub use shapes::{SHAPES, named};
pub use text::{parse, print};
pub use valid::{Fault, fault};
pub use whole::{Whole, found, whole};
