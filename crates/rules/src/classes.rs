//! Which factors of which tensors are the same dim of the model.
//!
//! The batch, the heads of one layer, the inner dim of one MLP: each is a class of (tensor, factor)
//! pairs that operators carry into each other. Named plans are choices of classes.

use graph::{Graph, OpId, TensorId};

use crate::algebra::Kind;
use crate::factors::Analysis;
use crate::joined::Joined;

/// A class of factors, and the loops of operators that run over it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Class {
    /// (operator, loop), in the operators' order.
    pub loops: Vec<(OpId, usize)>,
    /// Some tensor carries it where an operator has no loop for it.
    pub stuck: bool,
    pub size: i64,
}

/// All classes, and the class of each tensor's factors and each operator's loops.
pub struct Classes {
    pub all: Vec<Class>,
    tensors: Vec<Vec<usize>>,
    loops: Vec<Vec<usize>>,
}

impl Classes {
    pub fn new(graph: &Graph, analysis: &Analysis) -> Classes {
        let mut nodes = Nodes::new(graph, analysis);
        for op in graph.op_ids() {
            let dims = analysis.op(op);
            let it = graph.op(op);
            let inputs = analysis.rules[op.index()].as_ref().map(|rule| &rule.inputs[..]);
            for (at, (tensor, carried)) in it.inputs().into_iter().zip(&dims.inputs).enumerate() {
                // Of what only lends its type no part is read.
                if !inputs.is_some_and(|inputs| inputs[at].absent) {
                    nodes.link(tensor, carried, op);
                }
            }
            for (tensor, carried) in it.outputs.iter().zip(&dims.outputs) {
                if let Some(tensor) = tensor {
                    nodes.link(*tensor, carried, op);
                }
            }
        }
        nodes.finish(graph, analysis)
    }

    /// The class of a factor of a tensor, factors counted over all dims.
    pub fn of_factor(&self, tensor: TensorId, factor: usize) -> usize {
        self.tensors[tensor.index()][factor]
    }

    pub fn of_loop(&self, op: OpId, index: usize) -> usize {
        self.loops[op.index()][index]
    }

    /// The first loop of an operator over a class that may be split.
    pub fn open_loop(&self, analysis: &Analysis, op: OpId, class: usize) -> Option<usize> {
        let loops = &analysis.op(op).loops;
        (0..loops.len()).find(|&i| self.of_loop(op, i) == class && loops[i].kind != Kind::Whole)
    }
}

/// Factors of tensors and loops of operators.
struct Nodes {
    joined: Joined,
    tensors: Vec<usize>,
    loops: Vec<usize>,
    stuck: Vec<usize>,
}

impl Nodes {
    fn new(graph: &Graph, analysis: &Analysis) -> Nodes {
        let mut next = 0;
        let mut start = |count: usize| {
            next += count;
            next - count
        };
        let tensors = graph.tensor_ids().map(|t| start(analysis.flat(t).len())).collect();
        let loops = analysis.ops.iter().map(|op| start(op.loops.len())).collect();
        Nodes { joined: Joined::new(next), tensors, loops, stuck: vec![] }
    }

    fn link(&mut self, tensor: TensorId, carried: &[Option<usize>], op: OpId) {
        for (factor, loop_of) in carried.iter().enumerate() {
            let node = self.tensors[tensor.index()] + factor;
            match loop_of {
                Some(index) => self.joined.join(node, self.loops[op.index()] + index),
                None => self.stuck.push(node),
            }
        }
    }

    fn finish(mut self, graph: &Graph, analysis: &Analysis) -> Classes {
        let mut number = vec![None; self.joined.len()];
        let mut all: Vec<Class> = vec![];
        let mut class_of = |nodes: &mut Nodes, node: usize| {
            let root = nodes.joined.first(node);
            *number[root].get_or_insert_with(|| {
                all.push(Class::default());
                all.len() - 1
            })
        };
        let (tensor_starts, loop_starts) = (self.tensors.clone(), self.loops.clone());
        let mut all_of = |first: usize, count: usize| -> Vec<usize> {
            (first..first + count).map(|node| class_of(&mut self, node)).collect()
        };
        let tensors: Vec<Vec<usize>> =
            graph.tensor_ids().map(|t| all_of(tensor_starts[t.index()], analysis.flat(t).len())).collect();
        let loops: Vec<Vec<usize>> =
            graph.op_ids().map(|op| all_of(loop_starts[op.index()], analysis.op(op).loops.len())).collect();
        let stuck: Vec<usize> =
            self.stuck.clone().into_iter().map(|node| class_of(&mut self, node)).collect();
        for class in stuck {
            all[class].stuck = true;
        }
        for op in graph.op_ids() {
            for (index, l) in analysis.op(op).loops.iter().enumerate() {
                let class = &mut all[loops[op.index()][index]];
                class.loops.push((op, index));
                class.size = l.size;
            }
        }
        Classes { all, tensors, loops }
    }
}
