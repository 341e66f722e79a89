//! What is on the host while a rank does not need it.
//!
//! What forward keeps of some operators for backward goes to the host when they have run, and comes back ahead of
//! their backward. Of operators that are computed again that is what is kept for computing them.
//!
//! ```text
//! offload "h.*"                        # each layer goes, and comes back, by itself
//! offload "h.*" but "h.11"             # without the last one, which is needed first
//! offload "h.*.mlp" aten.gelu.*        # what these operators keep
//! offload none                         # nothing, whatever was said before
//! ```
//! Later lines win.

use diag::{Error, Result};
use graph::{Graph, OpId};

use crate::recompute;

/// The operators that a line of a plan file names; an empty one for `none`.
pub(crate) fn read(line: &str, graph: &Graph) -> Result<Vec<Vec<OpId>>> {
    match line {
        "none" => Ok(vec![vec![]]),
        "model" => Err(Error::new("SW0301", "`model` is not a part of the model")
            .why("it names what the model itself computes again, and models do not say what goes to the host")
            .fix("name modules, such as `offload \"h.*\"`")),
        _ => recompute::read(line, graph),
    }
}

/// What is in one span is in none of those before.
pub(crate) fn replace(spans: &mut Vec<Vec<OpId>>, span: Vec<OpId>) {
    if span.is_empty() {
        return spans.clear();
    }
    spans.iter_mut().for_each(|other| other.retain(|op| !span.contains(op)));
    spans.push(span);
}
