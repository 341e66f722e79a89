//! A model, as everything speaks of it that Python holds.

use rules::Analysis;

/// A graph with its dims followed through, shared by everything that speaks of it.
pub(crate) struct Model {
    pub(crate) graph: graph::Graph,
    pub(crate) analysis: Analysis,
    /// Of each tensor.
    pub(crate) needs_grad: Vec<bool>,
}

impl Model {
    pub(crate) fn new(graph: graph::Graph) -> Self {
        let analysis = Analysis::new(&graph);
        let needs_grad = graph.needs_grad();
        Self { graph, analysis, needs_grad }
    }
}
