//! An operator as its rule is asked of it.

use graph::{Graph, Op, OpId};

/// An operator with its tensors at hand.
#[derive(Clone, Copy)]
pub struct View<'g> {
    pub graph: &'g Graph,
    pub id: OpId,
    pub op: &'g Op,
}

impl<'g> View<'g> {
    pub fn new(graph: &'g Graph, id: OpId) -> Self {
        Self { graph, id, op: graph.op(id) }
    }

    pub fn input_shapes(&self) -> Vec<&'g [i64]> {
        self.op.inputs().into_iter().map(|t| &self.graph.tensor(t).shape[..]).collect()
    }

    pub fn output_shapes(&self) -> Vec<Option<&'g [i64]>> {
        let shape = |t: &Option<graph::TensorId>| t.map(|t| &self.graph.tensor(t).shape[..]);
        self.op.outputs.iter().map(shape).collect()
    }
}
