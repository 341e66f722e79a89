//! Convolutions: the batch and the output channels map, input channels are summed, space is whole.

use graph::Op;

use super::common::{
    Terms, bytes, flag, float_inputs, int, is_split, mark, numel, operand, output, plain, product, set,
    shape, size, tensor, term, text,
};
use super::{Cost, Family, View};
use crate::algebra::Rule;
use crate::local::{LocalArg, LocalOp, Part};

pub(super) const FAMILY: Family = Family {
    name: "convolution",
    targets: &[
        "aten.conv1d.default",
        "aten.conv1d.padding",
        "aten.conv2d.default",
        "aten.conv2d.padding",
        "aten.conv3d.default",
        "aten.conv3d.padding",
        "aten.convolution.default",
        "aten.conv_transpose1d.default",
        "aten.conv_transpose2d.input",
        "aten.conv_transpose3d.input",
    ],
    rule,
    local,
    rewriting: None,
    cost,
};

fn is_general(op: &Op) -> bool {
    op.target == "aten.convolution.default"
}

fn is_transposed(op: &Op) -> bool {
    op.target.starts_with("aten.conv_transpose") || (is_general(op) && flag(op, 6, "transposed", false))
}

/// Where the number of groups stands among the arguments.
fn groups_at(op: &Op) -> usize {
    if is_general(op) { 8 } else { 6 }
}

fn groups(op: &Op) -> i64 {
    int(op, groups_at(op), "groups", 1).max(1)
}

fn rule(view: View<'_>) -> Option<String> {
    let (input, weight) = (shape(view, 0, "input")?, shape(view, 1, "weight")?);
    let result = output(view)?;
    let spatial = weight.len().checked_sub(2)?;
    let batch = input.len().checked_sub(spatial + 1)?;
    if result.len() != input.len() || batch > 1 {
        return None;
    }
    let channels = Channels::new(view.op, input[batch], result[batch]);
    let space = |shape: &[i64], stem: &str| -> Terms {
        let name = |(i, &size): (usize, &i64)| mark(&term(size, &format!("{stem}{i}")), "^");
        shape.iter().enumerate().map(name).collect()
    };
    let n: Terms = input[..batch].iter().map(|&size| term(size, "n")).collect();
    let mut inputs = vec![
        operand(&[n.clone(), vec![channels.read], space(&input[batch + 1..], "x")].concat()),
        operand(&[channels.weight.to_vec(), space(&weight[2..], "k")].concat()),
    ];
    let biased = tensor(view.op, 2, "bias").is_some();
    if biased {
        inputs.push(format!("!{}", channels.written));
    }
    let made = operand(&[n, vec![channels.written], space(&result[batch + 1..], "y")].concat());
    let linear = if biased { vec![] } else { vec![vec![0], vec![1]] };
    text(view, &inputs, &[made], &linear)
}

/// The terms of the channels: those that are read, those of the weight, those that are written.
struct Channels {
    read: String,
    weight: [String; 2],
    written: String,
}

impl Channels {
    /// Each group reads `i` channels and writes `o`.
    fn new(op: &Op, read: i64, written: i64) -> Self {
        let groups = groups(op);
        let g = term(groups, "g");
        let i = mark(&term(read / groups, "i"), "+");
        let o = term(written / groups, "o");
        if is_transposed(op) && groups > 1 {
            let whole = |size: i64, name: &str| mark(&term(size, name), "^");
            let (read, o) = (whole(read, "i"), whole(written / groups, "o"));
            return Self { read: read.clone(), weight: [read, o], written: whole(written, "c") };
        }
        let both = |inner: &String| product(&[g.clone(), inner.clone()]);
        let weight = if is_transposed(op) { [both(&i), o.clone()] } else { [both(&o), i.clone()] };
        Self { read: both(&i), weight, written: both(&o) }
    }
}

fn local(view: View<'_>, rule: &Rule, part: &Part) -> LocalOp {
    let mut local = plain(view, rule, part);
    if is_split(rule, part, "g") {
        set(&mut local, groups_at(view.op), "groups", LocalArg::Int(size(rule, part, "g")));
    }
    local
}

fn cost(view: View<'_>) -> Cost {
    let made = if is_transposed(view.op) { shape(view, 0, "input") } else { output(view) };
    let weight = shape(view, 1, "weight").unwrap_or_default();
    let each = numel(weight) / weight.first().map_or(1.0, |&rows| rows.max(1) as f64);
    Cost {
        flops: 2.0 * made.map_or(0.0, numel) * each,
        backward: 2.0,
        bytes: bytes(view),
        saved: float_inputs(view),
    }
}
