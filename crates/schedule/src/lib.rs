//! In which order the blocks of a pipeline run the micro-batches of a step.
//!
//! A [`Schedule`] is a function: of the blocks of a model, on their devices, it makes for each device the loops that
//! it runs. One file each. All but [`interleaved`], [`two_bw`] and [`zb_v`] leave it to [`placing`] to place the tasks of one micro-batch in
//! time so that the next ones follow every so often.
//!
//! Knows nothing of models, plans or programs: blocks and devices are numbers, and times are as good as equal.

mod figure;
mod interleaved;
mod named;
mod placing;
mod shape;
mod simulate;
mod task;
mod two_bw;
mod zb_v;

pub use figure::figure;
pub use named::Schedule;
pub use shape::{Block, Orders, Pass, Shape, ShapeLoop, ShapeStep, Task, comes_before, not_in_turn};
pub use simulate::{Lane, Stuck, Times, simulate};
