//! Slices: a model along its sequence, one interval of tokens after another, as one graph.
//!
//! [`slice()`] is a pure function of the model's graph and [`Slices`]. Where the sequence is a dim that an operator may be
//! split along, each slice has a part of it, as the operator's rule says; what is summed over the sequence is summed slice
//! by slice; and causal attention of a slice has the keys and values of all slices up to it. What needs all tokens is done
//! with the last slice, and where an earlier one reads that, it looks ahead: the model has no such slices. What follows
//! from nothing that is given or trained, such as positions, and what has no such dim and looks at inputs only, such as the
//! shift of labels, is done whole with the first slice.
//!
//! As with rewritings, a program names its slices, whoever needs the graph derives it, and proofs name them among what
//! they rest on.
//!
//! Invariants of a sliced graph: what is of one slice stands together, slice after slice, and reads nothing of later ones.

mod cutter;
mod forms;
mod sequence;

use std::borrow::Cow;

use diag::{Error, Result};
use graph::{Graph, OpId, Source, TensorId};

use crate::algebra::Kind;
use crate::classes::Classes;
use crate::factors::Analysis;
use crate::families;
use crate::interval::Interval;
use crate::rewriting::{Origin, Rewriting, Rewritten, describe, rewrite};

pub use sequence::even;

/// Where the sequence of a model is cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slices {
    /// An input that has the sequence, by its position among those of the call, and its dim that is it.
    pub input: usize,
    pub dim: usize,
    /// Where each slice ends: the last one with the sequence.
    pub ends: Vec<i64>,
}

/// A graph whose sequence is in slices.
pub struct Sliced<'g> {
    /// The model's graph, with means over the sequence as sums: of this the slices are.
    pub whole: Rewritten<'g>,
    pub graph: Graph,
    /// For each operator that of `whole` which it is made for.
    pub pieces: Vec<Piece>,
    /// For each tensor that of `whole` whose dims it has, some of them shorter, if there is one.
    pub likes: Vec<Option<TensorId>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    pub op: OpId,
    pub slice: usize,
}

impl Slices {
    /// As many balanced slices of a sequence of so many tokens.
    pub fn even(input: usize, dim: usize, tokens: i64, count: u32) -> Self {
        let ends = (0..count).map(|at| Interval::whole(tokens).part(at, count).hi).collect();
        Self { input, dim, ends }
    }

    pub fn count(&self) -> usize {
        self.ends.len()
    }

    fn interval(&self, slice: usize) -> Interval {
        Interval { lo: slice.checked_sub(1).map_or(0, |before| self.ends[before]), hi: self.ends[slice] }
    }

    /// The class of factors that is the sequence.
    fn class(&self, graph: &Graph, analysis: &Analysis, classes: &Classes) -> Result<usize> {
        let wrong = |why: &str| {
            Err(Error::new("SW0527", "these are no slices of a sequence of the model").why(why).fix(FIX))
        };
        let Some(tensor) = input_at(graph, self.input) else { return wrong("it has no such input") };
        let Some([tokens]) = analysis.factors[tensor.index()].get(self.dim).map(|dim| &dim[..]) else {
            return wrong("the input has no such dim, or one of several factors");
        };
        let rises =
            self.ends.iter().is_sorted_by(|a, b| a < b) && self.ends.first().is_some_and(|end| *end > 0);
        if !rises || self.ends.last() != Some(tokens) {
            return wrong("each slice has tokens, and the last one ends with the sequence");
        }
        let before: usize = analysis.factors[tensor.index()][..self.dim].iter().map(Vec::len).sum();
        Ok(classes.of_factor(tensor, before))
    }
}

const FIX: &str = "undo the edit of program.json, or compile again";

fn input_at(graph: &Graph, at: usize) -> Option<TensorId> {
    let is_it =
        |id: &TensorId| matches!(graph.tensor(*id).source, Source::Input { position, .. } if position == at);
    graph.tensor_ids().find(is_it)
}

/// Cuts a model along its sequence, or says which operator looks ahead.
pub fn slice<'g>(model: &'g Graph, slices: &Slices) -> Result<Sliced<'g>> {
    let whole = rewrite(model, &means(model, slices)?)?;
    let analysis = Analysis::new(&whole.graph);
    let forms = forms::Forms::new(&whole.graph, &analysis, slices)?;
    let (graph, pieces, likes) = cutter::cut(&forms);
    Ok(Sliced { whole, graph, pieces, likes })
}

/// What a program's numbers refer to: the model in slices, if there are any, of which some operators are rewritten.
pub fn derive<'g>(
    model: &'g Graph,
    slices: Option<&Slices>,
    rewritings: &[Rewriting],
) -> Result<Rewritten<'g>> {
    let Some(slices) = slices else { return rewrite(model, rewritings) };
    let sliced = slice(model, slices)?;
    let rewritten = rewrite(&sliced.graph, rewritings)?;
    let origin = |sliced_origin: &Origin| {
        let first = &sliced.whole.origins[sliced.pieces[sliced_origin.op.index()].op.index()];
        Origin { op: first.op, labels: sliced_origin.labels.clone().or_else(|| first.labels.clone()) }
    };
    let origins = rewritten.origins.iter().map(origin).collect();
    Ok(Rewritten { graph: Cow::Owned(rewritten.graph.into_owned()), origins })
}

/// What proofs rest on, on lines.
pub fn rests_on(model: &Graph, slices: Option<&Slices>, rewritings: &[Rewriting]) -> Result<Vec<String>> {
    let Some(slices) = slices else { return Ok(describe(model, rewritings)) };
    let input = input_at(model, slices.input).map_or("", |id| &model.tensor(id).name);
    let ends = slices.ends.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let mut lines = vec![format!("the model in slices of {input}.{} that end at {ends}", slices.dim)];
    lines.extend(describe(model, &means(model, slices)?));
    lines.extend(describe(&slice(model, slices)?.graph, rewritings));
    Ok(lines)
}

/// Operators that compute one value of all tokens, which are rewritten so that slices have their sums.
fn means(model: &Graph, slices: &Slices) -> Result<Vec<Rewriting>> {
    let analysis = Analysis::new(model);
    let classes = Classes::new(model, &analysis);
    let class = slices.class(model, &analysis, &classes)?;
    let rewriting_of = |op: OpId| {
        let (rule, dims) = (analysis.rules[op.index()].as_ref()?, analysis.op(op));
        families::family_of(&model.op(op).target)?.rewriting?;
        let needs_rewriting = |index: &usize| {
            let made = dims.outputs.iter().flatten().any(|carried| *carried == Some(*index));
            classes.of_loop(op, *index) == class && dims.loops[*index].kind == Kind::Own && !made
        };
        let mut rule_dims: Vec<_> =
            (0..dims.loops.len()).filter(needs_rewriting).map(|index| dims.loops[index].dim).collect();
        rule_dims.sort_unstable();
        rule_dims.dedup();
        let names: Vec<String> = rule_dims.into_iter().map(|dim| rule.dim(dim).name.clone()).collect();
        (!names.is_empty()).then_some(Rewriting { op, dims: names })
    };
    Ok(model.op_ids().filter_map(rewriting_of).collect())
}
