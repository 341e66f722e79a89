//! The rules, one file a family, each with the same skeleton: see `docs/adding-a-rule.md`.

use graph::{Graph, Op, OpId};

use crate::algebra::Rule;
use crate::expand::Builder;
use crate::local::{LocalOp, Part};

/// An operator with its tensors at hand.
#[derive(Clone, Copy)]
pub struct View<'g> {
    pub graph: &'g Graph,
    pub id: OpId,
    pub op: &'g Op,
}

/// What an operator costs, whole.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Floating point operations, forward; backward is `backward` times that.
    pub flops: f64,
    pub backward: f64,
    /// Bytes read and written, forward.
    pub bytes: f64,
    /// Bytes that must be kept for backward.
    pub saved: f64,
}

/// A family of operators that are split alike.
pub struct Family {
    pub name: &'static str,
    /// The overloads it covers.
    pub targets: &'static [&'static str],
    /// The rule of this operator as text, for its shapes and arguments; `None` where this call of it
    /// has none (it is then replicated and reported).
    pub rule: fn(View<'_>) -> Option<String>,
    /// What one part of it computes.
    pub local: fn(View<'_>, &Rule, &Part) -> LocalOp,
    /// Its rewriting into simpler operators, for a split along dims with their own algorithm.
    pub expand: Option<fn(&Op, &mut Builder<'_>)>,
    pub cost: fn(View<'_>) -> Cost,
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
