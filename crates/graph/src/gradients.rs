//! Between which results and operands of an operator a gradient flows.
//!
//! PyTorch gives none to some floats: to what has an operand's shape only, to what autograd keeps beside a
//! result, to labels that are only compared, and of operators that treat their operands one by one, to all
//! but a result's own operand.

use crate::{Op, TensorId};

impl Op {
    /// Whether a gradient of this result may reach this operand, both floats, by position.
    pub fn gives_gradient(&self, output: usize, input: usize) -> bool {
        let name =
            self.target.strip_prefix("aten.").and_then(|rest| rest.split('.').next()).unwrap_or_default();
        match name {
            _ if self.no_grad || SHAPED.contains(&name) => false,
            _ if FIRST_ONLY.contains(&name) => output == 0,
            _ if ONE_BY_ONE.contains(&name) => output == input,
            _ if LABELLED.iter().any(|(other, label)| *other == name && *label == input) => false,
            _ if self.target == WRITTEN || self.target == "aten.to.other" || LIKE_ANOTHER.contains(&name) => {
                input == 0
            }
            _ => true,
        }
    }

    /// Whether a gradient goes on to this operand, where one arrives at these results.
    pub fn passes_on(&self, arrives: impl Fn(TensorId) -> bool, input: usize) -> bool {
        let arrived = |(_, out): &(usize, &Option<TensorId>)| out.is_some_and(&arrives);
        self.outputs.iter().enumerate().filter(arrived).any(|(output, _)| self.gives_gradient(output, input))
    }
}

/// Read no value of what they are given, or cut the gradient.
const SHAPED: [&str; 14] = [
    "detach",
    "zeros_like",
    "ones_like",
    "full_like",
    "empty_like",
    "rand_like",
    "randn_like",
    "randint_like",
    "exponential",
    "new_zeros",
    "new_ones",
    "new_full",
    "new_empty",
    "histc",
];

/// Give beside their result what autograd keeps, or how to go on, such as a batch's statistics.
const FIRST_ONLY: [&str; 9] = [
    "_native_batch_norm_legit",
    "_native_batch_norm_legit_functional",
    "_native_batch_norm_legit_no_training",
    "_weight_norm_interface",
    "native_batch_norm",
    "native_dropout",
    "native_layer_norm",
    "nll_loss_forward",
    "nll_loss2d_forward",
];

/// The value that a forward has written into a parameter, whose gradient it has.
const WRITTEN: &str = "shardwright.written.default";

const ONE_BY_ONE: [&str; 2] = ["meshgrid", "broadcast_tensors"];

/// Losses that only ask which label an operand is, and its position.
const LABELLED: [(&str, usize); 2] = [("hinge_embedding_loss", 1), ("cosine_embedding_loss", 2)];

/// Take the shape or the dtype of their second operand.
const LIKE_ANOTHER: [&str; 4] = ["type_as", "expand_as", "view_as", "reshape_as"];
