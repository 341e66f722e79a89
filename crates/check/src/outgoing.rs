//! What the caller gets: outputs, and gradients of inputs.

use graph::{Source, TensorId};
use program::{Inputs, Output, Program};
use rules::{Interval, Region};

use crate::fault::Fault;
use crate::held::Held;
use crate::region::region_text;
use crate::share::{ListId, Quantity, WHOLE};
use crate::state::{Context, Rank};
use crate::sum::complete;
use crate::sweep::sweep;
use crate::symmetry::agree;

pub(crate) fn outputs(cx: &mut Context<'_>, rank: &Rank<'_>) {
    for (number, buf) in rank.body.outputs().iter().enumerate() {
        let (Some(buf), Some(output)) = (buf, cx.facts.graph.outputs[number]) else { continue };
        let (Some(held), Some(region)) = (rank.held(*buf), rank.own.output(number)) else { continue };
        if let Err(fault) = output_fits(cx, number, cx.facts.class(output), held, region) {
            cx.faults.push(fault.at(rank.id, None));
        }
    }
}

fn output_fits(
    cx: &Context<'_>,
    number: usize,
    tensor: TensorId,
    held: Held,
    region: &Region,
) -> Result<(), Fault> {
    let whole = cx.program.boundary.outputs[number] == Output::Whole;
    let expected = if whole { &Region::whole(&cx.facts.flat[tensor.index()]) } else { region };
    let there = agree(cx.facts, tensor, cx.store.region(held.region), &expected.0);
    let said = region == expected && there.is_some_and(|there| there == *expected.0);
    if held.of == (Quantity { tensor, grad: false }) && said && held.share == WHOLE {
        return Ok(());
    }
    let part = if held.share == WHOLE { "" } else { "a part of the sum of " };
    let (name, actual) = (cx.name(tensor), cx.text(held));
    let (what, expected) = if whole {
        (format!("the output {name} is not whole"), format!("all of {name}"))
    } else {
        let factors = &cx.facts.analysis.factors[tensor.index()];
        let text = region_text(factors, &expected.0);
        (
            format!("a rank's part of the output {name} is not the one that the tables name"),
            format!("{name}{text}"),
        )
    };
    Err(Fault::new("SW0512", what).why(format!("expected {expected}, found {part}{actual}")))
}

/// The ranks' parts of an output are all of it.
pub(crate) fn together(cx: &mut Context<'_>, program: &Program) {
    for (number, output) in cx.facts.graph.outputs.iter().enumerate() {
        let (Some(tensor), Output::Local) = (output, program.boundary.outputs[number]) else { continue };
        let columns = program.roles.iter().filter_map(|role| role.table.outputs[number].as_ref());
        let parts: Vec<&[Interval]> = columns.flat_map(program::PerRank::values).map(|r| &r.0[..]).collect();
        let space = Region::whole(&cx.facts.flat[tensor.index()]);
        if sweep(&space.0, &parts, &mut |inside, _| inside.is_empty().then_some(())).is_some() {
            let what = format!("the ranks' parts do not make up all of the output {}", cx.name(*tensor));
            cx.faults.push(Fault::new("SW0512", what));
        }
    }
}

/// The gradient of every input that has one, for what the rank is given of it.
pub(crate) fn gradients(cx: &mut Context<'_>, rank: &Rank<'_>) {
    for tensor in cx.facts.graph.tensor_ids() {
        if !matches!(cx.facts.graph.tensor(tensor).source, Source::Input { .. }) {
            continue;
        }
        let expected = wanted(cx, rank, tensor);
        let given = rank.body.gradients.iter().zip(rank.body.given_gradients());
        let listed = given.filter(|(listed, _)| **listed == tensor);
        let held: Vec<Held> = listed.filter_map(|(_, buf)| rank.held(buf?)).collect();
        if let Err(fault) = gradient_fits(cx, tensor, expected, &held) {
            cx.faults.push(fault.at(rank.id, None));
        }
    }
    if !rank.body.gradients.is_sorted() {
        let what = "gradients of inputs are not given in the order of the inputs";
        cx.faults.push(Fault::new("SW0511", what).at(rank.id, None));
    }
}

/// The part of an input that a rank gets the gradient of.
fn wanted(cx: &mut Context<'_>, rank: &Rank<'_>, tensor: TensorId) -> Option<ListId> {
    if !cx.facts.reached(tensor) {
        return None;
    }
    let whole = Region::whole(&cx.facts.flat[tensor.index()]);
    let region = match cx.program.boundary.inputs {
        Inputs::Global => &whole,
        Inputs::Local => {
            rank.own.inputs().nth(rank.body.inputs.iter().position(|input| *input == tensor)?)?
        }
    };
    Some(cx.store.intervals.number(&region.0))
}

fn gradient_fits(
    cx: &mut Context<'_>,
    tensor: TensorId,
    expected: Option<ListId>,
    given: &[Held],
) -> Result<(), Fault> {
    let quantity = Quantity { tensor, grad: true };
    match (expected, given) {
        (None, []) => Ok(()),
        (Some(region), [held]) if held.of == quantity && held.region == region => {
            complete(cx, quantity, region, &[held.share])
        }
        (Some(region), [held]) => {
            let text = cx.region_text(tensor, region);
            let name = cx.name(tensor);
            Err(Fault::new(
                "SW0511",
                format!("the gradient given for the input {name} is that of something else"),
            )
            .why(format!("expected the gradient of {name}{text}, found {}", cx.text(*held))))
        }
        _ => {
            let (name, wanted) = (cx.name(tensor), usize::from(expected.is_some()));
            Err(Fault::new(
                "SW0511",
                format!("the gradient of the input {name} is given the wrong number of times"),
            )
            .why(format!("expected {wanted}, found {}", given.len())))
        }
    }
}
