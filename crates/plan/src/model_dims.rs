//! The model's own dims, by a tensor that has them: `idx.0` is the batch wherever it goes, `h.0.attn.qkv.weight.0.1`
//! the second factor of that weight's first dim.

use graph::{Graph, Source, TensorId};
use rules::Analysis;

use crate::classes::Classes;

/// The classes that a name means: of one factor, or of all factors of a dim, outermost first. `None` if it is
/// not the name of a tensor with such a dim.
pub(crate) fn classes(
    name: &str,
    graph: &Graph,
    analysis: &Analysis,
    classes: &Classes,
) -> Option<Vec<usize>> {
    let (tensor, rest) = tensor(name, graph)?;
    let factors = &analysis.factors[tensor.index()];
    let mut numbers = rest.split('.').map(str::parse::<usize>);
    let dim = numbers.next()?.ok()?;
    let before: usize = factors.get(..dim)?.iter().map(Vec::len).sum();
    let all = before..before + factors.get(dim)?.len();
    let wanted = match numbers.next() {
        None => all,
        Some(factor) => {
            let at = before + factor.ok()?;
            (all.contains(&at) && numbers.next().is_none()).then_some(at..at + 1)?
        }
    };
    Some(wanted.map(|factor| classes.of_factor(tensor, factor)).collect())
}

/// The tensor that a name begins with, and what follows after a dot.
fn tensor<'n>(name: &'n str, graph: &Graph) -> Option<(TensorId, &'n str)> {
    let called = |id: TensorId, words: &str| {
        let tensor = graph.tensor(id);
        tensor.name == words
            || match &tensor.source {
                Source::Param { names, .. } => names.iter().any(|name| name == words),
                Source::Buffer { name, .. } => name == words,
                _ => false,
            }
    };
    let dots = name.match_indices('.').map(|(at, _)| at).rev();
    dots.filter_map(|at| {
        let id = graph.tensor_ids().find(|id| called(*id, &name[..at]))?;
        Some((id, &name[at + 1..]))
    })
    .next()
}
