//! What is said where a tail would be mixed in.

use diag::Error;
use graph::{OpId, Source, TensorId};

use crate::Proof;
use crate::state::Tail;
use crate::values::name;

const OWN: &str = "or fill up with `sw.pad_to`, and answer for it yourself";

impl Proof<'_> {
    /// The operator would mix in the tail of a length.
    pub fn mixed(&self, op: OpId, length: usize, why: &str, fix: &str) -> Error {
        let fix = if fix.is_empty() { OWN.to_string() } else { format!("{fix}; {OWN}") };
        let what = format!("{} would mix in what fills up {}", self.title(op), self.inputs_of(length));
        Error::new("SW0170", what).at(self.long.op(op).line.clone()).why(why).fix(fix)
    }

    /// The same, for what an operator does along a dim that a part of it needs whole.
    pub fn mixed_along(&self, op: OpId, tail: &Tail) -> Error {
        let (why, fix) = reason(name(self.long.op(op)));
        self.mixed(op, tail.length, why, fix)
    }

    pub fn not_finite(&self, op: OpId) -> Error {
        let what =
            format!("nothing is known of the gradients of {} where a batch is filled up", self.title(op));
        Error::new("SW0170", what)
            .at(self.long.op(op).line.clone())
            .why("its values or its derivatives may be no numbers there, and zero times these is no number")
            .fix(format!(
                "keep it off zero (`x + eps`, `clamp`), or choose with `torch.where` before it; {OWN}"
            ))
    }

    pub fn other_numbers(&self, op: OpId) -> Error {
        Error::new("SW0171", format!("{} depends on the length", self.title(op)))
            .at(self.long.op(op).line.clone())
            .why("it is given other numbers for a batch of another length, which is none of its own dims")
            .fix(format!("compute it of the mask, such as `mask.sum()`; {OWN}"))
    }

    pub fn no_shape(&self, op: OpId, out: TensorId) -> Error {
        let [long, short] = [self.long, self.short].map(|graph| format!("{:?}", graph.tensor(out).shape));
        Error::new("SW0171", format!("{} depends on the length", self.title(op)))
            .at(self.long.op(op).line.clone())
            .why(format!("it makes {long} of the one and {short} of the other batch, and why is not known"))
            .fix(OWN)
    }

    pub fn title(&self, op: OpId) -> String {
        let it = self.long.op(op);
        if it.module.is_empty() { it.target.clone() } else { format!("{} of {}", it.target, it.module) }
    }

    fn inputs_of(&self, length: usize) -> String {
        let filled = |position| self.lengths[length].fills.iter().any(|fill| fill.input == position);
        let input_name = |tensor: &graph::Tensor| match tensor.source {
            Source::Input { position, .. } if filled(position) => Some(tensor.name.clone()),
            _ => None,
        };
        self.long.tensors.iter().filter_map(input_name).collect::<Vec<_>>().join(", ")
    }
}

fn reason(name: &str) -> (&'static str, &'static str) {
    const COUNTED: &str = "weigh what it is taken of with a mask, and divide its sum by that of the mask";
    match name {
        "mean" | "nanmean" => {
            ("it takes the mean of all positions, and those that are filled count", COUNTED)
        }
        "mse_loss"
        | "l1_loss"
        | "smooth_l1_loss"
        | "huber_loss"
        | "kl_div"
        | "binary_cross_entropy"
        | "binary_cross_entropy_with_logits" => {
            ("it is taken of all elements, and those that are filled count", COUNTED)
        }
        "batch_norm"
        | "instance_norm"
        | "group_norm"
        | "native_group_norm"
        | "_native_batch_norm_legit_functional"
        | "_native_batch_norm_legit" => (
            "its statistics are of all positions, and those that are filled count",
            "normalize each position by itself",
        ),
        _ if name.starts_with("conv") => {
            ("it reaches over the end of what is no fill", "mix positions by attention with a mask")
        }
        "max" | "amax" | "min" | "amin" | "argmax" | "argmin" | "topk" | "sort" | "logsumexp" => {
            ("it chooses among all positions, those that are filled, too", "")
        }
        _ => ("it is not known to treat each position by itself", ""),
    }
}
