//! What operators compute, on formal numbers.
//!
//! Each family says what PyTorch's documentation says, and nothing of how an operator may be split: that is what is
//! put to the test. What is in no family is opaque: a fixed function of all of its operands as they are, so that a
//! part of it is something else. Where ranks compute a part of such an operator its result is unknown.

mod attention;
mod contraction;
mod creation;
mod elements;
mod indexing;
mod losses;
mod movement;
mod norms;
mod own;
mod pieces;
mod pointwise;
mod pooling;
mod random;
mod reductions;
mod whole;

use std::collections::{BTreeMap, HashMap};

use graph::Dtype;

use crate::number::{Num, hash, hash_text};
use crate::tape::{ElementKind, T, Tape};

pub use random::Draws;
pub use whole::Kinds;

/// An argument of an operator.
#[derive(Clone, Debug)]
pub enum OpArg {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Str(String),
    Dtype(Dtype),
    Tensor(T),
    List(Vec<OpArg>),
}

/// Why something cannot be computed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// What PyTorch would refuse.
    Wrong(String),
    /// The computation has more numbers than that.
    TooLarge,
    /// Ranks compute a part of an operator that is not interpreted.
    Unknown(String),
}

pub type Made<V> = Result<V, Stop>;

pub fn wrong<V>(what: impl Into<String>) -> Made<V> {
    Err(Stop::Wrong(what.into()))
}

/// What is the same for all operators of a run.
pub struct Env<'a> {
    pub seed: u64,
    /// The micro-batch, for random operators.
    pub batch: u64,
    /// On one device: what is opaque is remembered.
    pub single: bool,
    /// The operator of the graph that runs, by which random numbers are drawn.
    pub op: Option<u32>,
    pub draws: Draws<'a>,
    /// The opaque computations that the model makes, and what they give.
    pub seen: HashMap<u64, Kinds>,
    /// What the operator that runs on one device makes.
    pub makes: Kinds,
    /// Operators by how they were computed.
    pub exact: BTreeMap<String, u64>,
    pub opaque: BTreeMap<String, u64>,
    /// So many more numbers may be computed.
    pub left: usize,
}

pub struct OpCall<'c, 'a> {
    pub target: &'c str,
    /// Without the library and the overload.
    pub name: &'c str,
    pub args: Vec<OpArg>,
    pub kwargs: Vec<(String, OpArg)>,
    pub tape: &'c mut Tape,
    pub env: &'c mut Env<'a>,
}

/// Runs an operator.
pub fn run(
    tape: &mut Tape,
    env: &mut Env<'_>,
    target: &str,
    args: Vec<OpArg>,
    kwargs: Vec<(String, OpArg)>,
) -> Made<Vec<T>> {
    // The runtime's own are named in full: `sw.mean` is not `aten.mean`.
    let is_runtime = target.starts_with("sw.");
    let name = if is_runtime { target } else { target.split('.').nth(1).unwrap_or(target) };
    let before = tape.len();
    let tables = env.opaque.get(target).copied();
    let mut call = OpCall { target, name, args, kwargs, tape, env };
    let outputs = match call.interpreted()? {
        Some(outputs) => {
            if call.env.opaque.get(target).copied() == tables {
                *call.env.exact.entry(target.to_owned()).or_default() += 1;
            }
            outputs
        }
        None => whole::run(&mut call)?,
    };
    let added = tape.len() - before;
    env.spend(added)?;
    Ok(outputs)
}

impl Env<'_> {
    pub fn spend(&mut self, numbers: usize) -> Made<()> {
        self.left = self.left.checked_sub(numbers).ok_or(Stop::TooLarge)?;
        Ok(())
    }
}

impl OpCall<'_, '_> {
    /// `None` if no family has it.
    fn interpreted(&mut self) -> Made<Option<Vec<T>>> {
        if self.args.iter().any(is_complex) || self.kwargs.iter().any(|(_, arg)| is_complex(arg)) {
            return Ok(None);
        }
        let families = [
            Self::pointwise,
            Self::movement,
            Self::contraction,
            Self::reduction,
            Self::norm,
            Self::loss,
            Self::attention,
            Self::indexing,
            Self::creation,
            Self::pooling,
            Self::random,
            Self::runtime,
        ];
        for family in families {
            if let Some(outputs) = family(self)? {
                return Ok(Some(outputs));
            }
        }
        Ok(None)
    }

    /// Refuses what would be too much before it is begun.
    pub fn room(&self, numbers: usize) -> Made<()> {
        if numbers > self.env.left { Err(Stop::TooLarge) } else { Ok(()) }
    }

    pub fn arg(&self, at: usize, name: &str) -> Option<&OpArg> {
        let positional = self.args.get(at);
        positional.or_else(|| self.kwargs.iter().find(|(key, _)| key == name).map(|(_, arg)| arg))
    }

    pub fn tensor(&self, at: usize, name: &str) -> Made<T> {
        match self.maybe(at, name) {
            Some(x) => Ok(x),
            None => wrong(format!("{}: no tensor `{name}`", self.target)),
        }
    }

    pub fn maybe(&self, at: usize, name: &str) -> Option<T> {
        match self.arg(at, name) {
            Some(OpArg::Tensor(x)) => Some(x.clone()),
            _ => None,
        }
    }

    /// The tensors of a list.
    pub fn tensors(&self, at: usize, name: &str) -> Made<Vec<T>> {
        let Some(OpArg::List(items)) = self.arg(at, name) else {
            return wrong(format!("{}: no list of tensors", self.target));
        };
        let tensor = |item: &OpArg| match item {
            OpArg::Tensor(x) => Ok(x.clone()),
            _ => wrong(format!("{}: no tensor", self.target)),
        };
        items.iter().map(tensor).collect()
    }

    /// A tensor, or a number as one.
    pub fn operand(&mut self, at: usize, name: &str) -> Made<T> {
        let (kind, value) = match self.arg(at, name) {
            Some(OpArg::Tensor(x)) => return Ok(x.clone()),
            Some(OpArg::Int(value)) => (ElementKind::Int, Num::int(*value)),
            Some(OpArg::Float(value)) => (ElementKind::Float, Num::float(*value)),
            Some(OpArg::Bool(value)) => (ElementKind::Bool, Num::of_bool(*value)),
            _ => return wrong(format!("{}: no operand `{name}`", self.target)),
        };
        Ok(T::new(kind, vec![], vec![self.tape.constant(value)]))
    }

    pub fn int(&self, at: usize, name: &str, default: i64) -> i64 {
        match self.arg(at, name) {
            Some(OpArg::Int(value)) => *value,
            Some(OpArg::Bool(value)) => i64::from(*value),
            _ => default,
        }
    }

    pub fn flag(&self, at: usize, name: &str, default: bool) -> bool {
        match self.arg(at, name) {
            Some(OpArg::Bool(value)) => *value,
            Some(OpArg::Int(value)) => *value != 0,
            _ => default,
        }
    }

    pub fn number(&self, at: usize, name: &str) -> Option<Num> {
        match self.arg(at, name) {
            Some(OpArg::Int(value)) => Some(Num::int(*value)),
            Some(OpArg::Float(value)) => Some(Num::float(*value)),
            Some(OpArg::Bool(value)) => Some(Num::of_bool(*value)),
            _ => None,
        }
    }

    pub fn text(&self, at: usize, name: &str) -> Option<&str> {
        match self.arg(at, name) {
            Some(OpArg::Str(value)) => Some(value),
            _ => None,
        }
    }

    /// A list of numbers; one number is a list too.
    pub fn ints(&self, at: usize, name: &str) -> Option<Vec<i64>> {
        match self.arg(at, name)? {
            OpArg::Int(value) => Some(vec![*value]),
            OpArg::List(items) => {
                items.iter().map(|item| if let OpArg::Int(v) = item { Some(*v) } else { None }).collect()
            }
            _ => None,
        }
    }

    pub fn kind_of(&self, at: usize, name: &str) -> Option<ElementKind> {
        match self.arg(at, name) {
            Some(OpArg::Dtype(dtype)) => Some(kind(*dtype)),
            _ => None,
        }
    }

    pub fn dim(&self, dim: i64, rank: usize) -> Made<usize> {
        let wrapped = if dim < 0 { dim + rank.max(1) as i64 } else { dim };
        match usize::try_from(wrapped) {
            Ok(dim) if dim < rank.max(1) => Ok(dim),
            _ => wrong(format!("{}: dim {dim} of {rank}", self.target)),
        }
    }

    /// All dims if none are named.
    pub fn dims(&self, at: usize, name: &str, rank: usize) -> Made<Vec<usize>> {
        match self.ints(at, name) {
            Some(dims) if !dims.is_empty() => dims.into_iter().map(|dim| self.dim(dim, rank)).collect(),
            _ => Ok((0..rank).collect()),
        }
    }

    pub fn sizes(&self, at: usize, name: &str) -> Made<Vec<i64>> {
        match self.ints(at, name) {
            Some(sizes) => Ok(sizes),
            None => wrong(format!("{}: no list of numbers `{name}`", self.target)),
        }
    }

    /// What is fixed of the call: its name and its arguments but for tensors.
    pub fn signature(&self) -> u64 {
        let mut words = vec![hash_text(self.name)];
        let keywords = self.kwargs.iter().map(|(_, arg)| arg);
        self.args.iter().chain(keywords).for_each(|arg| words_of(arg, &mut words));
        hash(&words)
    }
}

fn words_of(arg: &OpArg, words: &mut Vec<u64>) {
    match arg {
        OpArg::None => words.push(1),
        // As in Python, and as a bool is a number.
        OpArg::Bool(value) => words.extend([2, Num::of_bool(*value).bits()]),
        OpArg::Int(value) => words.extend([2, Num::int(*value).bits()]),
        OpArg::Float(value) => words.extend([2, Num::float(*value).bits()]),
        OpArg::Str(text) => words.push(hash_text(text)),
        OpArg::Dtype(dtype) => words.push(hash_text(dtype.short())),
        OpArg::Tensor(_) => words.push(3),
        OpArg::List(items) => {
            words.extend([4, items.len() as u64]);
            items.iter().for_each(|item| words_of(item, words));
        }
    }
}

fn is_complex(arg: &OpArg) -> bool {
    matches!(arg, OpArg::Dtype(Dtype::C64 | Dtype::C128))
}

pub fn kind(dtype: Dtype) -> ElementKind {
    match dtype {
        Dtype::Bool => ElementKind::Bool,
        dtype if dtype.is_float() => ElementKind::Float,
        _ => ElementKind::Int,
    }
}
