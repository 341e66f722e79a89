//! A model, as everything speaks of it that Python holds.

use rules::Analysis;

/// A graph with its dims followed through, shared by everything that speaks of it.
pub(crate) struct Model {
    pub(crate) graph: graph::Graph,
    pub(crate) analysis: Analysis,
}
