//! Rewriting an operator into simpler ones, for dims that have their own algorithm.
//!
//! A family's `expand` function appends operators through a [`Builder`] and says, for each, which of
//! the original operator's dims its operands carry. That is enough to carry the plan over.

use graph::{Arg, Dtype, Graph, Op, OpId, Source, Tensor, TensorId};

/// An operator that came from a rewriting, and what its dims mean.
#[derive(Clone, Debug, PartialEq)]
pub struct Piece {
    pub op: OpId,
    /// Terms as in a rule, such as `b v, b -> b v`, in the original operator's names.
    pub labels: String,
}

/// Appends the operators of one rewriting to a graph.
pub struct Builder<'g> {
    graph: &'g mut Graph,
    /// The operator being rewritten: source line, module and name stem come from it.
    origin: Op,
    stem: String,
    /// The dims, by name, that the plan splits.
    split: Vec<String>,
    pub pieces: Vec<Piece>,
}

impl<'g> Builder<'g> {
    /// `graph` is the new graph: all tensors of the old one, and the operators before `origin`.
    pub fn new(graph: &'g mut Graph, origin: Op, split: Vec<String>) -> Self {
        let named = origin.outputs.iter().flatten().next();
        let stem = named.map_or_else(|| "x".into(), |t| graph.tensor(*t).name.clone());
        Self { graph, origin, stem, split, pieces: vec![] }
    }

    /// Whether the plan splits a dim of the operator.
    pub fn splits(&self, dim: &str) -> bool {
        self.split.iter().any(|name| name == dim)
    }

    pub fn shape(&self, tensor: TensorId) -> &[i64] {
        &self.graph.tensor(tensor).shape
    }

    pub fn dtype(&self, tensor: TensorId) -> Dtype {
        self.graph.tensor(tensor).dtype
    }

    /// Appends an operator with one new output.
    pub fn op(
        &mut self,
        target: &str,
        args: Vec<Arg>,
        labels: &str,
        dtype: Dtype,
        shape: &[i64],
    ) -> TensorId {
        self.push(target, args, vec![], labels, dtype, shape, false)
    }

    /// The same, with arguments by keyword.
    pub fn op_with(
        &mut self,
        target: &str,
        (args, kwargs): (Vec<Arg>, Vec<(String, Arg)>),
        labels: &str,
        dtype: Dtype,
        shape: &[i64],
    ) -> TensorId {
        self.push(target, args, kwargs, labels, dtype, shape, false)
    }

    /// The same without keywords, in a region where gradients are off.
    pub fn op_no_grad(
        &mut self,
        target: &str,
        args: Vec<Arg>,
        labels: &str,
        dtype: Dtype,
        shape: &[i64],
    ) -> TensorId {
        self.push(target, args, vec![], labels, dtype, shape, true)
    }

    /// Appends the operator that writes output `index` of the original one.
    pub fn result(&mut self, index: usize, target: &str, args: Vec<Arg>, labels: &str) {
        self.finish(index, target, args, labels, self.origin.no_grad);
    }

    /// The same in a region where gradients are off.
    pub fn result_no_grad(&mut self, index: usize, target: &str, args: Vec<Arg>, labels: &str) {
        self.finish(index, target, args, labels, true);
    }

    fn finish(&mut self, index: usize, target: &str, args: Vec<Arg>, labels: &str, no_grad: bool) {
        let Some(tensor) = self.origin.outputs[index] else { return };
        let op = self.bare(target, args, vec![], no_grad);
        self.append(op, vec![tensor], labels);
    }

    #[expect(clippy::too_many_arguments, reason = "one private constructor behind three names")]
    fn push(
        &mut self,
        target: &str,
        args: Vec<Arg>,
        kwargs: Vec<(String, Arg)>,
        labels: &str,
        dtype: Dtype,
        shape: &[i64],
        no_grad: bool,
    ) -> TensorId {
        let id = TensorId::new(self.graph.tensors.len());
        let name = format!("{}.{}", self.stem, self.pieces.len());
        let source = Source::Op { op: OpId::new(self.graph.ops.len()), output: 0 };
        self.graph.tensors.push(Tensor { name, dtype, shape: shape.to_vec(), source });
        let op = self.bare(target, args, kwargs, no_grad || self.origin.no_grad);
        self.append(op, vec![id], labels);
        id
    }

    fn bare(&self, target: &str, args: Vec<Arg>, kwargs: Vec<(String, Arg)>, no_grad: bool) -> Op {
        Op {
            target: target.into(),
            args,
            kwargs,
            outputs: vec![],
            module: self.origin.module.clone(),
            line: self.origin.line.clone(),
            no_grad,
            order: vec![],
        }
    }

    fn append(&mut self, mut op: Op, outputs: Vec<TensorId>, labels: &str) {
        let id = OpId::new(self.graph.ops.len());
        for (output, tensor) in outputs.iter().enumerate() {
            self.graph.tensors[tensor.index()].source = Source::Op { op: id, output };
        }
        op.outputs = outputs.into_iter().map(Some).collect();
        self.graph.ops.push(op);
        self.pieces.push(Piece { op: id, labels: labels.into() });
    }
}
