//! What the graph says of its modules: classes, and how many operators each has.

use std::collections::HashMap;

use graph::{Graph, OpId, Source, TensorId};
use program::LocalOp;
use rules::rewriting::{Origin, Rewritten};

use crate::{leaves, names};

/// Modules of PyTorch that are one thing to a reader: their operators stand in the parent's code.
const LEAVES: [&str; 44] = [
    "Linear",
    "Bilinear",
    "LazyLinear",
    "LayerNorm",
    "RMSNorm",
    "GroupNorm",
    "Embedding",
    "EmbeddingBag",
    "Dropout",
    "Dropout1d",
    "Dropout2d",
    "Dropout3d",
    "GELU",
    "ReLU",
    "ReLU6",
    "SiLU",
    "Sigmoid",
    "Tanh",
    "Softmax",
    "LogSoftmax",
    "LeakyReLU",
    "ELU",
    "Hardswish",
    "Hardsigmoid",
    "Hardtanh",
    "Mish",
    "Softplus",
    "PReLU",
    "GLU",
    "Identity",
    "Flatten",
    "Unflatten",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose2d",
    "MaxPool2d",
    "AvgPool2d",
    "AdaptiveAvgPool2d",
    "BatchNorm1d",
    "BatchNorm2d",
    "InstanceNorm2d",
    "CrossEntropyLoss",
    "MSELoss",
];
/// Modules whose class says less than their place.
const CONTAINERS: [&str; 3] = ["Sequential", "ModuleList", "ModuleDict"];

pub(crate) struct Modules<'a> {
    graph: &'a Graph,
    classes: HashMap<&'a str, &'a str>,
    /// How many operators each has, and the last of them.
    sizes: HashMap<&'a str, (usize, usize)>,
    /// The tensor of each that is read outside of it; None where there are several.
    results: HashMap<&'a str, Option<TensorId>>,
    /// For each operator that is a piece of one of the model: the target of that.
    pieces: Vec<Option<&'a str>>,
}

impl<'a> Modules<'a> {
    pub(crate) fn new(model: &'a Graph, rewritten: &'a Rewritten<'_>) -> Self {
        let graph: &Graph = &rewritten.graph;
        let piece = |origin: &Origin| origin.labels.as_ref().map(|_| model.op(origin.op).target.as_str());
        let pieces = rewritten.origins.iter().map(piece).collect();
        let classes = graph.modules.iter().map(|(path, class)| (path.as_str(), class.as_str())).collect();
        Self { graph, classes, sizes: sizes(graph), results: results(graph), pieces }
    }

    /// The operator of the model that all of these are pieces of: `cross_entropy_loss`.
    pub(crate) fn piece(&self, ops: &[LocalOp]) -> Option<&'a str> {
        let first = self.piece_of(ops.first()?.op)?;
        let same = ops.iter().all(|op| self.piece_of(op.op) == Some(first));
        same.then(|| first.split('.').nth(1).unwrap_or(first))
    }

    pub(crate) fn path_of(&self, op: OpId) -> &'a str {
        self.graph.ops.get(op.index()).map_or("", |op| op.module.as_str())
    }

    pub(crate) fn line(&self, op: OpId) -> &'a str {
        self.graph.ops.get(op.index()).map_or("", |op| op.line.as_str())
    }

    pub(crate) fn class(&self, path: &str) -> Option<&'a str> {
        self.classes.get(path).or_else(|| self.classes.get(plain(path).as_str())).copied()
    }

    pub(crate) fn is_leaf(&self, path: &str) -> bool {
        self.class(path).is_some_and(|class| LEAVES.contains(&class))
    }

    /// The module that a list of layers is in; any other is itself.
    pub(crate) fn around<'p>(&self, path: &'p str) -> &'p str {
        let is_list = self.class(path).is_none_or(|class| CONTAINERS.contains(&class));
        if is_list { path.rsplit_once('.').map_or("", |(outer, _)| outer) } else { path }
    }

    /// How many operators of the graph are inside a module.
    pub(crate) fn size(&self, path: &str) -> usize {
        self.sizes.get(path).map_or(0, |(size, _)| *size)
    }

    /// The target of the model's operator that this one is a piece of.
    pub(crate) fn piece_of(&self, op: OpId) -> Option<&'a str> {
        self.pieces.get(op.index()).copied().flatten()
    }

    /// Whether a tensor is all that a module gives, made by its last operator.
    pub(crate) fn is_result(&self, path: &str, tensor: TensorId) -> bool {
        let last = self.sizes.get(path).map(|(_, last)| &self.graph.ops[*last].outputs[..]);
        last == Some(&[Some(tensor)]) && self.results.get(path) == Some(&Some(tensor))
    }

    /// An operator's target; that of the model's operator that it is the last piece of.
    pub(crate) fn target(&self, op: OpId) -> Option<&'a str> {
        let operator = self.graph.ops.get(op.index())?;
        let ends = |made: &TensorId| !names::is_made_up(&self.graph.tensor(*made).name);
        let whole = self.piece_of(op).filter(|_| operator.outputs.iter().flatten().any(ends));
        Some(whole.unwrap_or(&operator.target))
    }

    /// What a function for (a part of) this module is called.
    pub(crate) fn function_name(&self, path: &str) -> String {
        if path.is_empty() {
            return names::snake(&self.graph.model);
        }
        match self.class(path) {
            Some(class) if !LEAVES.contains(&class) && !CONTAINERS.contains(&class) => names::snake(class),
            Some(class) if names::is_number(path) && LEAVES.contains(&class) => names::snake(class),
            // One of many that are alike.
            _ if names::is_number(path) => {
                names::tail(path.rsplit_once('.').map_or(path, |(outer, _)| outer))
            }
            _ => names::tail(path),
        }
    }

    /// How a module is named to people.
    pub(crate) fn title(&self, path: &'a str) -> &'a str {
        if path.is_empty() { &self.graph.model } else { path }
    }
}

/// A path without the marks of second calls: `sub@1.x` is `sub.x`.
pub(crate) fn plain(path: &str) -> String {
    if !path.contains('@') {
        return path.to_owned();
    }
    let parts: Vec<&str> = path.split('.').map(|part| part.split('@').next().unwrap_or(part)).collect();
    parts.join(".")
}

fn results(graph: &Graph) -> HashMap<&str, Option<TensorId>> {
    let mut results: HashMap<&str, Option<TensorId>> = HashMap::new();
    let mut read = |tensor: TensorId, by: &str| {
        let Source::Op { op, .. } = graph.tensor(tensor).source else { return };
        for path in outward(&graph.op(op).module).filter(|path| leaves::strip(by, path).is_none()) {
            let known = results.entry(path).or_insert(Some(tensor));
            *known = known.filter(|known| *known == tensor);
        }
    };
    for op in &graph.ops {
        op.inputs().into_iter().for_each(|tensor| read(tensor, &op.module));
    }
    graph.outputs.iter().flatten().for_each(|tensor| read(*tensor, ""));
    results
}

/// A module and those that it is in, but for the model itself.
fn outward(path: &str) -> impl Iterator<Item = &str> {
    let ends = path.match_indices('.').map(|(end, _)| end).chain((!path.is_empty()).then_some(path.len()));
    ends.map(|end| &path[..end])
}

fn sizes(graph: &Graph) -> HashMap<&str, (usize, usize)> {
    let mut sizes: HashMap<&str, (usize, usize)> = HashMap::new();
    let mut at = 0;
    while let Some(first) = graph.ops.get(at) {
        let path = first.module.as_str();
        let run = graph.ops[at..].iter().take_while(|op| op.module == path).count();
        at += run;
        for module in outward(path) {
            let entry = sizes.entry(module).or_default();
            *entry = (entry.0 + run, at - 1);
        }
    }
    sizes.insert("", (graph.ops.len(), graph.ops.len().saturating_sub(1)));
    sizes
}
