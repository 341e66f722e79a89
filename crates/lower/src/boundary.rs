//! What goes into a program and out of it: which outputs leave, and which inputs get a gradient back.

use diag::{Error, Result};
use graph::{Graph, Source, TensorId};
use plan::Plan;
use program::{Boundary, Inputs, Output};
use rules::Analysis;

/// Scalar results leave whole; all results if there is no scalar.
pub fn loss(graph: &Graph, inputs: Inputs) -> Boundary {
    let scalar = |t: &TensorId| graph.tensor(*t).shape.is_empty() && graph.tensor(*t).dtype.is_float();
    let any_scalar = graph.outputs.iter().flatten().any(scalar);
    outputs(graph, inputs, |t| !any_scalar || scalar(&t))
}

/// Every result leaves whole.
pub fn all(graph: &Graph, inputs: Inputs) -> Boundary {
    outputs(graph, inputs, |_| true)
}

fn outputs(graph: &Graph, inputs: Inputs, leaves: impl Fn(TensorId) -> bool) -> Boundary {
    let output = |t: &Option<TensorId>| if t.is_some_and(&leaves) { Output::Whole } else { Output::None };
    Boundary { inputs, outputs: graph.outputs.iter().map(output).collect() }
}

/// For each tensor that needs a gradient, whether one arrives: not from operators of which no part reads
/// it, since its shape is all that matters.
pub fn arriving(graph: &Graph, analysis: &Analysis, boundary: &Boundary, needs_grad: &[bool]) -> Vec<bool> {
    let mut arrives = vec![false; graph.tensors.len()];
    let leaving = graph.outputs.iter().zip(&boundary.outputs).filter(|(_, asked)| **asked != Output::None);
    leaving.filter_map(|(tensor, _)| *tensor).for_each(|t| arrives[t.index()] = needs_grad[t.index()]);
    for (op, rule) in graph.ops.iter().zip(&analysis.rules).rev() {
        let read = |i: &usize| !rule.as_ref().is_some_and(|rule| rule.inputs[*i].absent);
        let inputs = op.inputs();
        for at in (0..inputs.len()).filter(read) {
            let tensor = inputs[at].index();
            arrives[tensor] |= needs_grad[tensor] && op.passes_on(|out| arrives[out.index()], at);
        }
    }
    arrives
}

/// For each tensor, whether it is an input whose gradient the caller gets.
pub(crate) fn given_back(graph: &Graph, arrives: &[bool]) -> Vec<bool> {
    let is_input = |tensor: &graph::Tensor| matches!(tensor.source, Source::Input { .. });
    graph.tensors.iter().zip(arrives).map(|(tensor, arrives)| *arrives && is_input(tensor)).collect()
}

/// For each operator, whether something that leaves the program or stays in a buffer depends on it.
pub fn wanted(graph: &Graph, boundary: &Boundary) -> Vec<bool> {
    let leaving = graph.outputs.iter().zip(&boundary.outputs).filter(|(_, asked)| **asked != Output::None);
    let kept = graph.updates.iter().map(|(_, value)| *value);
    let mut open: Vec<TensorId> = leaving.filter_map(|(tensor, _)| *tensor).chain(kept).collect();
    let mut wanted = vec![false; graph.ops.len()];
    while let Some(tensor) = open.pop() {
        let Some((maker, _)) = graph.producer(tensor) else { continue };
        if !std::mem::replace(&mut wanted[maker.index()], true) {
            open.extend(graph.op(maker).inputs());
        }
    }
    wanted
}

/// Gradients of inputs go to the caller in one piece, which blocks do not make together.
pub(crate) fn validate_blocks(graph: &Graph, plan: &Plan, given_back: &[bool]) -> Result<()> {
    let given = graph.tensor_ids().find(|tensor| given_back[tensor.index()]);
    let Some(tensor) = given.filter(|_| plan.block_count() > 1) else { return Ok(()) };
    let what = format!(
        "the input `{}` requires a gradient, and the plan cuts the model into blocks",
        graph.tensor(tensor).name
    );
    Err(Error::new("SW0421", what)
        .why("a step of several blocks gives no gradients of inputs")
        .fix("detach the input, or use a plan without stages"))
}

pub(crate) fn validate(graph: &Graph, boundary: &Boundary) -> Result<()> {
    if boundary.outputs.len() != graph.outputs.len() {
        let (model, asked) = (graph.outputs.len(), boundary.outputs.len());
        return Err(Error::new("SW0418", format!("{asked} outputs are asked for, the model has {model}"))
            .fix("say for each output `none`, `whole` or `local`"));
    }
    let needs_grad = boundary.needs_grad(graph);
    for (output, asked) in graph.outputs.iter().zip(&boundary.outputs) {
        let Some(tensor) = output.filter(|_| *asked != Output::None) else { continue };
        if let (Source::Param { names, .. }, true) =
            (&graph.tensor(tensor).source, needs_grad[tensor.index()])
        {
            return Err(Error::new(
                "SW0417",
                format!("the model returns the parameter `{}` itself", names[0]),
            )
            .why(
                "the gradient that the caller gives for it would bypass the program on its way to the \
                 parameter",
            )
            .fix("return something computed from it, such as `weight * 1`, or do not ask for this output"));
        }
    }
    Ok(())
}
