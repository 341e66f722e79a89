use std::collections::HashSet;

use graph::{Arg, Dtype, Graph, Op, OpId, Source, Tensor, TensorId};

/// A family's rewriting of its operators: it appends the simpler ones.
pub type Rewrite = fn(&Op, &mut Builder<'_>);

/// Appends the pieces of one operator to a graph, and notes what their dims mean.
///
/// Operands are tensors of the new graph. Labels are terms as in a rule, such as `b v, b -> b v`, in the names of
/// the operator's own rule: enough to carry a plan over.
pub struct Builder<'g> {
    graph: &'g mut Graph,
    /// Names of the model's graph, which values between the pieces may not have.
    taken: &'g HashSet<&'g str>,
    /// The operator: source line and module come from it.
    origin: Op,
    /// Its results, which the pieces have to make, and their numbers once they are made.
    results: Vec<Option<Tensor>>,
    made: Vec<Option<TensorId>>,
    stem: String,
    /// The number in the next value's name, or a later one.
    next: usize,
    /// The dims that the rewriting is for.
    dims: &'g [String],
    labels: Vec<String>,
}

/// What an operator is called with: arguments by position alone, or by keyword, too.
pub struct Arguments {
    args: Vec<Arg>,
    kwargs: Vec<(String, Arg)>,
}

impl From<Vec<Arg>> for Arguments {
    fn from(args: Vec<Arg>) -> Self {
        Self { args, kwargs: vec![] }
    }
}

impl From<(Vec<Arg>, Vec<(String, Arg)>)> for Arguments {
    fn from((args, kwargs): (Vec<Arg>, Vec<(String, Arg)>)) -> Self {
        Self { args, kwargs }
    }
}

impl<'g> Builder<'g> {
    pub(super) fn new(
        graph: &'g mut Graph,
        taken: &'g HashSet<&'g str>,
        origin: Op,
        results: Vec<Option<Tensor>>,
        dims: &'g [String],
    ) -> Self {
        let stem = results.iter().flatten().next().map_or_else(|| "x".into(), |t| t.name.clone());
        let made = vec![None; results.len()];
        Self { graph, taken, origin, results, made, stem, next: 0, dims, labels: vec![] }
    }

    /// The labels of all pieces, and the numbers of the results.
    pub(super) fn finish(self) -> (Vec<String>, Vec<Option<TensorId>>) {
        (self.labels, self.made)
    }

    /// Whether the rewriting is for a split along this dim.
    pub fn splits(&self, dim: &str) -> bool {
        self.dims.iter().any(|name| name == dim)
    }

    pub fn shape(&self, tensor: TensorId) -> &[i64] {
        &self.graph.tensor(tensor).shape
    }

    pub fn dtype(&self, tensor: TensorId) -> Dtype {
        self.graph.tensor(tensor).dtype
    }

    /// The dtype of a result of the operator; `None` for one that nothing reads.
    pub fn result_dtype(&self, index: usize) -> Option<Dtype> {
        self.results.get(index)?.as_ref().map(|result| result.dtype)
    }

    /// The shape of a result of the operator; `None` for one that nothing reads.
    pub fn result_shape(&self, index: usize) -> Option<&[i64]> {
        self.results.get(index)?.as_ref().map(|result| &result.shape[..])
    }

    /// Appends an operator with one new output.
    pub fn op(
        &mut self,
        target: &str,
        arguments: impl Into<Arguments>,
        labels: &str,
        dtype: Dtype,
        shape: &[i64],
    ) -> TensorId {
        let value = self.value(dtype, shape);
        self.append(target, arguments.into(), self.origin.no_grad, labels, value)
    }

    /// The same in a region where gradients are off.
    pub fn op_no_grad(
        &mut self,
        target: &str,
        arguments: impl Into<Arguments>,
        labels: &str,
        dtype: Dtype,
        shape: &[i64],
    ) -> TensorId {
        let value = self.value(dtype, shape);
        self.append(target, arguments.into(), true, labels, value)
    }

    /// Appends the operator that writes result `index` of the original one, unless nothing reads it.
    pub fn result(&mut self, index: usize, target: &str, args: Vec<Arg>, labels: &str) {
        self.last(index, target, args, labels, self.origin.no_grad);
    }

    /// The same in a region where gradients are off.
    pub fn result_no_grad(&mut self, index: usize, target: &str, args: Vec<Arg>, labels: &str) {
        self.last(index, target, args, labels, true);
    }

    fn last(&mut self, index: usize, target: &str, args: Vec<Arg>, labels: &str, no_grad: bool) {
        if let Some(result) = self.results[index].take() {
            let result = Tensor { source: self.source(), ..result };
            let made = self.append(target, args.into(), no_grad, labels, result);
            self.made[index] = Some(made);
        }
    }

    /// A value between the pieces, under a name that is free.
    fn value(&mut self, dtype: Dtype, shape: &[i64]) -> Tensor {
        let mut number = self.next.max(self.labels.len());
        let mut name = format!("{}.{number}", self.stem);
        while self.taken.contains(&name[..]) {
            number += 1;
            name = format!("{}.{number}", self.stem);
        }
        self.next = number + 1;
        Tensor { name, dtype, shape: shape.to_vec(), source: self.source() }
    }

    /// What the next operator makes.
    fn source(&self) -> Source {
        Source::Op { op: OpId::new(self.graph.ops.len()), output: 0 }
    }

    fn append(
        &mut self,
        target: &str,
        Arguments { args, kwargs }: Arguments,
        no_grad: bool,
        labels: &str,
        made: Tensor,
    ) -> TensorId {
        let id = TensorId::new(self.graph.tensors.len());
        self.graph.tensors.push(made);
        self.graph.ops.push(Op {
            target: target.into(),
            args,
            kwargs,
            outputs: vec![Some(id)],
            module: self.origin.module.clone(),
            line: self.origin.line.clone(),
            no_grad,
            spans: self.origin.spans.clone(),
            order: vec![],
        });
        self.labels.push(labels.into());
        id
    }
}
