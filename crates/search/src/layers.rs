//! What becomes of what each layer of a plan keeps for backward: it stays, goes to the host, or is recomputed in some degree.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use compiler::Memory;
use graph::OpId;
use plan::Plan;
use plan::sets::SetTerm;

use crate::Question;
use crate::spmd::{recompute, spans};
use crate::title::Title;

/// Of one layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Choice {
    /// How much of it is recomputed. The first degree is nothing.
    pub(crate) degree: usize,
    pub(crate) is_offloaded: bool,
}

/// By block, and of each by layer in the model's order.
pub(crate) type Choices = Vec<Vec<Choice>>;

/// In which degrees the layers of a model may be recomputed.
pub(crate) struct Degrees {
    terms: Vec<Option<SetTerm>>,
    /// Of each layer by degree what is recomputed: nothing first, all of it last.
    layers: Vec<Vec<Vec<OpId>>>,
    /// Of each operator whether it has a backward, which is what something is kept for.
    has_backward: Rc<[bool]>,
}

/// A layer, or what of one is in a block: by degree what is recomputed.
struct LayerPiece {
    spans: Vec<Vec<OpId>>,
    /// Of the layer that it is a piece of; nothing of one that is in one block.
    whole: Vec<Vec<OpId>>,
}

impl Degrees {
    pub(crate) fn new(question: &Question<'_>) -> Self {
        let known = |term: &Option<SetTerm>| spans(question, *term).map(|spans| (*term, spans));
        let (mut terms, mut by_degree) = (vec![None], vec![]);
        for (term, spans) in recompute().iter().skip(1).filter_map(known) {
            terms.push(term);
            by_degree.push(spans);
        }
        let whole = by_degree.last().map_or(&[][..], Vec::as_slice);
        let mut layer_of = vec![None; question.graph.ops.len()];
        for (layer, span) in whole.iter().enumerate() {
            span.iter().for_each(|op| layer_of[op.index()] = Some(layer));
        }
        let mut layers = vec![vec![vec![]; terms.len()]; whole.len()];
        for (degree, spans) in (1..).zip(&by_degree) {
            for span in spans {
                if let Some(layer) = layer_of[span[0].index()] {
                    layers[layer][degree].clone_from(span);
                }
            }
        }
        let (graph, needs_grad) = (question.graph, question.boundary.needs_grad(question.graph));
        let has_backward =
            graph.ops.iter().map(|op| op.outputs.iter().flatten().any(|made| needs_grad[made.index()]));
        Self { terms, layers, has_backward: has_backward.collect() }
    }

    /// Those of a plan that recomputes something else: each span is a layer.
    fn of_spans(&self, plan: &Plan) -> Self {
        let term = recompute().last().copied().flatten();
        let layers = plan.recompute.iter().map(|span| vec![vec![], span.clone()]).collect();
        Self { terms: vec![None, term], layers, has_backward: Rc::clone(&self.has_backward) }
    }

    /// By block, of each layer what is there. Where it is in several, what has no backward is no piece.
    fn pieces(&self, plan: &Plan) -> BTreeMap<u32, Vec<LayerPiece>> {
        let mut blocks: BTreeMap<u32, Vec<LayerPiece>> = BTreeMap::new();
        for layer in &self.layers {
            let all = layer.last().map_or(&[][..], Vec::as_slice);
            let in_blocks: BTreeSet<u32> = all.iter().map(|op| plan.block(*op)).collect();
            if let [block] = in_blocks.iter().copied().collect::<Vec<_>>()[..] {
                blocks.entry(block).or_default().push(LayerPiece { spans: layer.clone(), whole: vec![] });
                continue;
            }
            for block in in_blocks {
                let is_here = |op: &&OpId| plan.block(**op) == block;
                if all.iter().filter(is_here).any(|op| self.has_backward[op.index()]) {
                    let here = |span: &Vec<OpId>| span.iter().filter(is_here).copied().collect();
                    let spans = layer.iter().map(here).collect();
                    blocks.entry(block).or_default().push(LayerPiece { spans, whole: layer.clone() });
                }
            }
        }
        blocks
    }
}

impl LayerPiece {
    fn all(&self) -> impl Iterator<Item = &Vec<OpId>> {
        self.spans.iter().chain(&self.whole)
    }

    /// Whether what is recomputed in a degree is among spans.
    fn is_among(&self, spans: &BTreeSet<&Vec<OpId>>, degree: usize) -> bool {
        let whole = self.whole.get(degree);
        spans.contains(&self.spans[degree]) || whole.is_some_and(|whole| spans.contains(whole))
    }

    fn most(&self) -> usize {
        self.spans.len() - 1
    }
}

/// The layers of a plan.
pub(crate) struct Layers<'p> {
    plan: &'p Plan,
    terms: Vec<Option<SetTerm>>,
    blocks: Vec<Vec<LayerPiece>>,
    /// What runs each block.
    devices: Vec<Vec<u32>>,
    /// What the plan does with them.
    pub(crate) choices: Choices,
}

impl<'p> Layers<'p> {
    pub(crate) fn new(degrees: &Degrees, plan: &'p Plan) -> Self {
        let (mut terms, mut blocks) = (degrees.terms.clone(), degrees.pieces(plan));
        let pieces = blocks.values().flatten().flat_map(LayerPiece::all);
        let known: BTreeSet<&Vec<OpId>> = degrees.layers.iter().flatten().chain(pieces).collect();
        if !plan.recompute.iter().chain(&plan.offload).all(|span| known.contains(span)) {
            let by_spans = degrees.of_spans(plan);
            (blocks, terms) = (by_spans.pieces(plan), by_spans.terms);
        }
        let devices = blocks.keys().map(|block| devices(plan, *block)).collect();
        let blocks: Vec<_> = blocks.into_values().collect();
        let recomputed: BTreeSet<&Vec<OpId>> = plan.recompute.iter().collect();
        let offloaded: BTreeSet<&Vec<OpId>> = plan.offload.iter().collect();
        let choice = |piece: &LayerPiece| Choice {
            degree: (1..=piece.most()).rev().find(|at| piece.is_among(&recomputed, *at)).unwrap_or(0),
            is_offloaded: piece.is_among(&offloaded, piece.most()),
        };
        let choices = blocks.iter().map(|pieces| pieces.iter().map(choice).collect()).collect();
        Self { plan, terms, blocks, devices, choices }
    }

    /// The most that any layer is recomputed.
    pub(crate) fn most(&self) -> usize {
        self.choices.iter().flatten().map(|choice| choice.degree).max().unwrap_or(0)
    }

    /// The same choices, changed.
    pub(crate) fn map(&self, change: impl Fn(Choice) -> Choice) -> Choices {
        self.choices.iter().map(|block| block.iter().map(|choice| change(*choice)).collect()).collect()
    }

    /// The share of the layers of each block for which memory asks that something is done, where that saves as much of each
    /// as of any other: with it for all, and for none.
    pub(crate) fn shares(&self, question: &Question<'_>, with: &[Memory], without: &[Memory]) -> Vec<f64> {
        let share = |device: &u32| {
            let [with, without] = [with, without].map(|memory| memory[*device as usize].total() as f64);
            let there = question.there(*device) as f64;
            if without > with { ((without - there) / (without - with)).clamp(0.0, 1.0) } else { 1.0 }
        };
        self.devices.iter().map(|devices| devices.iter().map(share).fold(0.0, f64::max)).collect()
    }

    /// The plan with these choices.
    pub(crate) fn with(&self, choices: &Choices) -> Plan {
        let mut plan = Plan { name: self.name(choices), ..self.plan.clone() };
        let pieces = || self.blocks.iter().flatten();
        let known: BTreeSet<&Vec<OpId>> = pieces().flat_map(LayerPiece::all).collect();
        plan.recompute.retain(|span| !known.contains(span));
        plan.offload.retain(|span| !known.contains(span));
        for (LayerPiece { spans, .. }, choice) in pieces().zip(choices.iter().flatten()) {
            plan.recompute.extend(Some(&spans[choice.degree]).filter(|span| !span.is_empty()).cloned());
            plan.offload.extend(spans.last().filter(|_| choice.is_offloaded).cloned());
        }
        // As a plan has them: outer ones before those inside of them.
        plan.recompute.sort_by(|a, b| (a[0], b.len()).cmp(&(b[0], a.len())));
        plan.offload.sort();
        plan
    }

    /// `auto x recompute:selective, 40 of 80 layers on the host, 5 of 40 layers in full`.
    fn name(&self, choices: &Choices) -> String {
        let all: Vec<Choice> = choices.iter().flatten().copied().collect();
        let (offloaded, here): (Vec<Choice>, Vec<Choice>) =
            all.iter().partition(|choice| choice.is_offloaded);
        let degrees: BTreeSet<usize> = all.iter().map(|choice| choice.degree).filter(|it| *it > 0).collect();
        let mut title =
            Title::parse(&self.plan.name).with_recompute(degrees.first().and_then(|it| self.terms[*it]));
        let mut change = |count: usize, of: usize, what: &str| {
            title = title.clone().changed(format!("{count} of {of} layers {what}"));
        };
        if !offloaded.is_empty() {
            change(offloaded.len(), all.len(), ON_HOST);
        }
        let with = |degree: usize| here.iter().filter(|choice| choice.degree >= degree).count();
        if (1..here.len()).contains(&with(1)) {
            change(with(1), here.len(), RECOMPUTED);
        }
        if let Some(most) = degrees.last().filter(|_| degrees.len() > 1) {
            change(with(*most), here.len(), if *most + 1 == self.terms.len() { IN_FULL } else { MORE });
        }
        title.to_string()
    }
}

const ON_HOST: &str = "on the host";
const RECOMPUTED: &str = "again";
const IN_FULL: &str = "in full";
const MORE: &str = "with attention";

/// Of so many those that lie among the others as evenly as they can, not at their end.
pub(crate) fn between(count: usize, all: usize) -> impl Fn(usize) -> bool {
    let until = move |at: usize| (at * count + all / 2) / all.max(1);
    move |at| until(at + 1) > until(at)
}

fn devices(plan: &Plan, block: u32) -> Vec<u32> {
    let ops = (0..plan.ops.len()).map(OpId::new).filter(|op| plan.block(*op) == block);
    let mut lists: Vec<&[u32]> = ops.map(|op| &plan.op(op).devices[..]).collect();
    // Most operators share a list.
    lists.dedup_by_key(|list| list.as_ptr());
    let mut devices = lists.concat();
    devices.sort_unstable();
    devices.dedup();
    devices
}

#[cfg(test)]
mod tests {
    use check::Masters;
    use plan::sets;
    use rules::Analysis;

    use super::*;
    use crate::few_layers::tests::deep;

    /// Two layers of four operators after one that is in none; the second begins in one block and ends in another.
    #[test]
    fn a_layer_in_two_blocks_is_two_pieces() {
        let graph = deep(2, 64);
        let (analysis, boundary) = (Analysis::new(&graph), lower::loss(&graph, program::Inputs::Global));
        let (cluster, masters) = (cluster::named("dgx-a100:2x1").expect("known"), Masters::new());
        let question = Question::of_tests(&graph, &analysis, &boundary, &masters, &cluster);
        let named = sets::named("replicate x recompute", &graph, &analysis, 2).expect("a plan");
        let layer = |at: usize| (1 + 4 * at..5 + 4 * at).map(OpId::new).collect::<Vec<_>>();
        assert_eq!(named.recompute, [layer(0), layer(1)]);
        let blocks = (0..graph.ops.len()).map(|op| u32::from(op > 6)).collect();
        let plan = Plan { blocks, ..named };
        let degrees = Degrees::new(&question);
        let layers = Layers::new(&degrees, &plan);
        assert_eq!(layers.choices.iter().map(Vec::len).collect::<Vec<_>>(), [2, 1]);
        assert!(layers.choices.iter().flatten().all(|choice| choice.degree == layers.most()));
        // The second piece is kept on the host, the first one is recomputed, and the layer before it neither.
        let mut choices = layers.map(|_| Choice::default());
        choices[0][1].degree = layers.most();
        choices[1][0].is_offloaded = true;
        let changed = layers.with(&choices);
        let [first, second] = [&layer(1)[..2], &layer(1)[2..]];
        assert_eq!(
            (changed.recompute.as_slice(), changed.offload.as_slice()),
            ([first.to_vec()].as_slice(), [second.to_vec()].as_slice())
        );
        // What was changed is known when it is changed once more.
        assert_eq!(Layers::new(&degrees, &changed).choices, choices);
    }
}
