//! All tests of the crate that are no unit tests, in one binary: each file is a module of this list.

mod alike;
mod beginnings;
mod blocks;
mod clocks;
mod going_on;
mod pipeline;
mod planted;
mod random;
mod reported;
mod rewritings;
mod sequence;
mod shared;
mod step;
mod timeline;
mod tokens;
