//! What a model is given and holds: a fixed, arbitrary number for each element, by name, so that every graph of the
//! model has the same.

use std::collections::HashMap;

use graph::{Graph, Source, Tensor, TensorId};

use crate::number::{Num, hash, hash_text};
use crate::ops::{OpArg, kind};
use crate::tape::{ElementKind, Value};

/// Classes and tokens are numbers below this; whoever indexes takes them modulo what there is.
const NUMBERS: u64 = 997;
/// One target in so many is one that its loss ignores.
const IGNORED: u64 = 5;

pub struct Sources {
    seed: u64,
    /// The number that a loss ignores, for inputs that are targets.
    ignored: HashMap<String, i64>,
}

/// When a value is read: parameters change from step to step, inputs from one micro-batch to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct When {
    pub step: u32,
    pub batch: u32,
}

impl When {
    pub fn key(self) -> u64 {
        (u64::from(self.step) << 32) | u64::from(self.batch)
    }
}

impl Sources {
    pub fn new(model: &Graph, seed: u64) -> Self {
        let mut ignored = HashMap::new();
        for op in model
            .ops
            .iter()
            .filter(|op| op.target.contains("cross_entropy") || op.target.contains("nll_loss"))
        {
            let Some(graph::Arg::Tensor(target)) = op.arg(1, "target") else { continue };
            let number = match op.arg(4, "ignore_index") {
                Some(graph::Arg::Int(number)) => *number,
                _ => -100,
            };
            ignored.insert(model.tensor(behind_views(model, *target)).name.clone(), number);
        }
        Self { seed, ignored }
    }

    pub fn value(&self, tensor: &Tensor, when: When) -> Value {
        let shape: Vec<usize> = tensor.shape.iter().map(|size| (*size).max(0) as usize).collect();
        let moment = match tensor.source {
            Source::Input { .. } => 1 + when.key(),
            Source::Param { .. } => u64::from(when.step),
            _ => 0,
        };
        let name = hash_text(&tensor.name);
        let ignored = self.ignored.get(&tensor.name);
        let element = |at: usize| {
            let key = hash(&[self.seed, name, moment, at as u64]);
            match (kind(tensor.dtype), ignored) {
                (ElementKind::Float, _) => Num::table(&[key]),
                (ElementKind::Bool, _) => Num::of_bool(key & 1 == 1),
                (ElementKind::Int, Some(ignored)) if key >> 40 & 0xff < 256 / IGNORED => Num::int(*ignored),
                (ElementKind::Int, _) => Num::int((key % NUMBERS) as i64),
            }
        };
        let count: usize = shape.iter().product();
        Value::new(kind(tensor.dtype), shape, (0..count).map(element).collect())
    }

    /// The gradient of an output that the caller gives.
    pub fn seed(&self, output: usize, tensor: &Tensor, when: When) -> Value {
        let shape: Vec<usize> = tensor.shape.iter().map(|size| (*size).max(0) as usize).collect();
        let element = |at: usize| Num::table(&[self.seed, 0x6eed, output as u64, when.key(), at as u64]);
        let count: usize = shape.iter().product();
        Value::new(ElementKind::Float, shape, (0..count).map(element).collect())
    }

    /// By what the caller of a step multiplies its losses.
    pub fn scale(&self, step: u32) -> Num {
        Num::table(&[self.seed, 0x5ca1e, u64::from(step)])
    }
}

/// The tensor whose elements a view has.
fn behind_views(model: &Graph, mut id: TensorId) -> TensorId {
    const VIEWS: [&str; 6] = ["view", "reshape", "flatten", "_unsafe_view", "clone", "contiguous"];
    while let Some((op, _)) = model.producer(id) {
        let op = model.op(op);
        match op.args.first() {
            Some(graph::Arg::Tensor(from))
                if op.target.split('.').nth(1).is_some_and(|name| VIEWS.contains(&name)) =>
            {
                id = *from;
            }
            _ => break,
        }
    }
    id
}

/// The arguments of a graph's operator, given its tensors.
pub fn argument<V: Clone>(
    arg: &graph::Arg,
    tensor: &impl Fn(TensorId) -> Option<V>,
    made: &impl Fn(V) -> OpArg,
) -> Option<OpArg> {
    Some(match arg {
        graph::Arg::None => OpArg::None,
        graph::Arg::Bool(value) => OpArg::Bool(*value),
        graph::Arg::Int(value) => OpArg::Int(*value),
        graph::Arg::Float(value) => OpArg::Float(*value),
        graph::Arg::Str(text) => OpArg::Str(text.clone()),
        graph::Arg::Dtype(dtype) => OpArg::Dtype(*dtype),
        graph::Arg::Tensor(id) => made(tensor(*id)?),
        graph::Arg::List(items) => {
            OpArg::List(items.iter().map(|item| argument(item, tensor, made)).collect::<Option<_>>()?)
        }
    })
}
