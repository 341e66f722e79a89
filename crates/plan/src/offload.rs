//! What is on the host while a rank does not need it: what is kept for backward, the optimizer's state, and parameters.
//!
//! What forward keeps of some operators for backward goes to the host when they have run, and comes back ahead of
//! their backward. Of operators that are computed again that is what is kept for computing them.
//!
//! ```text
//! offload "h.*"                        # each layer goes, and comes back, by itself
//! offload "h.*" but "h.1"              # without the last one, which is needed first
//! offload "h.*.mlp" aten.gelu.*        # what these operators keep
//! offload none                         # nothing, whatever was said before
//! offload state "*"                    # the optimizer's state of all parameters, between steps
//! offload state "*" but "wte.weight"   # of all but one
//! offload state none                   # of none, whatever was said before
//! offload parameters "h.*"             # these live there, and are brought for each use
//! ```
//! Later lines win.

use std::collections::BTreeSet;

use diag::{Error, Result};
use graph::{Graph, OpId};

use crate::op_index::OpIndex;
use crate::select::clip;
use crate::{Plan, param_sharding, recompute};

/// The operators that a line of a plan file names; an empty one for `none`.
pub(crate) fn read(line: &str, index: &OpIndex<'_>) -> Result<Vec<Vec<OpId>>> {
    match line {
        "none" => Ok(vec![vec![]]),
        "model" => Err(Error::new("SW0301", "`model` is not a part of the model")
            .why("`model` means what the model itself recomputes, and models do not say what to offload")
            .fix("name modules, such as `offload \"h.*\"`")),
        _ => recompute::read(line, index),
    }
}

/// What a line says of parameters, if it does: `state` or `parameters`, and which.
pub(crate) fn of_parameters(line: &str) -> Option<(Of, &str)> {
    Of::ALL
        .into_iter()
        .find_map(|kind| Some((kind, line.strip_prefix(kind.word())?.strip_prefix(' ')?.trim())))
}

/// What of a parameter is on the host.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Of {
    /// The optimizer's state, between steps.
    State,
    /// The parameter itself, between uses.
    Parameter,
}

impl Of {
    const ALL: [Of; 2] = [Of::State, Of::Parameter];

    fn word(self) -> &'static str {
        match self {
            Of::State => "state",
            Of::Parameter => "parameters",
        }
    }
}

/// The parameters that a line names; `None` for `none`.
pub(crate) fn named(kind: Of, line: &str, graph: &Graph) -> Result<Option<BTreeSet<String>>> {
    if line == "none" {
        return Ok(None);
    }
    let mut sides = line.split(" but ").map(|side| of_globs(kind, side.trim(), graph));
    let mut names = sides.next().unwrap_or_else(|| Ok(BTreeSet::new()))?;
    for side in sides {
        let without = side?;
        names.retain(|name| !without.contains(name));
    }
    Ok(Some(names))
}

fn of_globs(kind: Of, pattern: &str, graph: &Graph) -> Result<BTreeSet<String>> {
    let bare = pattern.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    let bare = bare.ok_or_else(|| {
        Error::new("SW0301", format!("`{}` does not name parameters", clip(pattern)))
            .fix(format!("write `offload {} \"h.*\"`, with names in quotes", kind.word()))
    })?;
    param_sharding::select(bare, graph).map(|names| names.into_iter().collect())
}

/// Lines that name the parameters of which something is on the host.
pub(crate) fn print_parameters(plan: &Plan, graph: &Graph) -> String {
    let lines = |(kind, names): (Of, &BTreeSet<String>)| {
        let names: Vec<&String> = names.iter().collect();
        let line = |pattern: &str, _: &str| format!("offload {} {pattern:?}\n", kind.word());
        param_sharding::folded(&names, graph, |_| String::new(), line)
    };
    [(Of::State, &plan.state_on_host), (Of::Parameter, &plan.held_on_host)].map(lines).concat()
}

/// What is in one span is in none of those before.
pub(crate) fn replace(spans: &mut Vec<Vec<OpId>>, span: Vec<OpId>) {
    if span.is_empty() {
        return spans.clear();
    }
    spans.iter_mut().for_each(|other| other.retain(|op| !span.contains(op)));
    spans.push(span);
}
