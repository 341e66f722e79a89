//! All tests of the crate that are no unit tests, in one binary: each file is a module of this list.

mod coverage;
mod made;
mod page;
mod profiled;
mod recorded;
mod rows;
mod sensitivity;
