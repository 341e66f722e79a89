//! What bundles and edges depend on, as text: those of one text cost the same.

use check::held_as;
use graph::{Arg, Graph, OpId, Source, TensorId};
use rules::Analysis;

use super::Maker;

/// All that an operator's parts and their costs depend on, but for what its operands are.
pub(super) fn signature(graph: &Graph, analysis: &Analysis, needs_grad: &[bool], op: OpId) -> String {
    let it = graph.op(op);
    let facts = |tensor: &TensorId| {
        let held = graph.tensor(*tensor);
        (analysis.flat(*tensor), &held.shape, held.dtype, needs_grad[tensor.index()])
    };
    let inputs: Vec<_> = it.inputs().iter().map(facts).collect();
    let outputs: Vec<_> = it.outputs.iter().map(|tensor| tensor.as_ref().map(facts)).collect();
    let (args, dims) = (plain(&it.args), analysis.op(op));
    let kwargs: Vec<_> =
        it.kwargs.iter().map(|(name, arg)| (name, plain(std::slice::from_ref(arg)))).collect();
    format!("{} {args} {kwargs:?} {dims:?} {inputs:?} {outputs:?} {}", it.target, it.no_grad)
}

/// Where an operand comes from.
#[derive(Clone, Copy)]
#[repr(usize)]
enum OperandSource {
    Bundle,
    Span,
    OtherSpan,
    Input,
    Param,
    Constant,
}

impl Maker<'_> {
    /// All that a bundle's costs depend on: its operators, how they are connected, and along which of its dims they go. Lists
    /// begin with their lengths, where others do not say these.
    pub(in super::super) fn bundle_signature(&self, number: usize, dims: &[usize]) -> Vec<usize> {
        let ops = &self.bundles.all[number];
        let params = self.params(ops);
        let first_span = ops.iter().find_map(|op| self.span_of[op.index()]);
        let mut all = vec![dims.len()];
        for op in ops {
            // Texts of operators say how many operands, results and loops they have.
            all.push(self.operators.signature[op.index()]);
            for (at, tensor) in self.graph().op(*op).inputs().into_iter().enumerate() {
                self.push_source(&mut all, tensor, (number, first_span, &params));
                all.push(usize::from(self.repeated.inputs[op.index()][at]));
            }
            for tensor in self.graph().op(*op).outputs.iter().flatten() {
                let (leaves, passes) = (self.leaves(*tensor), self.operators.passes[tensor.index()]);
                all.extend([usize::from(leaves), usize::from(passes), self.others(*tensor).len()]);
            }
            for index in 0..self.question.analysis.op(*op).loops.len() {
                let class = self.operators.classes.of_loop(*op, index);
                all.push(dims.iter().position(|dim| *dim == class).map_or(0, |at| at + 1));
            }
            let keeps = &self.keeps[op.index()];
            all.extend([keeps.inputs.len(), keeps.outputs.len(), usize::from(keeps.more)]);
            for (at, (stored, size)) in &keeps.inputs {
                all.extend([*at, stored.unsigned_abs() as usize, size.unsigned_abs() as usize]);
            }
            all.extend(&keeps.outputs);
            let span = self.span_of[op.index()].map_or(0, |span| 1 + usize::from(Some(span) == first_span));
            let repeated = self.repeated.ops[op.index()];
            all.extend([span, usize::from(repeated), usize::from(self.operators.wanted[op.index()])]);
        }
        all
    }

    /// Where an operand of a bundle comes from; a parameter is on the account of its first reader.
    fn push_source(
        &self,
        all: &mut Vec<usize>,
        tensor: TensorId,
        (number, first_span, params): (usize, Option<usize>, &[TensorId]),
    ) {
        match &self.graph().tensor(tensor).source {
            Source::Op { op, output } if self.bundles.of[op.index()] == number => {
                all.extend([OperandSource::Bundle as usize, self.numbers[op.index()], *output]);
            }
            Source::Op { op, .. } if self.span_of[op.index()] == first_span => {
                all.push(OperandSource::Span as usize);
            }
            Source::Op { .. } => all.push(OperandSource::OtherSpan as usize),
            Source::Input { .. } => all.push(OperandSource::Input as usize),
            Source::Param { frozen, .. } => {
                let held = held_as(self.graph().tensor(tensor), self.question.masters);
                let position = params.iter().position(|param| *param == tensor).map_or(0, |at| at + 1);
                let facts = [
                    *frozen,
                    self.graph().new_value(tensor).is_some(),
                    self.is_shared(tensor),
                    self.operators.readers[tensor.index()].len() > 1,
                ];
                all.extend([OperandSource::Param as usize, held as usize, position]);
                all.extend(facts.map(usize::from));
            }
            _ => all.push(OperandSource::Constant as usize),
        }
    }

    /// The same of what is between two bundles, of each of which the first is known that costs the same.
    pub(super) fn edge_signature(
        &self,
        (from, to): (usize, usize),
        tensors: &[(TensorId, usize)],
        same: &[usize],
    ) -> Vec<usize> {
        let mut all = vec![same[from], same[to]];
        for (tensor, shared) in tensors {
            let (op, output) = self.graph().producer(*tensor).expect("an operator makes it");
            let first = all.len();
            all.extend([0, self.numbers[op.index()], output, *shared]);
            for (reader, input) in &self.operators.readers[tensor.index()] {
                if self.bundles.of[reader.index()] == to {
                    let span = self.span_of[reader.index()];
                    let is_same = span.is_some() && span == self.span_of[op.index()];
                    all.extend([self.numbers[reader.index()], *input, usize::from(is_same)]);
                }
            }
            all[first] = all.len() - first;
        }
        all
    }
}

/// Arguments without the tensors among them.
fn plain(args: &[Arg]) -> String {
    let one = |arg: &Arg| match arg {
        Arg::Tensor(_) => "t".to_owned(),
        Arg::List(items) => plain(items),
        other => format!("{other:?}"),
    };
    format!("[{}]", args.iter().map(one).collect::<Vec<_>>().join(","))
}
