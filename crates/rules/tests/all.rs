//! All tests of the crate that are no unit tests, in one binary: each file is a module of this list.

mod algebra;
mod costs;
mod discovered;
mod families;
mod given;
mod locals;
mod order;
mod rarer;
mod rewriting;
mod slicing;
mod support;
mod table;
