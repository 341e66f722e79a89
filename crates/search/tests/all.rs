//! All tests of the crate that are no unit tests, in one binary: each file is a module of this list.

mod chosen;
mod constraints;
mod flow;
mod folded;
mod late;
mod model;
mod narrow;
mod offload;
mod partial_recompute;
mod piped;
mod pipeline;
mod rules_of_thumb;
mod schedule_orders;
mod spmd;
