//! All tests of the crate that are no unit tests, in one binary: each file is a module of this list.

mod channels;
mod exchanges;
mod folded;
mod model_dims;
mod names;
mod plans;
mod transfer;
