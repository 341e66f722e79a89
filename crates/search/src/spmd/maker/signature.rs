//! What bundles and edges depend on, as text: those of one text cost the same.

use std::rc::Rc;

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

impl Maker<'_> {
    /// All that a bundle's costs depend on: its operators, how they are connected, and along which of its dims they go.
    pub(in super::super) fn bundle_signature(&self, number: usize, dims: &[usize]) -> Rc<str> {
        let ops = &self.bundles.all[number];
        let params = self.params(ops);
        let mut text = format!("{}", dims.len());
        let first_span = ops.iter().find_map(|op| self.span_of[op.index()]);
        for op in ops {
            // A parameter is on the account of its first reader.
            let position = |tensor: &TensorId| params.iter().position(|param| param == tensor);
            let source = |tensor: &TensorId| match &self.graph().tensor(*tensor).source {
                Source::Op { op, output } if self.bundles.of[op.index()] == number => {
                    format!("{}.{output}", self.numbers[op.index()])
                }
                Source::Op { op, .. } => format!("x{}", u8::from(self.span_of[op.index()] == first_span)),
                Source::Input { .. } => "i".into(),
                Source::Param { frozen, .. } => {
                    let held = held_as(self.graph().tensor(*tensor), self.question.masters);
                    let readers = self.operators.readers[tensor.index()].len();
                    let written = if self.graph().new_value(*tensor).is_some() { "w" } else { "" };
                    let shared = if self.is_shared(*tensor) { "s" } else { "" };
                    format!(
                        "p{written}{shared}{}{held:?}{:?}{}",
                        u8::from(*frozen),
                        position(tensor),
                        readers > 1
                    )
                }
                _ => "c".into(),
            };
            let inputs: Vec<String> = self.graph().op(*op).inputs().iter().map(source).collect();
            let along = |index| {
                let class = self.operators.classes.of_loop(*op, index);
                dims.iter().position(|dim| *dim == class)
            };
            let along: Vec<_> = (0..self.question.analysis.op(*op).loops.len()).map(along).collect();
            let span = self.span_of[op.index()].map(|span| Some(span) == first_span);
            let goes = |tensor: &TensorId| {
                (self.leaves(*tensor), self.operators.passes[tensor.index()], self.others(*tensor).len())
            };
            let outputs: Vec<_> =
                self.graph().op(*op).outputs.iter().map(|tensor| tensor.as_ref().map(goes)).collect();
            let recomputed = (self.repeated.ops[op.index()], &self.repeated.inputs[op.index()]);
            text += &format!(
                "\n{} {inputs:?} {outputs:?} {along:?} {:?} {span:?} {recomputed:?} {}",
                self.operators.signature[op.index()],
                self.keeps[op.index()],
                self.operators.wanted[op.index()],
            );
        }
        text.into()
    }

    pub(super) fn edge_signature(
        &self,
        (from, to): (usize, usize),
        tensors: &[(TensorId, usize)],
        signatures: &[Rc<str>],
    ) -> String {
        let mut text = format!("{}\n{}", signatures[from], signatures[to]);
        for (tensor, shared) in tensors {
            let (op, output) = self.graph().producer(*tensor).expect("an operator makes it");
            let readers = self.operators.readers[tensor.index()]
                .iter()
                .filter(|(op, _)| self.bundles.of[op.index()] == to);
            let readers: Vec<_> = readers
                .map(|(reader, input)| {
                    let span = self.span_of[reader.index()];
                    (self.numbers[reader.index()], input, span.is_some() && span == self.span_of[op.index()])
                })
                .collect();
            text += &format!("\n{} {output} {readers:?} {shared}", self.numbers[op.index()]);
        }
        text
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
