//! What becomes of what each layer of a plan keeps for backward: it stays, goes to the host, or is recomputed in some degree.

use std::collections::{BTreeMap, BTreeSet};

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
        Self { terms, layers }
    }

    /// Those of a plan that recomputes something else: each span is a layer.
    fn of_spans(plan: &Plan) -> Self {
        let term = recompute().last().copied().flatten();
        let layers = plan.recompute.iter().map(|span| vec![vec![], span.clone()]).collect();
        Self { terms: vec![None, term], layers }
    }

    fn knows(&self, plan: &Plan) -> bool {
        let all: BTreeSet<&Vec<OpId>> = self.layers.iter().flatten().collect();
        plan.recompute.iter().chain(&plan.offload).all(|span| all.contains(span))
    }
}

/// The layers of a plan.
pub(crate) struct Layers<'p> {
    plan: &'p Plan,
    terms: Vec<Option<SetTerm>>,
    /// Of each block and layer by degree what is recomputed.
    blocks: Vec<Vec<Vec<Vec<OpId>>>>,
    /// What runs each block.
    devices: Vec<Vec<u32>>,
    /// What the plan does with them.
    pub(crate) choices: Choices,
}

impl<'p> Layers<'p> {
    pub(crate) fn new(degrees: &Degrees, plan: &'p Plan) -> Self {
        let by_spans = (!degrees.knows(plan)).then(|| Degrees::of_spans(plan));
        let Degrees { terms, layers } = by_spans.as_ref().unwrap_or(degrees);
        let mut blocks: BTreeMap<u32, Vec<Vec<Vec<OpId>>>> = BTreeMap::new();
        for layer in layers {
            let Some(whole) = layer.last().filter(|whole| !whole.is_empty()) else { continue };
            let block = plan.block(whole[0]);
            // A layer that is in two blocks is as it is.
            if whole.iter().all(|op| plan.block(*op) == block) {
                blocks.entry(block).or_default().push(layer.clone());
            }
        }
        let devices = blocks.keys().map(|block| devices(plan, *block)).collect();
        let blocks: Vec<_> = blocks.into_values().collect();
        let recomputed: BTreeSet<&Vec<OpId>> = plan.recompute.iter().collect();
        let offloaded: BTreeSet<&Vec<OpId>> = plan.offload.iter().collect();
        let choice = |layer: &Vec<Vec<OpId>>| Choice {
            degree: (1..layer.len()).rev().find(|at| recomputed.contains(&layer[*at])).unwrap_or(0),
            is_offloaded: layer.last().is_some_and(|whole| offloaded.contains(whole)),
        };
        let choices = blocks.iter().map(|layers| layers.iter().map(choice).collect()).collect();
        Self { plan, terms: terms.clone(), blocks, devices, choices }
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
        let all = || self.blocks.iter().flatten().zip(choices.iter().flatten());
        let known: BTreeSet<&Vec<OpId>> = self.blocks.iter().flatten().flatten().collect();
        plan.recompute.retain(|span| !known.contains(span));
        plan.offload.retain(|span| !known.contains(span));
        for (layer, choice) in all() {
            plan.recompute.extend(Some(&layer[choice.degree]).filter(|span| !span.is_empty()).cloned());
            plan.offload.extend(layer.last().filter(|_| choice.is_offloaded).cloned());
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
