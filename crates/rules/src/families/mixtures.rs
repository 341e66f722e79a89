//! A mixture of experts in one operator: each token through the two matrices of each of its experts, with an
//! activation between them, and the weighted sum of what these give. A part of the experts gives its share of
//! the sum: of the tokens it computes those that are its experts' own. Parts may also exchange rows: each has some
//! tokens and some experts, and the operator is rewritten so that only rows move ([`super::rows`]).

use graph::{Arg, Dtype, Op};

use super::common::{call, flag, mark, operand, output, shape, start, term, text};
use super::{Family, Nature, View};
use crate::algebra::Rule;
use crate::cost::{Call, Sketch};
use crate::local::{LocalArg, LocalOp, Part};
use crate::rewriting::Builder;

pub(super) const FAMILY: Family = Family {
    name: "mixtures",
    targets: &["shardwright.experts.default"],
    rule,
    local,
    rewriting: Some(rewriting),
    cost,
    costs: "each row of each expert times its matrices, parts of the experts their share of the rows; keeps the \
            matrices, and of each row what its products and its activation are of",
    nature: Nature {
        dear: true,
        exchanged: Some(("t", "e")),
        experts: Some("e"),
        inner: Some("n"),
        keeps_finite: true,
        dims: &[("e", "experts")],
        ..Nature::PLAIN
    },
};

const INPUTS: [&str; 5] = ["x", "experts", "weights", "up", "down"];
/// Positions of the arguments behind the tensors.
const ACTIVATION: usize = 5;
const GATED: usize = 6;
const TRANSPOSED: usize = 7;
const DROPS: usize = 8;

fn rule(view: View<'_>) -> Option<String> {
    let [tokens, width] = *shape(view, 0, INPUTS[0])? else { return None };
    let [_, slots] = *shape(view, 1, INPUTS[1])? else { return None };
    let [experts, ..] = *shape(view, 3, INPUTS[3])? else { return None };
    let [_, made] = *output(view)? else { return None };
    let transposed = flag(view.op, TRANSPOSED, "transposed", false);
    let (down, at) = (shape(view, 4, INPUTS[4])?, if transposed { 1 } else { 2 });
    let inner = mark(&term(*down.get(at)?, "n"), "+");
    let expert = if experts > 1 { format!("{}+~", term(experts, "e")) } else { term(experts, "e") };
    let (token, slot) = (term(tokens, "t"), mark(&term(slots, "j"), "^"));
    let (read, made) = (mark(&term(width, "k"), "^"), term(made, "m"));
    let both = match inner.as_str() {
        gated if !flag(view.op, GATED, "gated", false) => gated.to_owned(),
        "1" => "g^".to_owned(),
        inner => format!("(g^ {inner})"),
    };
    let matrix = |outer: &String, inner: &String| {
        let (first, second) = if transposed { (inner, outer) } else { (outer, inner) };
        operand(&[expert.clone(), first.clone(), second.clone()])
    };
    let chosen = operand(&[token.clone(), slot]);
    let x = operand(&[token.clone(), read.clone()]);
    let inputs = [x, chosen.clone(), chosen, matrix(&both, &read), matrix(&made, &inner)];
    text(view, &inputs, &[operand(&[token, made])], &[vec![2], vec![4]])
}

fn local(view: View<'_>, rule: &Rule, part: &Part) -> LocalOp {
    let total = shape(view, 3, INPUTS[3]).map_or(0, |shape| shape[0]);
    let activation = match view.op.arg(ACTIVATION, "activation") {
        Some(Arg::Str(name)) => name.clone(),
        _ => String::new(),
    };
    let mut args: Vec<LocalArg> = (0..INPUTS.len()).map(LocalArg::Input).collect();
    args.extend([start(rule, part, "e"), total].map(LocalArg::Int));
    args.push(LocalArg::Str(activation));
    let flags = [(GATED, "gated"), (TRANSPOSED, "transposed"), (DROPS, "drops")];
    args.extend(flags.map(|(at, name)| LocalArg::Bool(flag(view.op, at, name, false))));
    call("sw.experts", args)
}

/// The rows of each token for its experts, what experts make of their rows, and each token's sum of these. Of the rows
/// the tensors between them have only those that there are: as many elements as there are in the mean.
fn rewriting(op: &Op, to: &mut Builder<'_>) {
    let [x, chosen, weights, up, down] = op.inputs()[..] else { return };
    let (&[tokens, width], &[_, slots]) = (to.shape(x), to.shape(chosen)) else { return };
    let Some(&experts) = to.shape(up).first() else { return };
    let at = if flag(op, TRANSPOSED, "transposed", false) { 2 } else { 1 };
    let Some(&made) = to.shape(down).get(at) else { return };
    let dtype = to.dtype(x);
    let mean = |width: i64| [experts, tokens, mean_width(width, slots, experts)];
    let numbers = [Arg::Int(experts), Arg::Bool(flag(op, DROPS, "drops", false))];
    let args = [vec![Arg::Tensor(x), Arg::Tensor(chosen)], numbers.to_vec()].concat();
    let rows = to.op("sw.dispatch", args, "t k, t j -> x t r", dtype, &mean(width));
    let says = [(ACTIVATION, "activation"), (GATED, "gated"), (TRANSPOSED, "transposed")];
    let says = says.map(|(at, name)| op.arg(at, name).cloned().unwrap_or(Arg::None));
    let args = [[rows, up, down].map(Arg::Tensor).to_vec(), says.to_vec()].concat();
    let rows = to.op("sw.expert_rows", args, "e t r, e a b, e c d -> e t q", dtype, &mean(made));
    let args = [[rows, chosen, weights].map(Arg::Tensor).to_vec(), numbers.to_vec()].concat();
    to.result(0, "sw.combine", args, "x t q, t j, t j -> t m");
}

/// Elements of a row that each token has for each expert in the mean.
fn mean_width(width: i64, slots: i64, experts: i64) -> i64 {
    let all = width.saturating_mul(slots);
    (all / experts.max(1) + i64::from(all % experts.max(1) != 0)).max(1)
}

/// What a row is in bytes and products.
struct RowCost {
    count: u64,
    read: u64,
    both: u64,
    inner: u64,
    made: u64,
}

/// A part has its share of the rows: as many of each expert.
fn row(call: &Call<'_>) -> Option<RowCost> {
    let [x, experts, _, up, down] = &call.operands[..] else { return None };
    let (&[_, read], &[num_experts, ..]) = (&x.shape[..], &up.shape[..]) else { return None };
    let transposed = call.flag(9, "transposed");
    let (&[_, a, b], &[_, c, d]) = (&up.shape[..], &down.shape[..]) else { return None };
    let (both, inner, made) = if transposed { (b, c, d) } else { (a, d, c) };
    let all = call.int(6, "total", num_experts).max(1).unsigned_abs();
    let [num_experts, read, both, inner, made] =
        [num_experts, read, both, inner, made].map(i64::unsigned_abs);
    let slots: u64 = experts.shape.iter().map(|size| size.unsigned_abs()).product();
    Some(RowCost { count: slots * num_experts / all, read, both, inner, made })
}

fn cost(call: &Call<'_>) -> Sketch {
    let Some(row) = row(call) else { return Sketch::new(call) };
    let (first, second) = (2 * row.count * row.read * row.both, 2 * row.count * row.inner * row.made);
    let sketch = Sketch::new(call).keeps("0: 3 4; 3: 4").keeps_more(kept(call, &row));
    sketch.flops(first + second).gradients(gradients(call, first, second))
}

/// The bytes that backward needs of the rows.
fn kept(call: &Call<'_>, row: &RowCost) -> u64 {
    let [x, weights, up, down] = [0, 2, 3, 4].map(|at| call.learns(at));
    let (inside, gated) = (x || up, call.flag(8, "gated"));
    // A rectifier's gradient is told by what it gave, which the second product keeps as well.
    let by_result = !gated && call.arg(7, "activation") == Some(&LocalArg::Str("relu".into()));
    let elements = [
        (up, row.read),
        (inside && !by_result, row.both),
        // Where it is gated, what the activation gives, too.
        (inside && gated, row.inner),
        (down || inside && by_result, row.inner),
        (weights, row.made),
    ];
    let elements: u64 = elements.iter().filter(|(needed, _)| *needed).map(|(_, size)| size).sum();
    let weight = call.operands.get(2).map_or(0, |weights| weights.dtype.bytes() as u64);
    let factor = if inside || down { weight } else { 0 };
    // The number of each row's token, and that of the row.
    let numbers = Dtype::I64.bytes() as u64 * if weights { 2 } else { 1 };
    row.count * (elements * call.width() + factor + numbers)
}

/// Of each operand: the way back through the second matrix counts with the first operand that needs it.
fn gradients(call: &Call<'_>, first: u64, second: u64) -> Vec<u64> {
    let x = if call.learns(0) { first + second } else { 0 };
    let up = if call.learns(3) { first + if call.learns(0) { 0 } else { second } } else { 0 };
    vec![x, 0, 0, up, if call.learns(4) { second } else { 0 }]
}
