//! The instructions. Whatever lists all of them, or says how one is written, follows from this table.
//!
//! An entry has the variant of [`Instr`] with its fields, in the order in which emitted code has them; [`FieldKind`]
//! says what each is. Then come the kinds of the variant, which is one but for collectives:
//!
//! ```text
//! /// What the documentation of emitted programs says of it.
//! Kind [how of a collective] "method" as Collective "what messages call it" when last
//!     = "how it is written, where that is not its fields in turn";
//! ```
//!
//! `as` says that other ranks take part, and by which of the collectives bytes move, or by a `table`. `when last` is what is about
//! gradients as they have added up over the micro-batches of a step, and stands below `if last:`. Instructions with
//! a field [`FieldKind::When`] say that themselves.

use super::*;
use crate::{BufId, CallId, ExchangeId, GroupingId, KeepId, LeafId};

instructions! {
    /// Local, differentiable code between communications.
    Call(Call {
        id: CallId => Called,
        /// Leaves and inputs included: whatever `ops` read and do not write.
        inputs: Vec<BufId> => Reads,
        outputs: Vec<BufId> => Writes,
        ops: Vec<LocalOp> => Ops,
        saves: Saves => Saves,
    }) is {
        /// Runs local code under autograd; gives a tuple if the function returns several values. `at` tells calls
        /// of one function apart, and only a call that computes another one again has its name. Tensor arguments
        /// are detached from what made them. With `recompute` nothing inside is kept, and the call has no `grad`:
        /// another call, in `backward`, runs the function again and has it. With `forget` its results and what is
        /// inside are kept for its `grad`. Its tensor arguments (not leaves) are not: `grad` is given them again.
        /// With `offload` what is kept for its `grad` goes to the host, except leaves and what `forward` was given.
        Call "call" = "call(function, *args, at=None, recompute=False, forget=False, offload=False)";
    }

    /// The backward of a call, or a half of it.
    Grad(Grad {
        call: CallId => Called,
        which: Which => Which,
        /// For each output of the call that needs a gradient: the gradient, if any arises.
        from: Vec<Option<BufId>> => ReadsSome,
        /// For each input of the call that needs a gradient and is no leaf: its gradient, if anybody
        /// reads it. Gradients of leaves accumulate in the leaves.
        to: Vec<Option<BufId>> => WritesSome,
        /// What the call forgot: the same values for its inputs that are no leaves, in their order. Empty where it
        /// forgot none.
        recomputed: Vec<BufId> => Reads,
    }) is {
        /// The backward of the last call of that function with that `at`. Takes one gradient (or `None`) for each of its results that needs one. Gives
        /// one gradient for each tensor argument (not leaf) that needs one: a single value if there is one, else a
        /// tuple. Leaves accumulate theirs. `again` are the tensor arguments (not leaves) of a call with `forget`:
        /// the same values, which is proved.
        ///
        /// A split `grad` is input gradients, then weight gradients. The first takes and gives what `grad` does, and
        /// leaves have no gradients yet. They accumulate them in the second. That stands in a later function, or
        /// after a message that travels meanwhile. The first keeps what the second needs, and each operator's
        /// gradients are computed once. The second reads nothing that is gathered: a gradient that needs a gathered
        /// parameter's values is computed in the first.
        Grad "grad"
            = "grad(function, *grads, at=None, again=[])" "grad_inputs(function, *grads, at=None, again=[])"
            "grad_weights(function, at=None)";
    }

    /// `to = from[box]`, on this rank.
    Slice(/// Factor extents, dim by dim, of the local tensor that is sliced, and an interval per factor.
    Slice {
        from: BufId => Read,
        to: BufId => Written,
        extents: Vec<Vec<Arg>> => Extents,
        region: Vec<(Arg, Arg)> => Region,
    }) is {
        /// A local slice: view in `factors`, narrow each to its interval, view back. Extents and ends may be
        /// constants of the rank (`rank.start_0`).
        Slice "slice" = "ops.cut(x, factors, region)";
    }

    /// `to = sum of from`, on this rank. Gradients of several uses, brought to one layout.
    Add {
        from: Vec<BufId> => Reads,
        to: BufId => Written,
    } is {
        /// Adds values of one layout.
        Add "add" = "x + y";
    }

    /// A communication among the ranks of each group of a grouping.
    Collective(/// One value, or several that are all-reduced together.
    Collective {
        how: How => How,
        group: GroupingId => Group,
        from: Vec<BufId> => Reads,
        /// One for each of `from`.
        to: Vec<BufId> => Writes,
        /// Runs while the next instruction computes, which is the second half of a backward; `to` is there after that.
        overlaps: bool => Overlaps,
    }) is {
        /// Over this rank's group in grouping number `group`. Of a list it gives a tuple: small tensors of one dtype
        /// are one message, and no message waits for another. With `async_op` the result is there after the next
        /// statement, which is a `grad_weights`.
        AllReduce [How::AllReduce(_)] "all_reduce" as AllReduce "all-reduce"
            = "all_reduce(x, group, op=\"sum\", async_op=False)";
        /// Shards in the order of the group, joined along `dim`; `sizes` if they differ.
        AllGather [How::AllGather(_)] "all_gather" as AllGather "all-gather"
            = "all_gather(x, group, dim, sizes=None, factors=None)";
        /// Sum, then each rank keeps its shard; `async_op` as above.
        ReduceScatter [How::ReduceScatter(_)] "reduce_scatter"
            as ReduceScatter "reduce-scatter"
            = "reduce_scatter(x, group, dim, sizes=None, factors=None, async_op=False)";
        /// Cut along `send`, joined along `receive`. For [rows for experts](runtime-operators.md) the places are cut
        /// and joined, and each rank first learns how many rows come.
        AllToAll [How::AllToAll { .. }] "all_to_all" as AllToAll "all-to-all"
            = "all_to_all(x, group, send, receive, send_sizes=None, receive_sizes=None, send_factors=None, receive_factors=None)";
    }

    /// Exact region-by-region transfer, by [`crate::Program::exchanges`]. Also without any other rank.
    Exchange {
        exchange: ExchangeId => Exchange,
        from: Vec<BufId> => Reads,
        to: Vec<BufId> => Writes,
    } is {
        /// An exchange by the table of that number; gives a tuple of this rank's targets, a single value if there is
        /// one.
        Exchange "exchange" as table "exchange";
    }

    /// The first half of an exchange: what is there leaves, for the codes that receive it.
    Send {
        exchange: ExchangeId => Exchange,
        from: Vec<BufId> => Reads,
    } is {
        /// Point-to-point: the first end of an exchange between blocks, by the table of that number, for each
        /// micro-batch apart. The sender does not wait.
        Send "send" as table "transfer to another block";
    }

    /// The second half, in a later code.
    Receive {
        exchange: ExchangeId => Exchange,
        to: Vec<BufId> => Writes,
    } is {
        /// The second end, where what was sent is waited for.
        Receive "receive" as table "transfer to another block";
    }

    /// All-reduce (sum) the gradients of these leaves, in one bucket.
    ReduceGradients {
        group: GroupingId => Group,
        leaves: Vec<LeafId> => Leaves,
    } is {
        /// All-reduces the gradients of these leaves, in one bucket; may overlap with what follows.
        ReduceGradients "reduce_gradients" as AllReduce "reduction of gradients" when last;
    }

    /// Exchange gradients of leaves into gradients of shards; sources and targets in the
    /// [`crate::Exchange`] are this rank's `leaves` and `shards` (indices into [`crate::Table::shards`]).
    ExchangeGradients {
        exchange: ExchangeId => Exchange,
        leaves: Vec<LeafId> => Leaves,
        shards: Vec<usize> => Shards,
        when: GradSync => When,
    } is {
        /// Turns gradients of leaves into gradients of shards (numbers in this rank's table), by the table of that
        /// number.
        ExchangeGradients "exchange_gradients" as table "exchange of gradients";
    }

    /// Gathers copies, from the shards of the group's members, in one message.
    Gather {
        group: GroupingId => Group,
        copies: Vec<usize> => Copies,
    } is {
        /// Gathers parameters from the shards of the group's ranks, in one message. `places` are places of the tree,
        /// leaves or modules (`p.h[0]` is all that is gathered below it). The parameters are there at the first call
        /// that reads them. What lives on the host is brought from there before; in a group of one that is all it
        /// does.
        Gather "gather" as AllGather "gather";
    }

    /// Copies are there no longer.
    Release {
        copies: Vec<usize> => Copies,
    } is {
        /// Frees gathered parameters. What autograd has saved of them sees them when they are gathered again.
        Release "release";
    }

    /// The gradients of these leaves, which are copies, summed over the group: every member adds the part that is
    /// its shard's to the shard's gradient, and the leaves have none left. In one message.
    Scatter {
        group: GroupingId => Group,
        leaves: Vec<LeafId> => LeafPlaces,
        when: GradSync => When,
    } is {
        /// Sums the gradients of these leaves over the group. Each rank's part goes to its shard, and the leaves have
        /// none left.
        Scatter "scatter_gradients" as ReduceScatter "reduce-scatter of gradients";
    }

    /// Of the gradients of these leaves, which are copies, what is the rank's shard's is added to the shard's
    /// gradient, and the leaves have none left.
    Part {
        leaves: Vec<LeafId> => LeafPlaces,
        when: GradSync => When,
    } is {
        /// The same where each rank has all of the gradient already: nothing is communicated.
        Part "part_gradients";
    }

    /// All-reduce (sum) the gradients of these shards, in one message.
    ReduceShards {
        group: GroupingId => Group,
        shards: Vec<usize> => ShardPlaces,
    } is {
        /// All-reduces the gradients of this rank's shards of these parameters, over ranks that hold the same shards.
        ReduceShards "reduce_shards" as AllReduce "reduction of parts of gradients" when last;
    }

    /// A buffer of the model gets its new value, at the end of forward.
    Update {
        shard: usize => Shard,
        from: BufId => Read,
    } is {
        /// Gives a buffer of the model its new value, in new memory.
        Update "update";
    }

    /// Values that a later code reads: what a code makes is gone at its end, but for these. Some go to the host.
    Keep {
        id: KeepId => Kept,
        from: Vec<BufId> => Reads,
        offloads: bool => Offloads,
    } is {
        /// What one function keeps for a later one. With `offload` it goes to the host.
        Keep "keep";
    }

    /// What was kept, one for each value; it is kept no longer.
    Take {
        id: KeepId => Kept,
        to: Vec<BufId> => Writes,
    } is {
        /// What an earlier function kept; a single value if it is one. Nothing else of one function is seen in the
        /// other.
        Take "take";
    }

    /// Brings back from the host what was sent there.
    Fetch {
        what: Offloaded => Fetched,
    } is {
        /// Brings back from the host what that call offloaded, or what is kept there as that number. It is there at
        /// that call's `grad`, or when it is taken.
        Fetch "fetch";
    }
}
