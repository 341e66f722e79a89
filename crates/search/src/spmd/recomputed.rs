//! What plans of one block may compute again.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use compiler::Costs;
use graph::{OpId, TensorId};
use plan::sets::{SetTerm, auto};
use plan::{PlanName, sets};

use crate::Question;

/// What is recomputed, from nothing to everything.
pub(crate) fn recompute() -> &'static [Option<SetTerm>] {
    static ALL: LazyLock<Vec<Option<SetTerm>>> =
        LazyLock::new(|| std::iter::once(None).chain(auto::recompute().into_iter().map(Some)).collect());
    &ALL
}

/// Whether constraints let these be computed again.
pub(super) fn may_recompute(question: &Question<'_>, spans: &[Vec<OpId>]) -> bool {
    spans.is_empty() || question.constraints.is_none_or(|it| it.no_recompute().is_none())
}

/// What backward computes again; none where the model has no layers for it, or a degree between two others saves nothing.
pub(crate) fn spans(question: &Question<'_>, recomputed: Option<SetTerm>) -> Option<Vec<Vec<OpId>>> {
    let spans = named(question, recomputed)?;
    let is_idle = lower_than(recomputed).is_some_and(|lower| !saves_more(question, &spans, lower));
    (!is_idle).then_some(spans)
}

/// Degrees between others that save nothing of this model.
pub(crate) fn idle(question: &Question<'_>) -> Vec<SetTerm> {
    let is_idle = |term: &SetTerm| {
        let lower = lower_than(Some(*term));
        let saves = |spans: &Vec<Vec<OpId>>, lower| saves_more(question, spans, lower);
        lower.is_some_and(|lower| named(question, Some(*term)).is_some_and(|spans| !saves(&spans, lower)))
    };
    auto::recompute().into_iter().filter(is_idle).collect()
}

/// The degree below one that is between two others.
fn lower_than(recomputed: Option<SetTerm>) -> Option<SetTerm> {
    let all = auto::recompute();
    all.windows(3).find(|degrees| Some(degrees[1]) == recomputed).map(|degrees| degrees[0])
}

fn named(question: &Question<'_>, recomputed: Option<SetTerm>) -> Option<Vec<Vec<OpId>>> {
    let name = PlanName::new(vec![SetTerm::bare(auto::alone())].into_iter().chain(recomputed).collect());
    let model = sets::Model::new(question.graph, question.analysis);
    sets::named_of(&name, &model, 1).ok().map(|plan| plan.recompute)
}

/// Whether what is recomputed besides that of a lower degree gives and keeps more bytes than it reads.
fn saves_more(question: &Question<'_>, spans: &[Vec<OpId>], lower: SetTerm) -> bool {
    let Question { graph, analysis, boundary, .. } = *question;
    let lower: BTreeSet<OpId> = named(question, Some(lower)).into_iter().flatten().flatten().collect();
    let needs_grad = boundary.needs_grad(graph);
    let bytes = |tensor: TensorId| graph.tensor(tensor).bytes().unsigned_abs();
    let (mut gives, mut reads) = (0, 0);
    for op in spans.iter().flatten().copied().filter(|op| !lower.contains(op)) {
        let it = graph.op(op);
        gives += Costs::new(graph, analysis, op, &needs_grad).whole().cost.kept.more;
        gives += it.outputs.iter().flatten().map(|tensor| bytes(*tensor)).sum::<u64>();
        reads += it.inputs().into_iter().map(bytes).sum::<u64>();
    }
    gives > reads
}

#[cfg(test)]
mod tests {
    use check::Masters;
    use graph::Graph;
    use program::Inputs;
    use rules::Analysis;

    use super::*;

    fn idle_of(text: &str) -> Vec<String> {
        let graph: Graph = text.parse().expect("it parses");
        let analysis = Analysis::new(&graph);
        let (boundary, masters) = (lower::loss(&graph, Inputs::Global), Masters::new());
        let cluster = cluster::named("dgx-h100:1x1").expect("known");
        let question = Question::of_tests(&graph, &analysis, &boundary, &masters, &cluster);
        idle(&question).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn attention_counts_where_it_keeps_its_scores() {
        let graph = include_str!("../../tests/graphs/full_gpt.graph");
        assert_eq!(idle_of(graph), ["recompute:attention"]);
        // With dropout no kernel computes all of it.
        assert!(idle_of(&graph.replace("None, 0.0, True)", "None, 0.1, True)")).is_empty());
    }
}
