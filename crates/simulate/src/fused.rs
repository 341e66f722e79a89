//! What still moves where a compiler makes one kernel of several operators.
//!
//! Operators that compute little are joined with those beside them: what one writes and the next reads stays on the chip.
//! A product, an attention or a convolution is a kernel of its own, so a value that passes one is written and read. How
//! many such kernels come before an operator is its *stage*; those of one stage that read each other are joined. Backward
//! is told like forward: its kernels read and write the gradients of the same values.

use std::collections::{BTreeMap, BTreeSet};

use graph::{Graph, OpId, TensorId};

/// Families whose operators are joined.
const JOINED: [&str; 11] = [
    "creation",
    "losses",
    "moments",
    "norms",
    "pointwise",
    "reductions",
    "similarity",
    "softmax",
    "splitting",
    "statistics",
    VIEWS,
];
/// Another look at the same memory.
const VIEWS: &str = "views";

/// What of the bytes of each operator moves, from 0 to 1.
pub(crate) fn moved(graph: &Graph, families: &[&str]) -> Vec<f64> {
    let all = JoinedMessages::new(graph, families);
    let mut read = BTreeSet::new();
    graph.op_ids().map(|op| all.share(op, &mut read)).collect()
}

struct JoinedMessages<'g> {
    graph: &'g Graph,
    families: &'g [&'g str],
    /// Of each operator.
    stages: Vec<usize>,
    /// Of each tensor those who read it, through views, too.
    readers: BTreeMap<TensorId, Vec<OpId>>,
}

impl<'g> JoinedMessages<'g> {
    fn new(graph: &'g Graph, families: &'g [&'g str]) -> Self {
        let mut made = Self { graph, families, stages: vec![], readers: BTreeMap::new() };
        for op in graph.op_ids() {
            let stage = made.stage(op);
            made.stages.push(stage);
            if families[op.index()] != VIEWS {
                for input in graph.op(op).inputs() {
                    made.readers.entry(made.source(input)).or_default().push(op);
                }
            }
        }
        made
    }

    fn is_joined(&self, op: OpId) -> bool {
        JOINED.contains(&self.families[op.index()])
    }

    fn stage(&self, op: OpId) -> usize {
        let before = self.graph.op(op).inputs().into_iter().filter_map(|input| self.graph.producer(input));
        let stage =
            |(reader, _): (OpId, usize)| self.stages[reader.index()] + usize::from(!self.is_joined(reader));
        before.map(stage).max().unwrap_or(0)
    }

    /// The tensor that a view is a look at.
    fn source(&self, tensor: TensorId) -> TensorId {
        let view = |(op, _): &(OpId, usize)| self.families[op.index()] == VIEWS;
        match self.graph.producer(tensor).filter(view) {
            Some((op, _)) => self.graph.op(op).inputs().first().map_or(tensor, |input| self.source(*input)),
            None => tensor,
        }
    }

    /// `read` are tensors that a kernel of a stage has read.
    fn share(&self, op: OpId, read: &mut BTreeSet<(TensorId, usize)>) -> f64 {
        if !self.is_joined(op) {
            return 1.0;
        }
        let stage = self.stages[op.index()];
        let bytes = |tensor: TensorId| self.graph.tensor(tensor).bytes() as f64;
        let (mut all, mut moved) = (0.0, 0.0);
        for input in self.graph.op(op).inputs() {
            let source = self.source(input);
            all += bytes(input);
            let is_here = |(producer, _): (OpId, usize)| {
                self.is_joined(producer) && self.stages[producer.index()] == stage
            };
            if !self.graph.producer(source).is_some_and(is_here) && read.insert((source, stage)) {
                moved += bytes(input);
            }
        }
        for output in self.graph.op(op).outputs.iter().flatten() {
            all += bytes(*output);
            moved += if self.is_written(*output, stage) { bytes(*output) } else { 0.0 };
        }
        if all > 0.0 { moved / all } else { 1.0 }
    }

    /// Whether somebody reads it who is not in its kernel.
    fn is_written(&self, tensor: TensorId, stage: usize) -> bool {
        let is_there = |reader: &OpId| !self.is_joined(*reader) || self.stages[reader.index()] != stage;
        self.readers.get(&tensor).is_none_or(|readers| readers.iter().any(is_there))
    }
}
