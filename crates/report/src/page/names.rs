//! StringTable that occur often, each told once.

use std::collections::BTreeMap;

use graph::{Graph, OpId};
use serde_json::{Value, json};

/// Numbers of words, in the order in which they first occurred.
#[derive(Debug, Default)]
pub(super) struct StringTable {
    known: BTreeMap<String, usize>,
    all: Vec<String>,
}

impl StringTable {
    pub(super) fn number(&mut self, word: &str) -> usize {
        if let Some(number) = self.known.get(word) {
            return *number;
        }
        let number = self.all.len();
        self.known.insert(word.to_owned(), number);
        self.all.push(word.to_owned());
        number
    }
}

/// What a page names again and again.
#[derive(Debug, Default)]
pub(super) struct PageNames {
    pub(super) targets: StringTable,
    pub(super) modules: StringTable,
    pub(super) lines: StringTable,
    pub(super) shapes: StringTable,
}

impl PageNames {
    /// Of each operator of the program's graph: what it makes, its target, module and line, and the shape of its first
    /// value.
    pub(super) fn operators(&mut self, graph: &Graph) -> Vec<Value> {
        graph.op_ids().map(|op| self.operator(graph, op)).collect()
    }

    fn operator(&mut self, graph: &Graph, id: OpId) -> Value {
        let op = graph.op(id);
        let first = op.outputs.iter().flatten().next();
        json!([
            first.map_or("_", |tensor| &graph.tensor(*tensor).name),
            self.targets.number(&op.target),
            self.modules.number(&op.module),
            self.lines.number(&op.line),
            self.shapes.number(&first.map_or_else(String::new, |tensor| shape(graph, *tensor))),
        ])
    }

    /// `sources` are what lines say.
    pub(super) fn to_json(&self, sources: &BTreeMap<String, String>) -> Value {
        let said: Vec<Option<&String>> = self.lines.all.iter().map(|line| sources.get(line)).collect();
        json!({
            "targets": self.targets.all,
            "modules": self.modules.all,
            "lines": self.lines.all,
            "sources": if sources.is_empty() { vec![] } else { said },
            "shapes": self.shapes.all,
        })
    }
}

/// `f32[4,16]`.
pub(super) fn shape(graph: &Graph, tensor: graph::TensorId) -> String {
    let tensor = graph.tensor(tensor);
    let dims: Vec<String> = tensor.shape.iter().map(ToString::to_string).collect();
    format!("{}[{}]", tensor.dtype.short(), dims.join(","))
}
