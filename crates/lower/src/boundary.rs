//! What goes into a program and out of it: which outputs leave, and which inputs get a gradient back.

use diag::{Error, Result};
use graph::{Graph, Source, TensorId};
use program::{Boundary, Inputs, Output};

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

/// For each tensor, whether it is an input whose gradient the caller gets.
pub(crate) fn given_back(graph: &Graph, boundary: &Boundary) -> Vec<bool> {
    let mut wanted = graph.needs_grad_of(|number| boundary.outputs[number] != Output::None);
    for (tensor, wanted) in graph.tensors.iter().zip(&mut wanted) {
        *wanted &= matches!(tensor.source, Source::Input { .. });
    }
    wanted
}

pub(crate) fn validate(graph: &Graph, boundary: &Boundary, needs_grad: &[bool]) -> Result<()> {
    if boundary.outputs.len() != graph.outputs.len() {
        let (model, asked) = (graph.outputs.len(), boundary.outputs.len());
        return Err(Error::new("SW0418", format!("{asked} outputs are asked for, the model has {model}"))
            .fix("say for each output whether none of it, the whole or this rank's part leaves"));
    }
    for (output, asked) in graph.outputs.iter().zip(&boundary.outputs) {
        let Some(tensor) = output.filter(|_| *asked != Output::None) else { continue };
        if let (Source::Param { names, .. }, true) =
            (&graph.tensor(tensor).source, needs_grad[tensor.index()])
        {
            return Err(Error::new(
                "SW0417",
                format!("the model returns its parameter `{}` itself", names[0]),
            )
            .why("the gradient that the caller gives for it would reach the parameter past the program")
            .fix("return something computed from it, such as `weight * 1`, or do not ask for this output"));
        }
    }
    Ok(())
}
