//! The rules, one file a family, each with the same skeleton: see `docs/how-to/adding-a-rule.md`.

mod attention;
mod common;
mod contraction;
mod convolution;
mod creation;
mod distances;
mod embedding;
mod experts;
mod fourier;
mod grouped_norm;
mod image_rows;
mod indexing;
mod linear_algebra;
mod losses;
mod margins;
mod mixtures;
mod moments;
mod norms;
mod order;
mod pointwise;
mod pooling;
mod products;
mod random;
mod recurrent;
mod reductions;
pub mod registered;
mod rows;
mod similarity;
mod softmax;
mod splitting;
mod statistics;
mod views;

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::OnceLock;

use crate::algebra::Rule;
use crate::cost::{Call, Cost, Sketch};
use crate::local::{LocalOp, Part, unchanged};
use crate::rewriting::Rewrite;
pub use crate::view::View;

/// All families, in the order of the documentation.
pub const ALL: &[&Family] = &[
    &pointwise::FAMILY,
    &views::FAMILY,
    &splitting::FAMILY,
    &contraction::FAMILY,
    &products::FAMILY,
    &experts::FAMILY,
    &mixtures::FAMILY,
    &rows::FAMILY,
    &attention::FAMILY,
    &recurrent::FAMILY,
    &norms::FAMILY,
    &softmax::FAMILY,
    &embedding::FAMILY,
    &losses::FAMILY,
    &distances::FAMILY,
    &margins::FAMILY,
    &similarity::FAMILY,
    &reductions::FAMILY,
    &statistics::FAMILY,
    &convolution::FAMILY,
    &pooling::FAMILY,
    &fourier::FAMILY,
    &linear_algebra::FAMILY,
    &random::FAMILY,
    &creation::FAMILY,
    &indexing::FAMILY,
    &registered::FAMILY,
];

/// The family that covers a target.
pub fn family_of(target: &str) -> Option<&'static Family> {
    static TARGETS: OnceLock<HashMap<&'static str, &'static Family>> = OnceLock::new();
    let all = || ALL.iter().flat_map(|family| family.targets.iter().map(|target| (*target, *family)));
    TARGETS.get_or_init(|| all().collect()).get(target).copied()
}

/// What is so of the operators of a target's family; nothing is where none covers it.
pub fn nature_of(target: &str) -> &'static Nature {
    family_of(target).map_or(&Nature::PLAIN, |family| &family.nature)
}

/// Whether an operator is dear to compute; one that no family covers may be.
pub fn is_dear(target: &str) -> bool {
    family_of(target).is_none_or(|family| family.nature.dear)
}

/// The dims of an operator whose parts may each have some of both, and exchange rows of the one for the other.
pub fn exchanged(target: &str) -> Option<(&'static str, &'static str)> {
    nature_of(target).exchanged
}

/// Whether an operator makes rows for experts, of which it is known at run how many there are.
pub fn makes_rows(target: &str) -> bool {
    rows::ROWS.contains(&target)
}

/// Whether an operator computes the gradients of its operands apart, so that those of parameters can wait without any
/// work done twice.
pub fn can_wait(target: &str) -> bool {
    nature_of(target).can_wait
}

/// Whether one operator computes these gradients, which is handed all operands also where it is asked for one of them.
pub fn takes_all(target: &str) -> bool {
    nature_of(target).takes_all
}

/// Whether the gradient of what an operator reads needs no values of it: views, casts, rows that are looked up.
pub fn needs_no_values(target: &str) -> bool {
    nature_of(target).needs_no_values || target.starts_with("aten.to.")
}

/// The rule of an operator as text; `None` where it has none.
pub fn rule_text(view: View<'_>) -> Option<String> {
    let text = (family_of(&view.op.target)?.rule)(view)?;
    let clauses = order::clauses(view, &text);
    Some(text + &clauses)
}

/// The rule of an operator; `None` where it has none. Shapes that do not belong to the operator
/// give none either.
pub fn rule_of(view: View<'_>) -> Option<Rule> {
    Rule::parse(&rule_text(view)?, &view.input_shapes(), &view.output_shapes()).ok()
}

/// What one part of an operator computes.
pub fn local_of(view: View<'_>, rule: &Rule, part: &Part) -> LocalOp {
    match family_of(&view.op.target) {
        Some(family) => (family.local)(view, rule, part),
        None => unchanged(view.op),
    }
}

/// The same for any operator: one without a rule is executed as it is.
pub fn executed(view: View<'_>, rule: Option<&Rule>, part: &Part) -> LocalOp {
    rule.map_or_else(|| unchanged(view.op), |rule| local_of(view, rule, part))
}

/// What a part costs that executes `op`; `needs_grad` is [`graph::Graph::needs_grad`]. Of an operator without a family
/// it is what its rule tells, or what all operators cost.
pub fn cost_of(view: View<'_>, rule: Option<&Rule>, part: &Part, op: &LocalOp, needs_grad: &[bool]) -> Cost {
    let call = Call::new(view, rule, part, op, needs_grad);
    let sketch = match family_of(&view.op.target) {
        Some(family) => (family.cost)(&call),
        None => Sketch::new(&call),
    };
    sketch.finish(&call, part.inputs.len())
}

/// `docs/reference/operators.md`: the families and the operators that each covers.
pub fn table() -> String {
    let mut text = String::from(INTRODUCTION);
    for family in ALL {
        let targets: Vec<String> = family.targets.iter().map(|t| format!("`{t}`")).collect();
        let rewritten = if family.rewriting.is_some() { "yes" } else { "" };
        let (name, costs, targets) = (family.name, family.costs, targets.join(", "));
        writeln!(text, "| {name} | {rewritten} | {costs} | {targets} |")
            .expect("writing to a string never fails");
    }
    text
}

const INTRODUCTION: &str = "\
# Operators that may be split

Generated from `crates/rules/src/families` by the tests of the crate; `UPDATE=1 cargo test -p shardwright-rules`
writes it again. An operator that is not listed is replicated and reported. \"Rewritten\" says that some operators of
the family are rewritten into simpler ones before dims marked `@` are split. \"Costs\" says what a part computes,
and what it keeps for backward; `shardwright ops show` prints both of one operator, in numbers. The gradient of each
operand takes as many operations as forward, if nothing else is said.

| family | rewritten | costs | operators |
| --- | --- | --- | --- |
";

/// A family of operators that are split alike.
pub struct Family {
    pub name: &'static str,
    /// The overloads it covers.
    pub targets: &'static [&'static str],
    /// The rule of this operator as text, for its shapes and arguments; `None` where this call of it
    /// has none (it is then replicated and reported).
    pub rule: fn(View<'_>) -> Option<String>,
    /// What one part of it computes.
    pub local: fn(View<'_>, &Rule, &Part) -> LocalOp,
    /// Its rewriting into simpler operators, for a split along dims with their own algorithm.
    pub rewriting: Option<Rewrite>,
    /// What a part costs, and the same in words.
    pub cost: fn(&Call<'_>) -> Sketch,
    pub costs: &'static str,
    pub nature: Nature,
}

/// What else is so of a family's operators, for those who ask. What is not said is not so: `..Nature::PLAIN`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nature {
    /// Many operations for each element that is read or given.
    pub dear: bool,
    /// Of a call that could exchange rows: the dims of tokens and experts ([`exchanged`]).
    pub exchanged: Option<(&'static str, &'static str)>,
    /// Gradients of operands are computed apart ([`can_wait`]).
    pub can_wait: bool,
    /// One operator computes these gradients ([`takes_all`]).
    pub takes_all: bool,
    /// The gradient of what is read needs no values of it ([`needs_no_values`]).
    pub needs_no_values: bool,
    /// A view of one tensor.
    pub is_view: bool,
    /// The elements that are given are elements that were read, in other places.
    pub rearranges: bool,
    /// Finite operands give finite results, of each row or window by itself.
    pub keeps_finite: bool,
    /// Rows of a table are looked up.
    pub looks_up: bool,
    /// A dim that is summed or looked up is one of words or classes.
    pub has_vocabulary: bool,
    /// Queries see keys.
    pub attends: bool,
    /// Weights slide over windows.
    pub convolves: bool,
    /// Products are summed along dims that both operands have.
    pub contracts: bool,
    /// The dim of experts.
    pub experts: Option<&'static str>,
    /// The dim that is made and summed inside of one operator.
    pub inner: Option<&'static str>,
    /// What people call its dims.
    pub dims: &'static [(&'static str, &'static str)],
}

impl Nature {
    pub const PLAIN: Self = Self {
        dear: false,
        exchanged: None,
        can_wait: false,
        takes_all: false,
        needs_no_values: false,
        is_view: false,
        rearranges: false,
        keeps_finite: false,
        looks_up: false,
        has_vocabulary: false,
        attends: false,
        convolves: false,
        contracts: false,
        experts: None,
        inner: None,
        dims: &[],
    };
}
