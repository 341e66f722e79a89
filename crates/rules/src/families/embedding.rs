//! Rows of a table by index. A part of the table gives the rows it has and zeros for the others.

use super::common::{call, flag, int, is_split, operand, plain, shape, start, term, terms, text};
use super::{Family, Nature, View};
use crate::algebra::Rule;
use crate::cost::{Call, Sketch, numel};
use crate::local::{LocalArg, LocalOp, Part};

pub(super) const FAMILY: Family = Family {
    name: "embedding",
    targets: &["aten.embedding.default"],
    rule,
    local,
    rewriting: None,
    cost,
    costs: "reads the rows that are asked for; keeps the indices",
    nature: Nature {
        needs_no_values: true,
        looks_up: true,
        has_vocabulary: true,
        dims: &[("vocab", "vocabulary"), ("width", "width")],
        ..Nature::PLAIN
    },
};

fn rule(view: View<'_>) -> Option<String> {
    // Frequencies are counted over all indices; sparse gradients have no layout.
    if flag(view.op, 3, "scale_grad_by_freq", false) || flag(view.op, 4, "sparse", false) {
        return None;
    }
    let [rows, width] = *shape(view, 0, "weight")? else { return None };
    let row = match term(rows, "vocab") {
        split if rows > 1 => format!("{split}+~"),
        whole => whole,
    };
    let width = term(width, "width");
    let mut names = terms(shape(view, 1, "indices")?);
    let indices = operand(&names);
    names.push(width.clone());
    let inputs = [operand(&[row, width]), indices];
    text(view, &inputs, &[operand(&names)], &[vec![0]])
}

fn local(view: View<'_>, rule: &Rule, part: &Part) -> LocalOp {
    let local = plain(view, rule, part);
    if !is_split(rule, part, "vocab") {
        return local;
    }
    let padding = LocalArg::Int(int(view.op, 2, "padding_idx", -1));
    let first = LocalArg::Int(start(rule, part, "vocab"));
    let rows = LocalArg::Int(shape(view, 0, "weight").map_or(0, |shape| shape[0]));
    let args = vec![LocalArg::Input(0), LocalArg::Input(1), first, padding, rows];
    call("sw.embedding_shard", args)
}

/// Only the rows that are asked for are read.
fn cost(call: &Call<'_>) -> Sketch {
    let [weight, indices] = &call.operands[..] else { return Sketch::new(call) };
    let rows = call.made() * weight.dtype.bytes() as u64;
    let sketch = Sketch::new(call).flops(0).reads(rows + indices.bytes());
    match (call.name(), weight.shape.first()) {
        ("embedding_shard", Some(0)) => sketch.keeps("*:"),
        // Indices of its own rows, and which are not.
        ("embedding_shard", _) => {
            let more = indices.bytes() + numel(&indices.shape);
            sketch.keeps("*:").keeps_more(more).meanwhile(rows, rows)
        }
        _ => sketch,
    }
}
