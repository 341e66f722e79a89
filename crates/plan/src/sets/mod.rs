//! Named plans: well-known choices of the three primitives, found from the graph and not from the
//! names of its modules. Each set says how it divides an operator along its own axis of devices;
//! `data:2 x megatron:4` nests them, the first axis outermost.

mod coshard;
mod data;
mod megatron;
mod replicate;

use diag::{Error, Result};
use graph::{Graph, OpId};
use rules::Analysis;

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

/// One factor of a set's name: `megatron:4`.
struct Axis {
    set: &'static Set,
    size: u32,
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

/// Reads the axes and gives each a size, so that together they fill the devices.
fn axes(name: &str, devices: u32) -> Result<Vec<Axis>> {
    let mut read = vec![];
    for word in name.split(" x ").map(str::trim) {
        let (set, size) = match word.split_once(':') {
            Some((set, size)) => (
                set,
                Some(
                    size.parse::<u32>()
                        .ok()
                        .filter(|s| (1..=MOST).contains(s))
                        .ok_or_else(|| bad_size(word))?,
                ),
            ),
            None => (word, None),
        };
        let set = ALL.iter().find(|s| s.name == set).ok_or_else(|| unknown(set))?;
        read.push((*set, size));
    }
    let stated = product(read.iter().filter(|(set, _)| !set.in_turn).filter_map(|(_, size)| *size));
    let mut left = if devices % stated == 0 { devices / stated } else { 0 };
    let open = read.iter().filter(|(set, size)| size.is_none() && !set.in_turn).count();
    let mut seen = 0;
    let mut axes = vec![];
    for (set, size) in read {
        let size = match size {
            Some(size) => size,
            None if set.in_turn => return Err(bad_size(set.name)),
            None => {
                seen += 1;
                let share = if seen == open { left } else { near_root(left) };
                left /= share.max(1);
                share
            }
        };
        axes.push(Axis { set, size });
    }
    let total = product(axes.iter().filter(|a| !a.set.in_turn).map(|a| a.size));
    let only_in_turn = axes.iter().all(|a| a.set.in_turn);
    if only_in_turn && devices > 1 {
        // The parts are spread over the devices: `coshard:4` on two runs two on each.
        let replicate = &replicate::SET;
        axes.insert(0, Axis { set: replicate, size: devices });
        return spread_in_turn(axes, devices);
    }
    if total != devices {
        return Err(Error::new("SW0310", format!("`{name}` does not fill {devices} devices"))
            .why(format!("its axes make {total}"))
            .fix(
                "give each axis a size whose product is the number of devices, such as `data:2 x megatron:4`",
            ));
    }
    Ok(axes)
}

fn product(sizes: impl Iterator<Item = u32>) -> u32 {
    sizes.fold(1, u32::saturating_mul)
}

/// `coshard:4` on two devices is `megatron:2 x coshard:2`.
fn spread_in_turn(axes: Vec<Axis>, devices: u32) -> Result<Vec<Axis>> {
    let turn = axes.into_iter().find(|a| a.set.in_turn).expect("called with an axis that runs in turn");
    if turn.size % devices != 0 {
        return Err(
            bad_size(turn.set.name).why(format!("{} parts do not spread over {devices} devices", turn.size))
        );
    }
    Ok(vec![Axis { set: &megatron::SET, size: devices }, Axis { set: turn.set, size: turn.size / devices }])
}

/// The largest divisor not above the square root.
fn near_root(count: u32) -> u32 {
    (1..=count).take_while(|d| d * d <= count).filter(|d| count % d == 0).last().unwrap_or(1)
}

fn bad_size(word: &str) -> Error {
    Error::new("SW0310", format!("`{word}` needs a size"))
        .why("a size is a whole number, at least 1")
        .fix("write for example `coshard:2`")
}

fn unknown(set: &str) -> Error {
    let known: Vec<String> = ALL.iter().map(|s| format!("`{}`", s.name)).collect();
    Error::new("SW0311", format!("there is no plan named `{set}`"))
        .why("neither a well-known plan nor the path of a plan file is called so")
        .fix(format!(
            "use one of {}, a product such as `data:2 x megatron:2`, or a plan file",
            known.join(", ")
        ))
}
