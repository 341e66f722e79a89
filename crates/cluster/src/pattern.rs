//! What the members of a group do together.

/// What the members of a group do together, and what its bytes are counted of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pattern {
    /// Bytes of the value.
    AllReduce,
    /// Bytes of the whole that arises.
    AllGather,
    /// Bytes of what each has before.
    ReduceScatter,
    /// Bytes of what each has.
    AllToAll,
}

impl Pattern {
    pub const ALL: [(Pattern, &'static str); 4] = [
        (Pattern::AllReduce, "all_reduce"),
        (Pattern::AllGather, "all_gather"),
        (Pattern::ReduceScatter, "reduce_scatter"),
        (Pattern::AllToAll, "all_to_all"),
    ];
}
