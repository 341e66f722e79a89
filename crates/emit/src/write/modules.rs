//! What the graph says of its modules: classes, and how many operators each has.

use std::collections::HashMap;

use graph::{Graph, OpId};

use crate::names;

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
    sizes: HashMap<&'a str, usize>,
}

impl<'a> Modules<'a> {
    pub(crate) fn new(graph: &'a Graph) -> Self {
        let classes = graph.modules.iter().map(|(path, class)| (path.as_str(), class.as_str())).collect();
        Self { graph, classes, sizes: sizes(graph) }
    }

    pub(crate) fn of(&self, op: OpId) -> &'a str {
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

    /// How many operators of the graph are inside a module.
    pub(crate) fn size(&self, path: &str) -> usize {
        self.sizes.get(path).copied().unwrap_or(0)
    }

    /// What a function for (a part of) this module is called.
    pub(crate) fn function_name(&self, path: &str) -> String {
        if path.is_empty() {
            return names::snake(&self.graph.model);
        }
        match self.class(path) {
            Some(class) if !LEAVES.contains(&class) && !CONTAINERS.contains(&class) => names::snake(class),
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

fn sizes(graph: &Graph) -> HashMap<&str, usize> {
    let mut sizes = HashMap::new();
    let mut ops = graph.ops.as_slice();
    while let Some(first) = ops.first() {
        let path = first.module.as_str();
        let run = ops.iter().take_while(|op| op.module == path).count();
        let ends = path.match_indices('.').map(|(at, _)| at).chain([path.len()]);
        ends.for_each(|end| *sizes.entry(&path[..end]).or_insert(0) += run);
        ops = &ops[run..];
    }
    *sizes.entry("").or_insert(0) = graph.ops.len();
    sizes
}
