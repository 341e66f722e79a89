//! Where the sequence of a model is.

use diag::{Error, Result};
use graph::{Arg, Graph, OpId, Source, TensorId};

use super::Slices;
use super::forms::{FIX, title};
use crate::classes::Classes;
use crate::factors::Analysis;
use crate::families;

/// As many balanced slices of a model's sequence.
pub fn even(graph: &Graph, analysis: &Analysis, count: u32) -> Result<Slices> {
    let (input, dim, tokens) = sequence(graph, analysis)?;
    if i64::from(count) > tokens {
        return Err(Error::new("SW0331", format!("{tokens} tokens cannot be cut into {count} slices"))
            .why("each slice has at least one token")
            .fix(format!("write at most `tokens:{tokens}`, or give longer sequences")));
    }
    Ok(Slices::even(input, dim, tokens, count))
}

/// The input that has the sequence, its dim that is it, and how many tokens that has: what causal attention is along. Of a
/// model without attention it is the second dim of what it is given.
fn sequence(graph: &Graph, analysis: &Analysis) -> Result<(usize, usize, i64)> {
    let classes = Classes::new(graph, analysis);
    let is_attention = |op: &OpId| families::nature_of(&graph.op(*op).target).attends;
    let causal = |op: &OpId| graph.op(*op).arg(5, "is_causal") == Some(&Arg::Bool(true));
    let attention: Vec<OpId> = graph.op_ids().filter(is_attention).collect();
    let along = |op: OpId| Some(classes.of_loop(op, analysis.op(op).find("l")?));
    let is_second = |(_, dim, _): &(TensorId, usize, usize)| *dim == 1;
    let sequence_dim = match attention.iter().copied().find(causal) {
        Some(op) => inputs(graph, analysis)
            .into_iter()
            .find(|(id, _, factor)| along(op) == Some(classes.of_factor(*id, *factor))),
        None if attention.is_empty() => inputs(graph, analysis).into_iter().find(is_second),
        None => return Err(looks_ahead(graph, attention[0])),
    };
    let Some((id, dim, _)) = sequence_dim else {
        let what = format!("no input of {} has a sequence", graph.model);
        return Err(Error::new("SW0331", what)
            .why("a sequence is a dim of an input along which attention is causal")
            .fix(FIX));
    };
    let Source::Input { position, .. } = graph.tensor(id).source else { unreachable!("it is an input") };
    Ok((position, dim, graph.tensor(id).shape[dim]))
}

/// Dims of the inputs that are one factor: the tensor, the dim, and the factor counted over all dims.
fn inputs(graph: &Graph, analysis: &Analysis) -> Vec<(TensorId, usize, usize)> {
    let mut dims = vec![];
    for id in graph.tensor_ids().filter(|id| matches!(graph.tensor(*id).source, Source::Input { .. })) {
        let mut before = 0;
        for (dim, factors) in analysis.factors[id.index()].iter().enumerate() {
            dims.extend((factors.len() == 1).then_some((id, dim, before)));
            before += factors.len();
        }
    }
    dims
}

fn looks_ahead(graph: &Graph, op: OpId) -> Error {
    Error::new("SW0331", format!("{} looks ahead", title(graph, op)))
        .at(graph.op(op).line.clone())
        .why(
            "its tokens attend to later ones, and no attention of the model is causal: `is_causal` is \
              not set",
        )
        .fix(FIX)
}
