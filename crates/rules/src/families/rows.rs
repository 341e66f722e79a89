//! A mixture of experts whose parts exchange rows: tokens give a row for each of their experts, experts make another
//! of each, and each token sums those of its experts. Rewriting a mixture makes these operators.
//!
//! What is between them is of experts and tokens, `e t`, but has only the rows that there are, which the router says at
//! run. Its last dim is as long as a row is in the mean over all experts, so that its elements are those that are
//! expected; nobody splits it, and no rule speaks of what it holds.

use super::common::{mark, operand, output, shape, term, text};
use super::{Family, Nature, View};
use crate::algebra::Rule;
use crate::cost::{Call, Sketch, numel};
use crate::local::{LocalArg, LocalOp, Part, unchanged};

pub(super) const FAMILY: Family = Family {
    name: "rows",
    targets: &["sw.dispatch", "sw.expert_rows", "sw.combine"],
    rule,
    local,
    rewriting: None,
    cost,
    costs: "as a mixture, of as many rows as are expected",
    nature: Nature { dear: true, ..Nature::PLAIN },
};

/// Those that make rows.
pub(super) const ROWS: [&str; 2] = ["sw.dispatch", "sw.expert_rows"];

const TRANSPOSED: usize = 5;

fn rule(view: View<'_>) -> Option<String> {
    match &view.op.target[..] {
        "sw.dispatch" => dispatch(view),
        "sw.expert_rows" => expert_rows(view),
        _ => combine(view),
    }
}

fn whole(size: i64, name: &str) -> String {
    mark(&term(size, name), "^")
}

fn dispatch(view: View<'_>) -> Option<String> {
    let ([tokens, width], [_, slots]) = (shape(view, 0, "x")?, shape(view, 1, "chosen")?) else {
        return None;
    };
    let [experts, _, made] = *output(view)? else { return None };
    let token = term(*tokens, "t");
    let x = operand(&[token.clone(), whole(*width, "k")]);
    let chosen = operand(&[token.clone(), whole(*slots, "j")]);
    let rows = operand(&[whole(experts, "e"), token, whole(made, "r")]);
    text(view, &[x, chosen], &[rows], &[])
}

fn expert_rows(view: View<'_>) -> Option<String> {
    let [experts, tokens, width] = *shape(view, 0, "rows")? else { return None };
    let ([_, a, b], [_, c, d]) = (shape(view, 1, "up")?, shape(view, 2, "down")?) else { return None };
    let [_, _, made] = *output(view)? else { return None };
    let (expert, token) = (term(experts, "e"), term(tokens, "t"));
    let rows = operand(&[expert.clone(), token.clone(), whole(width, "r")]);
    let matrix = |sizes: [(i64, &str); 2]| {
        operand(&[expert.clone(), whole(sizes[0].0, sizes[0].1), whole(sizes[1].0, sizes[1].1)])
    };
    let (up, down) = (matrix([(*a, "a"), (*b, "b")]), matrix([(*c, "c"), (*d, "d")]));
    let written = operand(&[expert.clone(), token, whole(made, "m")]);
    text(view, &[rows, up, down], &[written], &[])
}

fn combine(view: View<'_>) -> Option<String> {
    let ([experts, tokens, width], [_, slots]) = (shape(view, 0, "rows")?, shape(view, 1, "chosen")?) else {
        return None;
    };
    let [_, made] = *output(view)? else { return None };
    let token = term(*tokens, "t");
    let rows = operand(&[whole(*experts, "e"), token.clone(), whole(*width, "r")]);
    let chosen = operand(&[token.clone(), whole(*slots, "j")]);
    let sums = operand(&[token, whole(made, "m")]);
    text(view, &[rows, chosen.clone(), chosen], &[sums], &[])
}

/// Numbers of tokens and experts are those of the part's own tensors.
fn local(view: View<'_>, _rule: &Rule, _part: &Part) -> LocalOp {
    unchanged(view.op)
}

fn cost(call: &Call<'_>) -> Sketch {
    match &call.op.target[..] {
        "sw.dispatch" => dispatched(call),
        "sw.expert_rows" => computed(call),
        _ => combined(call),
    }
}

/// The bytes of the numbers of a row's expert and token.
const PLACE: u64 = 16;

fn dispatched(call: &Call<'_>) -> Sketch {
    let rows = call.given(1);
    let experts = call.int(2, "total", 1).unsigned_abs();
    let slots = call.operands.get(1).and_then(|it| it.shape.last()).map_or(1, |size| size.unsigned_abs());
    // Which expert has which token.
    let table = rows / slots.max(1) * (experts + 1);
    Sketch::new(call).flops(0).keeps("").keeps_more(rows * PLACE).meanwhile(table, 0)
}

fn computed(call: &Call<'_>) -> Sketch {
    let [given, up, down] = &call.operands[..] else { return Sketch::new(call) };
    let transposed = matches!(call.arg(TRANSPOSED, "transposed"), Some(LocalArg::Bool(true)));
    let (&[_, a, b], &[_, c, d]) = (&up.shape[..], &down.shape[..]) else { return Sketch::new(call) };
    let (both, read, inner, made) = if transposed { (b, a, c, d) } else { (a, b, d, c) };
    let [both, read, inner, made] = [both, read, inner, made].map(i64::unsigned_abs);
    let rows = numel(&given.shape) / read.max(1);
    let (first, second) = (2 * rows * read * both, 2 * rows * inner * made);
    let gated = call.flag(4, "gated");
    let [x, up, down] = [0, 1, 2].map(|at| call.learns(at));
    let inside = x || up;
    let elements = [(inside, both), (inside && gated, inner), (down, inner)];
    let elements: u64 = elements.iter().filter(|(needed, _)| *needed).map(|(_, size)| size).sum();
    let gradients =
        [if x { first + second } else { 0 }, if up { first + if x { 0 } else { second } } else { 0 }];
    let gradients = [gradients.to_vec(), vec![if down { second } else { 0 }]].concat();
    Sketch::new(call)
        .keeps("0: 1 2; 1: 0 2")
        .keeps_more(rows * elements * call.width())
        .flops(first + second)
        .gradients(gradients)
}

fn combined(call: &Call<'_>) -> Sketch {
    let (rows, made) = (call.given(1), call.results.iter().flatten().next());
    let width = made.and_then(|made| made.shape.last()).map_or(1, |size| size.unsigned_abs());
    let slots = call.operands.get(1).and_then(|it| it.shape.last()).map_or(1, |size| size.unsigned_abs());
    let weight = call.operands.get(2).map_or(0, |weights| weights.dtype.bytes() as u64);
    // Of each row which of its token's experts it is, what that counts, and whose it is.
    let more = rows * (slots + weight + PLACE);
    Sketch::new(call).keeps("2: 0").keeps_more(more).flops(2 * rows * width)
}
