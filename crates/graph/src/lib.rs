//! The single-device program: operators and the tensors between them, with source lines.
//!
//! The graph knows no devices, no rules and no Python. Its text form ([`text`]) is what capture
//! writes and what every other part reads; what prints parses.
//!
//! ```text
//! shardwright-graph 1
//! model "GPT"
//! in_spec "..."                          opaque to Rust: how the caller's arguments flatten
//! out_spec "..."
//! module "transformer.h.0" "Block"       the class of a module path, for names in generated code
//! input %idx i64[4,16] 0                 the position among the flattened arguments
//! input %h f64[4,16,32] 1 grad           the caller wants its gradient
//! param %p_wte f64[257,32] "wte.weight" "lm_head.weight"      further names are tied to the first
//! param %p_w f64[3] "w" frozen
//! buffer %b_mean f64[8] "bn.running_mean"
//! buffer %b_cos f64[8] "rope.cos" transient                   not part of the state dict
//! const %c_0 f64[2] "c_0"
//! op %linear f64[4,16,96] = aten.linear.default(%x, %p_w, %p_b) in "h.0.attn.c_attn" at "model.py:56"
//! op %a f64[2], %b f64[2], _ = aten.split.Tensor(%y, 2, dim=1) in "" at "model.py:57" nograd
//! op %m f64[3,2] = aten.dropout.default(%t, 0.1, True) in "" at "model.py:58" order [1, 0]
//! op %r f64[3,2] = aten.relu.default(%m) in "" at "model.py:59" span [0, 2]    the model computes it again for backward
//! output %loss
//! output none
//! update "bn.running_mean" %add                               of a buffer, or of a parameter by its first name
//! ```

mod gradients;
mod shorter;
pub mod text;

use std::fmt;

pub use shorter::{Repeats, repeats, shorter};

/// Declares a dense typed id over `u32`.
#[macro_export]
macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u32);
        impl $name {
            #[inline]
            pub fn new(index: usize) -> Self {
                Self(u32::try_from(index).expect("more than 2^32 of one kind"))
            }
            #[inline]
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }
        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "{}{}", stringify!($name), self.0)
            }
        }
    };
}

id!(
    /// An edge of the graph: a logical tensor.
    TensorId
);
id!(
    /// A node of the graph: an operator.
    OpId
);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dtype {
    F64,
    F32,
    F16,
    Bf16,
    I64,
    I32,
    I16,
    I8,
    U8,
    Bool,
    C64,
    C128,
}

impl Dtype {
    pub const ALL: [(Dtype, &'static str, &'static str, usize); 12] = [
        (Dtype::F64, "f64", "torch.float64", 8),
        (Dtype::F32, "f32", "torch.float32", 4),
        (Dtype::F16, "f16", "torch.float16", 2),
        (Dtype::Bf16, "bf16", "torch.bfloat16", 2),
        (Dtype::I64, "i64", "torch.int64", 8),
        (Dtype::I32, "i32", "torch.int32", 4),
        (Dtype::I16, "i16", "torch.int16", 2),
        (Dtype::I8, "i8", "torch.int8", 1),
        (Dtype::U8, "u8", "torch.uint8", 1),
        (Dtype::Bool, "bool", "torch.bool", 1),
        (Dtype::C64, "c64", "torch.complex64", 8),
        (Dtype::C128, "c128", "torch.complex128", 16),
    ];

    fn row(self) -> (Dtype, &'static str, &'static str, usize) {
        *Self::ALL.iter().find(|row| row.0 == self).expect("every dtype has a row")
    }

    pub fn short(self) -> &'static str {
        self.row().1
    }

    pub fn torch(self) -> &'static str {
        self.row().2
    }

    pub fn bytes(self) -> usize {
        self.row().3
    }

    pub fn parse(short: &str) -> Option<Dtype> {
        Self::ALL.iter().find(|row| row.1 == short).map(|row| row.0)
    }

    pub fn parse_torch(name: &str) -> Option<Dtype> {
        Self::ALL.iter().find(|row| row.2 == name).map(|row| row.0)
    }

    /// Whether a tensor of this type can carry a gradient.
    pub fn is_float(self) -> bool {
        matches!(self, Dtype::F64 | Dtype::F32 | Dtype::F16 | Dtype::Bf16 | Dtype::C64 | Dtype::C128)
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// A unique identifier, printed as `%name`.
    pub name: String,
    pub dtype: Dtype,
    pub shape: Vec<i64>,
    pub source: Source,
}

impl Tensor {
    pub fn numel(&self) -> i64 {
        self.shape.iter().product()
    }

    pub fn bytes(&self) -> i64 {
        self.numel() * self.dtype.bytes() as i64
    }

    /// The name by which an update speaks of a parameter or buffer.
    fn first_name(&self) -> Option<&str> {
        match &self.source {
            Source::Param { names, .. } => names.first().map(String::as_str),
            Source::Buffer { name, .. } => Some(name),
            _ => None,
        }
    }

    /// Whether it is a source that a gradient is asked for: a trained parameter, or such an input.
    pub fn wants_grad(&self) -> bool {
        let wanted =
            matches!(self.source, Source::Param { frozen: false, .. } | Source::Input { grad: true, .. });
        wanted && self.dtype.is_float()
    }
}

/// Where a tensor's value comes from. Every tensor has exactly one source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    Op {
        op: OpId,
        output: usize,
    },
    /// The position among the flattened arguments of the call, and whether the caller wants the
    /// gradient.
    Input {
        position: usize,
        grad: bool,
    },
    /// `names[0]` is canonical, the others are tied to it.
    Param {
        names: Vec<String>,
        frozen: bool,
    },
    Buffer {
        name: String,
        persistent: bool,
    },
    Const {
        name: String,
    },
}

/// An argument of an operator.
#[derive(Clone, Debug, PartialEq)]
pub enum Arg {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Str(String),
    Dtype(Dtype),
    Tensor(TensorId),
    List(Vec<Arg>),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Op {
    /// The full overload, such as `aten.linear.default`.
    pub target: String,
    pub args: Vec<Arg>,
    pub kwargs: Vec<(String, Arg)>,
    /// `None` for an output that nothing reads and capture dropped.
    pub outputs: Vec<Option<TensorId>>,
    /// The module path, such as `transformer.h.0.attn`; `sub@1` is the second call of `sub`.
    pub module: String,
    /// The model's own source line, such as `model.py:56`.
    pub line: String,
    /// Inside a region where gradients are off.
    pub no_grad: bool,
    /// The spans in which the model itself has it computed again for backward, by number, outermost first.
    pub spans: Vec<usize>,
    /// The dims of what it gives as they lie in the model's memory, outermost first; empty where that is
    /// their own order. On one device random numbers are drawn so, and nothing else depends on it.
    pub order: Vec<usize>,
}

impl Op {
    /// The tensors among the arguments, in order, lists flattened, repeats kept.
    pub fn inputs(&self) -> Vec<TensorId> {
        let mut tensors = Vec::new();
        for arg in self.args.iter().chain(self.kwargs.iter().map(|(_, arg)| arg)) {
            collect(arg, &mut tensors);
        }
        tensors
    }

    pub fn kwarg(&self, name: &str) -> Option<&Arg> {
        self.kwargs.iter().find(|(key, _)| key == name).map(|(_, arg)| arg)
    }

    /// A positional argument, or the keyword argument of that name.
    pub fn arg(&self, position: usize, name: &str) -> Option<&Arg> {
        self.args.get(position).or_else(|| self.kwarg(name))
    }
}

fn collect(arg: &Arg, tensors: &mut Vec<TensorId>) {
    match arg {
        Arg::Tensor(id) => tensors.push(*id),
        Arg::List(items) => items.iter().for_each(|item| collect(item, tensors)),
        _ => {}
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Graph {
    pub model: String,
    pub in_spec: String,
    pub out_spec: String,
    /// Module paths and their classes, in the order of first use.
    pub modules: Vec<(String, String)>,
    pub tensors: Vec<Tensor>,
    pub ops: Vec<Op>,
    /// In the order of the flattened result; `None` where the model returns `None`.
    pub outputs: Vec<Option<TensorId>>,
    /// Buffers and parameters that a forward changes, the latter by their first names, and their new values.
    pub updates: Vec<(String, TensorId)>,
}

impl Graph {
    pub fn tensor(&self, id: TensorId) -> &Tensor {
        &self.tensors[id.index()]
    }

    pub fn op(&self, id: OpId) -> &Op {
        &self.ops[id.index()]
    }

    pub fn tensor_ids(&self) -> impl Iterator<Item = TensorId> + use<> {
        (0..self.tensors.len()).map(TensorId::new)
    }

    pub fn op_ids(&self) -> impl DoubleEndedIterator<Item = OpId> + Clone + use<> {
        (0..self.ops.len()).map(OpId::new)
    }

    pub fn producer(&self, id: TensorId) -> Option<(OpId, usize)> {
        match self.tensor(id).source {
            Source::Op { op, output } => Some((op, output)),
            _ => None,
        }
    }

    pub fn find(&self, name: &str) -> Option<TensorId> {
        self.tensors.iter().position(|t| t.name == name).map(TensorId::new)
    }

    /// A parameter or buffer, by its first name.
    pub fn held(&self, name: &str) -> Option<TensorId> {
        self.tensor_ids().find(|id| self.tensor(*id).first_name() == Some(name))
    }

    pub fn is_parameter(&self, id: TensorId) -> bool {
        matches!(self.tensor(id).source, Source::Param { .. })
    }

    /// What a parameter or buffer becomes, if a forward changes it.
    pub fn new_value(&self, id: TensorId) -> Option<TensorId> {
        let name = self.tensor(id).first_name()?;
        self.updates.iter().find(|(other, _)| other == name).map(|(_, value)| *value)
    }

    /// Who reads each tensor: the operator and the position among its [`Op::inputs`].
    pub fn uses(&self) -> Vec<Vec<(OpId, usize)>> {
        let mut uses = vec![Vec::new(); self.tensors.len()];
        for id in self.op_ids() {
            for (position, tensor) in self.op(id).inputs().into_iter().enumerate() {
                uses[tensor.index()].push((id, position));
            }
        }
        uses
    }

    /// One past the last tensor whose definition stands above this operator, where things are defined in the
    /// order of their numbers; a source that an earlier operator reads moves above it.
    pub fn defined_above(&self, op: &Op) -> usize {
        let is_source = |id: &TensorId| self.producer(*id).is_none();
        let read = op.inputs().into_iter().filter(is_source).map(|id| id.index() + 1).max();
        let made = op.outputs.iter().flatten().map(|id| id.index()).min();
        read.max(made).unwrap_or(0)
    }

    /// How an operator is named to people: its module path, target and line.
    pub fn describe(&self, id: OpId) -> String {
        let op = self.op(id);
        let name = op.outputs.iter().flatten().next().map_or("_", |t| &self.tensor(*t).name);
        format!("{} %{name} in \"{}\" at {}", op.target, op.module, op.line)
    }

    /// The type in which an operator computes: that of its first float, or of its first tensor.
    pub fn computes_in(&self, id: OpId) -> Option<Dtype> {
        let op = self.op(id);
        let tensors = || op.inputs().into_iter().chain(op.outputs.iter().flatten().copied());
        let dtypes = || tensors().map(|tensor| self.tensor(tensor).dtype);
        dtypes().find(|dtype| dtype.is_float()).or_else(|| dtypes().next())
    }

    /// For each tensor, whether a gradient flows through it: it depends on a parameter, or on an
    /// input whose gradient is wanted, by differentiable operators, and some output depends on it.
    pub fn needs_grad(&self) -> Vec<bool> {
        self.needs_grad_of(|_| true)
    }

    /// The same, where only these outputs are given a gradient.
    pub fn needs_grad_of(&self, leaves: impl Fn(usize) -> bool) -> Vec<bool> {
        let mut depends: Vec<bool> = self.tensors.iter().map(Tensor::wants_grad).collect();
        for op in &self.ops {
            let inputs = op.inputs();
            for (number, out) in op.outputs.iter().enumerate() {
                let Some(out) = out.filter(|out| self.tensor(*out).dtype.is_float()) else { continue };
                let from = |(at, t): (usize, &TensorId)| depends[t.index()] && op.gives_gradient(number, at);
                depends[out.index()] = inputs.iter().enumerate().any(from);
            }
        }
        let mut reached = vec![false; self.tensors.len()];
        let leaving = self.outputs.iter().enumerate().filter(|(number, _)| leaves(*number));
        for out in leaving.filter_map(|(_, out)| *out) {
            reached[out.index()] = depends[out.index()];
        }
        for op in self.ops.iter().rev() {
            for (at, input) in op.inputs().into_iter().enumerate() {
                let needs = depends[input.index()] && op.passes_on(|out| reached[out.index()], at);
                reached[input.index()] |= needs;
            }
        }
        reached
    }
}

impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&text::print(self))
    }
}
