//! `coshard`: the dims that `megatron` splits over devices, split over time on each device: the
//! parts of an operator run one after another, so that only one part's activations live.

use super::{Set, megatron};

pub(super) const SET: Set = Set {
    name: "coshard",
    doc: "the dims that `megatron` would split, their parts one after another on the same device",
    choose: megatron::choose,
    why: megatron::why,
    in_turn: true,
    must_find: true,
};
