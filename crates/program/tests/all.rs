//! All tests of the crate that are no unit tests, in one binary: each file is a module of this list.

mod table;
