//! Sub-operators: what one part of a split operator computes on its shards.

use graph::{Arg, Dtype, TensorId};

/// An argument of a sub-operator. Tensors are named by their position among the operator's inputs.
#[derive(Clone, Debug, PartialEq)]
pub enum LocalArg {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Str(String),
    Dtype(Dtype),
    /// The position among [`graph::Op::inputs`].
    Input(usize),
    List(Vec<LocalArg>),
}

/// What a part of an operator executes: an ATen operator with changed arguments, or one of the
/// runtime's own (`sw.*`, see `docs/reference/runtime-operators.md`).
#[derive(Clone, Debug, PartialEq)]
pub struct LocalOp {
    pub target: String,
    pub args: Vec<LocalArg>,
    pub kwargs: Vec<(String, LocalArg)>,
}

impl LocalOp {
    /// Whether it is one of the runtime's operators that draw random numbers.
    pub fn is_random(&self) -> bool {
        matches!(&self.target[..], "sw.dropout" | "sw.native_dropout" | "sw.attention" | "sw.draw")
    }

    /// The integers among the arguments, in order, which are left as zeros.
    pub fn take_ints(&mut self) -> Vec<i64> {
        fn take(arg: &mut LocalArg, ints: &mut Vec<i64>) {
            match arg {
                LocalArg::Int(value) => ints.push(std::mem::take(value)),
                LocalArg::List(items) => items.iter_mut().for_each(|item| take(item, ints)),
                _ => {}
            }
        }
        let mut ints = vec![];
        let all = self.args.iter_mut().chain(self.kwargs.iter_mut().map(|(_, arg)| arg));
        all.for_each(|arg| take(arg, &mut ints));
        ints
    }
}

/// The part of an operator's dims that one sub-operator computes.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// For each dim of the rule, how many of its elements this part has.
    pub size: Vec<i64>,
    /// For each dim of the rule, where the part begins, if it is one contiguous interval.
    pub start: Vec<Option<i64>>,
    /// Whether operands marked `!` belong to this part.
    pub first: bool,
    /// Shapes of the shards that this part reads and writes.
    pub inputs: Vec<Vec<i64>>,
    pub outputs: Vec<Vec<i64>>,
    /// Which of this rank's parts of a random operator this is; indexes the rank's table of regions.
    pub slot: i64,
}

/// The operator itself as a sub-operator, unchanged: tensors become positions.
pub fn unchanged(op: &graph::Op) -> LocalOp {
    let mut next = 0;
    let args = op.args.iter().map(|arg| number(arg, &mut next)).collect();
    let kwargs = op.kwargs.iter().map(|(name, arg)| (name.clone(), number(arg, &mut next))).collect();
    LocalOp { target: op.target.clone(), args, kwargs }
}

fn number(arg: &Arg, next: &mut usize) -> LocalArg {
    match arg {
        Arg::None => LocalArg::None,
        Arg::Bool(v) => LocalArg::Bool(*v),
        Arg::Int(v) => LocalArg::Int(*v),
        Arg::Float(v) => LocalArg::Float(*v),
        Arg::Str(v) => LocalArg::Str(v.clone()),
        Arg::Dtype(v) => LocalArg::Dtype(*v),
        Arg::Tensor(TensorId(_)) => {
            *next += 1;
            LocalArg::Input(*next - 1)
        }
        Arg::List(items) => LocalArg::List(items.iter().map(|item| number(item, next)).collect()),
    }
}

/// A list of integers as an argument.
pub fn ints(values: &[i64]) -> LocalArg {
    LocalArg::List(values.iter().map(|&v| LocalArg::Int(v)).collect())
}
