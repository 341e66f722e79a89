//! Sums of shares, and in words what such a sum lacks or has twice.

use crate::facts::Use;
use crate::fault::Fault;
use crate::held::Held;
use crate::share::{ListId, Owner, Quantity, ShareId, Verdict, WHOLE, loops_of};
use crate::state::Context;

/// The sum of shares, or the fault of summing something twice.
pub(crate) fn sum(
    cx: &mut Context<'_>,
    quantity: Quantity,
    region: ListId,
    shares: &[ShareId],
) -> Result<ShareId, Fault> {
    cx.store.sum(cx.facts, quantity, region, shares).map_err(|verdict| {
        let held = Held { of: quantity, region, share: WHOLE };
        let fault = Fault::new("SW0508", format!("something is summed twice into {}", cx.text(held)));
        explain(cx, fault, verdict)
    })
}

/// Adds to a fault which contribution is missing, or there twice.
pub(crate) fn explain(cx: &Context<'_>, fault: Fault, verdict: Verdict) -> Fault {
    let (owner, cell, expected, actual) = match verdict {
        Verdict::Complete => return fault,
        Verdict::Missing(owner, cell) => (owner, cell, "expected", "found nothing"),
        Verdict::Twice(owner, cell) => (owner, cell, "expected once", "found more than once"),
    };
    let part = loops_of(cx.facts, owner).map_or_else(String::new, |(op, loops)| {
        let loops = loops.iter().map(|&l| &cx.facts.analysis.op(op).loops[l]);
        let parts = loops.zip(cx.store.region(cell)).map(|(l, i)| format!("{} {}..{}", l.name, i.lo, i.hi));
        let parts: Vec<String> = parts.collect();
        if parts.is_empty() { String::new() } else { format!("the part {} of ", parts.join(", ")) }
    });
    let (subject, operator) = match owner {
        Owner::Whole => ("the whole value".to_string(), None),
        Owner::LocalPart(op) => ("the operator's result".into(), Some(op)),
        Owner::Use(number) => match cx.facts.uses[number as usize] {
            Use::Operand { op, position } => (
                format!("the contribution by operand {position} of {}", cx.facts.graph.describe(op)),
                Some(op),
            ),
            Use::Seed { output } => (format!("the caller's gradient of output {output}"), None),
        },
    };
    let fault = fault.why(format!("{expected} {part}{subject}, {actual}"));
    match operator {
        Some(op) if fault.operator.is_none() => fault.operator(cx.facts.graph.describe(op)),
        _ => fault,
    }
}

/// Whether these shares are all of a gradient, in its region.
pub(crate) fn complete(
    cx: &mut Context<'_>,
    quantity: Quantity,
    region: u32,
    shares: &[ShareId],
) -> Result<(), Fault> {
    let share = sum(cx, quantity, region, shares)?;
    if share == WHOLE {
        return Ok(());
    }
    let held = Held { of: quantity, region, share };
    let fault = Fault::new("SW0511", format!("{} is not complete", cx.text(held)));
    let verdict = cx.store.verdict(cx.facts, quantity, region, share);
    Err(explain(cx, fault, verdict))
}
