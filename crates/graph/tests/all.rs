//! All tests of the crate that are no unit tests, in one binary: each file is a module of this list.

mod gradients;
mod shorter;
mod text;
mod text_errors;
mod text_properties;
