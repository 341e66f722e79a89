//! Convolutions: the batch and the output channels map, input channels are summed. The rows of images are divided
//! in blocks; of what else is space, what windows of their own make is divided.

use graph::{Arg, Op};

use super::common::{
    Terms, flag, int, int_list, is_split, mark, operand, output, plain, product, set, shape, size, tensor,
    term, text,
};
use super::image_rows::{Images, Rows, Window, each};
use super::{Family, Nature, View};
use crate::algebra::Rule;
use crate::cost::{Call, Sketch, numel};
use crate::local::{LocalArg, LocalOp, Part};
use crate::rewriting::Builder;

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
    rewriting: Some(rewriting),
    cost,
    costs: "two operations for each product that is summed, and as many for the gradient of each \
            factor; keeps input and weight",
    nature: Nature {
        dear: true,
        can_wait: true,
        takes_all: true,
        convolves: true,
        keeps_finite: true,
        dims: &[("i", "channels"), ("o", "channels"), ("c", "channels"), ("g", "channels")],
        ..Nature::PLAIN
    },
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
    let space = Space::new(view.op, &input[batch + 1..], &result[batch + 1..], &weight[2..]);
    let n: Terms = input[..batch].iter().map(|&size| term(size, "n")).collect();
    let mut inputs = vec![
        operand(&[n.clone(), vec![channels.read], space.read].concat()),
        operand(&[channels.weight.to_vec(), space.window].concat()),
    ];
    let biased = tensor(view.op, 2, "bias").is_some();
    if biased {
        inputs.push(format!("!{}", channels.written));
    }
    let made = operand(&[n, vec![channels.written], space.made].concat());
    let linear = if biased { vec![] } else { vec![vec![0], vec![1]] };
    Some(text(view, &inputs, &[made], &linear)? + &space.rows.clause())
}

/// The dims of space, and how the first one of images with a batch, their rows, is divided.
struct Space {
    rows: Rows,
    read: Terms,
    made: Terms,
    window: Terms,
}

impl Space {
    fn new(op: &Op, input: &[i64], result: &[i64], window: &[i64]) -> Self {
        let mut it = Self { rows: Rows::Whole, read: vec![], made: vec![], window: vec![] };
        for (at, ((&from, &to), &size)) in input.iter().zip(result).zip(window).enumerate() {
            let rows = match rows(op, at, window.len(), size, from, to) {
                // A line has no rows: where it is a sequence, its dim is cut for other reasons.
                Rows::Blocks(_) if at > 0 || window.len() == 1 => Rows::Whole,
                rows => rows,
            };
            let [read, made] = rows.terms(from, to, at);
            it.read.push(read);
            it.made.push(made);
            it.window.push(mark(&term(size, &format!("k{at}")), "^"));
            it.rows = if at == 0 { rows } else { it.rows };
        }
        it
    }
}

/// How a dim of space is divided: the `at`th of `dims`, under a window of that size.
fn rows(op: &Op, at: usize, dims: usize, size: i64, from: i64, to: i64) -> Rows {
    let argument = |index: usize, name: &str, default: i64| each(op, index, name, &vec![default; dims])[at];
    let (step, padding) = (argument(3, "stride", 1), argument(4, "padding", 0));
    if is_general(op) || op.target.ends_with(".padding") {
        Rows::Whole
    } else if !is_transposed(op) {
        Rows::from_window(Window { size, step, padding, dilation: argument(5, "dilation", 1) }, from, to)
    } else if size == step
        && padding == 0
        && argument(5, "output_padding", 0) == 0
        && argument(7, "dilation", 1) == 1
    {
        Rows::repeated(from, to)
    } else {
        Rows::Whole
    }
}

/// Blocks of rows become images of their own, which are convolved without padding of their rows.
fn rewriting(op: &Op, to: &mut Builder<'_>) {
    let ([x, weight, ..], Some(result)) = (&op.inputs()[..], to.result_shape(0)) else { return };
    let (result, input, window) = (result.to_vec(), to.shape(*x).to_vec(), to.shape(*weight)[2..].to_vec());
    let space = Space::new(op, &input[2..], &result[2..], &window);
    let Rows::Blocks(blocks) = space.rows else { return };
    let name = |term: &String| term.replace(['+', '@', '^'], "");
    let names = |terms: &[String]| -> Terms { terms.iter().map(name).collect() };
    let (batch, channels) = (term(input[0], "n"), Channels::new(op, input[1], result[1]));
    let read = [batch.clone(), name(&channels.read)];
    let images = Images { tensor: *x, names: read, others: names(&space.read[1..]) };
    let apart = blocks.apart(to, &images, &Arg::Int(0));
    let written = [batch, name(&channels.written)];
    let made = Images { tensor: apart, names: written, others: names(&space.made[1..]) };

    let weight_words = operand(&[names(&channels.weight), names(&space.window)].concat());
    let bias = tensor(op, 2, "bias");
    let bias_words = bias.map_or_else(String::new, |_| format!(", !{}", made.names[1]));
    let labels = format!("{}, {weight_words}{bias_words} -> {}", images.folded("high"), made.folded("y0"));
    let (one, none) = (vec![1; window.len()], vec![0; window.len()]);
    let mut padding = each(op, 4, "padding", &none);
    padding[0] = 0;
    let args = vec![
        Arg::Tensor(apart),
        Arg::Tensor(*weight),
        bias.map_or(Arg::None, Arg::Tensor),
        int_list(&each(op, 3, "stride", &one)),
        int_list(&padding),
        int_list(&each(op, 5, "dilation", &one)),
        Arg::Int(groups(op)),
    ];
    let dtype = to.dtype(*x);
    let tensor = to.op(&op.target, args, &labels, dtype, &blocks.shape(&result));
    blocks.together(to, &Images { tensor, ..made });
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
    let [_, weight, ..] = &call.operands[..] else { return Sketch::new(call) };
    let transposed = call.name().starts_with("conv_transpose")
        || (call.name() == "convolution" && call.flag(6, "transposed"));
    let met = numel(weight.shape.get(1..).unwrap_or_default());
    let flops = 2 * met * if transposed { call.given(0) } else { call.made() };
    let gradient = |at: usize| if at < 2 { flops } else { 0 };
    let gradients = (0..call.operands.len()).map(gradient).collect();
    Sketch::new(call).flops(flops).gradients(gradients).keeps("*: 0 1")
}
