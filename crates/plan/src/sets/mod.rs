//! Named plans: well-known choices of the three primitives, found from the graph and not from the
//! names of its modules. Each set says how it divides an operator along its own axis of devices;
//! `data:2 x megatron:4` nests them, the first axis outermost.

mod coshard;
mod data;
mod megatron;
mod name;
mod replicate;

use diag::{Error, Result};
use graph::{Graph, OpId};
use rules::Analysis;

pub use name::devices_of;
use name::{Axis, axes};

use crate::classes::Classes;
use crate::{Draft, MOST, On, Plan, Split, legal};

/// What a set is told about the model.
pub struct Model<'g> {
    pub graph: &'g Graph,
    pub analysis: &'g Analysis,
    pub classes: Classes,
}

/// A well-known choice along one axis of the devices.
pub struct Set {
    pub name: &'static str,
    pub doc: &'static str,
    /// For each operator the loop that is split into so many parts, if any; otherwise it is copied.
    pub choose: fn(&Model<'_>, u32) -> Vec<Option<usize>>,
    /// Whether all parts of an operator run on the same device, one after another.
    pub in_turn: bool,
    /// Whether a model in which it finds nothing to split is refused.
    pub must_find: bool,
}

pub const ALL: &[&Set] = &[&replicate::SET, &data::SET, &megatron::SET, &coshard::SET];

/// The batch's loop of each operator, as `data` finds it.
pub(crate) fn data_choice(model: &Model<'_>, parts: u32) -> Vec<Option<usize>> {
    (data::SET.choose)(model, parts)
}

/// The classes of the batch, as `data` finds them.
pub(crate) fn batch_classes(model: &Model<'_>) -> Vec<usize> {
    data::batch_classes(model)
}

/// The plan that a name such as `data`, `coshard:2` or `data:2 x megatron:2` means.
pub fn named(name: &str, graph: &Graph, analysis: &Analysis, devices: u32) -> Result<Plan> {
    if !(1..=MOST).contains(&devices) {
        return Err(Error::new("SW0310", format!("`{name}` cannot fill {devices} devices"))
            .why("a plan has at least one device, and no more than can be listed")
            .fix(format!("give a number from 1 to {MOST}")));
    }
    let axes = axes(name, devices)?;
    let model = Model { graph, analysis, classes: Classes::of(graph, analysis) };
    let mut choices = vec![];
    for axis in &axes {
        let choice = (axis.set.choose)(&model, axis.size);
        if axis.set.must_find && axis.size > 1 && choice.iter().all(Option::is_none) {
            return Err(Error::new(
                "SW0309",
                format!("`{}` finds nothing to split {} ways in {}", axis.set.name, axis.size, graph.model),
            )
            .why(axis.set.doc)
            .fix("use another plan, or fewer devices for this axis"));
        }
        choices.push(choice);
    }
    let mut draft = Draft::new(graph, analysis, name, devices);
    for op in graph.op_ids() {
        let (splits, places) = nest(&model, op, &axes, &choices);
        draft.set(op, splits);
        draft.place(op, &places)?;
    }
    draft.finish()
}

fn nest(
    model: &Model<'_>,
    op: OpId,
    axes: &[Axis],
    choices: &[Vec<Option<usize>>],
) -> (Vec<Split>, Vec<u32>) {
    let mut splits = vec![];
    let mut places = vec![0];
    for (axis, choice) in axes.iter().zip(choices) {
        let chosen = choice[op.index()].map(|index| Split { on: On::Loop(index), parts: axis.size });
        let fits = |split: &Split| {
            let all: Vec<Split> = splits.iter().copied().chain([*split]).collect();
            legal(model.graph, model.analysis, op, &all).is_ok()
        };
        let chosen = chosen.filter(|s| fits(s));
        if axis.set.in_turn {
            if let Some(split) = chosen {
                splits.push(split);
                places = places.iter().flat_map(|&p| (0..axis.size).map(move |_| p)).collect();
            }
            continue;
        }
        splits.push(chosen.unwrap_or(Split { on: On::Copies, parts: axis.size }));
        places = places.iter().flat_map(|&p| (0..axis.size).map(move |i| p * axis.size + i)).collect();
    }
    splits.retain(|s| s.parts > 1);
    (splits, places)
}
