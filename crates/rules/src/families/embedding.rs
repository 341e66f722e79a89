//! Rows of a table by index. A part of the table gives the rows it has and zeros for the others.

use super::common::{call, flag, int, is_split, moved, operand, plain, shape, start, term, terms, text};
use super::{Cost, Family, View};
use crate::algebra::Rule;
use crate::local::{LocalArg, LocalOp, Part};

pub(super) const FAMILY: Family =
    Family { name: "embedding", targets: &["aten.embedding.default"], rule, local, rewriting: None, cost };

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

fn cost(view: View<'_>) -> Cost {
    let made = super::common::output(view).map_or(0.0, super::common::numel);
    let all = shape(view, 0, "weight").map_or(0.0, super::common::numel);
    let cost = moved(view);
    // Only the rows that are asked for are read.
    Cost { bytes: cost.bytes * 2.0 * made / (all + made).max(1.0), ..cost }
}
