//! Convolutions: the batch and the output channels map, input channels are summed, space is whole.

use graph::Op;

use super::common::{
    Terms, flag, int, is_split, mark, operand, output, plain, product, set, shape, size, tensor, term, text,
};
use super::{Family, View};
use crate::algebra::Rule;
use crate::cost::{Call, Sketch, numel};
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
    costs: "two operations for each product that is summed, and as many for the gradient of each \
            factor; keeps input and weight",
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

/// Each element that is written, or read where it is transposed, meets its group's part of the weight.
fn cost(call: &Call<'_>) -> Sketch {
    let [_, weight, ..] = &call.operands[..] else { return Sketch::of(call) };
    let transposed = call.name().starts_with("conv_transpose")
        || (call.name() == "convolution" && call.flag(6, "transposed"));
    let met = numel(weight.shape.get(1..).unwrap_or_default());
    let flops = 2 * met * if transposed { call.given(0) } else { call.made() };
    let gradient = |at: usize| if at < 2 { flops } else { 0 };
    let gradients = (0..call.operands.len()).map(gradient).collect();
    Sketch::of(call).flops(flops).gradients(gradients).keeps("*: 0 1")
}
