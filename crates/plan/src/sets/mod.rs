//! Named plans: well-known choices of the three primitives, found from the graph and not from the
//! names of its modules. A set says how it divides an operator along its own axis of devices
//! (`data:2 x megatron:4` nests them, the first axis outermost), and may say anything else that a plan can.

pub mod auto;
mod axes;
mod batch;
mod bidirectional;
mod blocks;
mod coshard;
mod data;
mod exchanges;
mod expert;
mod image;
mod interlaced;
mod kf1b;
mod megatron;
mod name;
mod offload;
mod overlap;
mod partial;
mod recompute;
mod replicate;
mod saving;
mod schedules;
mod segments;
mod sequence;
mod stages;
mod term;
#[cfg(test)]
mod tests;
mod tokens;
mod whole_updates;
mod zero;

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use diag::{Error, Result};
use graph::{Graph, OpId, Source, TensorId};
use rules::Analysis;

use auto::Auto;
use axes::{Axis, Said, axes, besides};
use exchanges::Exchanges;
pub use name::PlanName;
pub use stages::cuts;
pub use term::{Argument, SetTerm};

use crate::classes::Classes;
use crate::{Draft, MOST, On, Plan, Schedule, Split, legal};

/// What a set is told about the model.
pub struct Model<'g> {
    pub graph: &'g Graph,
    pub analysis: &'g Analysis,
    pub classes: Classes,
    /// For each class whether an input of the model carries it.
    inputs: Vec<bool>,
    /// For each operator those that read what it makes.
    readers: Vec<Vec<OpId>>,
    /// The classes that `data` splits, once somebody asks.
    split: OnceCell<Vec<usize>>,
    /// For each operator its operations, if it is a product with a weight, likewise.
    products: OnceCell<Vec<u64>>,
    /// What cuts into stages depend on, likewise.
    work: OnceCell<stages::CutCosts>,
    /// The operators of each of the layers that repeat, likewise.
    layers: OnceCell<Vec<Vec<OpId>>>,
    /// Whether less is there where these are computed again, likewise.
    layers_save: OnceCell<bool>,
    /// Where there are none, or not: segments of all operators, likewise.
    segments: OnceCell<Vec<Vec<OpId>>>,
}

impl<'g> Model<'g> {
    pub fn new(graph: &'g Graph, analysis: &'g Analysis) -> Self {
        let mut readers: Vec<Vec<OpId>> = vec![vec![]; graph.ops.len()];
        for op in graph.op_ids() {
            for (maker, _) in graph.op(op).inputs().into_iter().filter_map(|t| graph.producer(t)) {
                let known = &mut readers[maker.index()];
                if known.last() != Some(&op) {
                    known.push(op);
                }
            }
        }
        let classes = Classes::new(graph, analysis);
        let inputs = input_classes(graph, analysis, &classes);
        Self {
            graph,
            analysis,
            classes,
            inputs,
            readers,
            split: OnceCell::new(),
            products: OnceCell::new(),
            work: OnceCell::new(),
            layers: OnceCell::new(),
            layers_save: OnceCell::new(),
            segments: OnceCell::new(),
        }
    }

    /// A parameter, or what is made of one parameter alone, such as a cast of it.
    fn is_weight(&self, tensor: TensorId) -> bool {
        match self.graph.tensor(tensor).source {
            Source::Param { .. } => true,
            Source::Op { op, .. } => match self.graph.op(op).inputs()[..] {
                [only] => self.is_weight(only),
                _ => false,
            },
            _ => false,
        }
    }
}

fn input_classes(graph: &Graph, analysis: &Analysis, classes: &Classes) -> Vec<bool> {
    let mut inputs = vec![false; classes.all.len()];
    for id in graph.tensor_ids() {
        if matches!(graph.tensor(id).source, Source::Input { .. }) {
            (0..analysis.flat(id).len()).for_each(|f| inputs[classes.of_factor(id, f)] = true);
        }
    }
    inputs
}

/// A well-known choice. What is not said of it is not so: `..Set::new(name, doc)`.
pub struct Set {
    pub name: &'static str,
    pub doc: &'static str,
    /// What the field calls it, which a plan's name may say instead.
    pub aliases: &'static [&'static str],
    /// How it divides operators along an axis of its own, if it does.
    pub along: Option<Along>,
    /// What devices along its axis share of a parameter, if its axis is one of the batch.
    pub shards: Option<Shards>,
    /// The operators that are no part of any stage, if it takes some out of a pipeline.
    pub aside: Option<fn(&Model<'_>, u32) -> Vec<bool>>,
    /// If it puts several blocks on each stage of `stages`: a number may stand behind its name.
    pub rounds: Option<Rounds>,
    /// In which order the blocks of a pipeline run, if it says so.
    pub schedule: Option<Schedule>,
    /// What it says besides, once all operators are divided, by the word behind its name: `recompute:none`; or by a
    /// [`NUMBER`], which is the size of its place.
    pub besides: &'static [(&'static str, Besides)],
    /// With what behind its name it saves memory, if it is multiplied in.
    pub saves: &'static [Argument],
    pub auto: Auto,
    /// Names that show its use; without any its own name does.
    pub examples: &'static [&'static str],
}

impl Set {
    const fn new(name: &'static str, doc: &'static str) -> Self {
        Self {
            name,
            doc,
            aliases: &[],
            along: None,
            shards: None,
            aside: None,
            rounds: None,
            schedule: None,
            besides: &[],
            saves: &[],
            auto: Auto::Never,
            examples: &[],
        }
    }

    /// Whether a number may stand behind its name; else a word may.
    fn has_number(&self) -> bool {
        self.along.is_some() || self.rounds.is_some() || self.besides(NUMBER).is_some()
    }

    /// What it says with this word behind its name.
    fn besides(&self, wanted: &str) -> Option<Besides> {
        self.besides.iter().find(|(word, _)| *word == wanted).map(|(_, says)| *says)
    }
}

/// A name is of one set.
impl PartialEq for Set {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Set {}

/// What the devices along an axis of the batch share of a parameter: each shares what those before it do, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Shards {
    Nothing,
    State,
    Gradients,
    Parameters,
}

/// In the place of a word: any number.
pub const NUMBER: &str = "n";

pub type Besides = fn(&Model<'_>, &mut Draft<'_>, &AxisPlace<'_>) -> Result<()>;

/// The axis of a set: neighbours on it are so many devices apart.
pub struct AxisPlace<'c> {
    pub size: u32,
    pub stride: u32,
    /// For each operator what is split along it.
    pub choice: &'c [Option<On>],
}

/// The block of each operator, but for those that are set aside, of so many stages and blocks for each.
pub type CutInRounds = fn(&Model<'_>, &[bool], u32, u32) -> Vec<u32>;

/// So many blocks for each stage.
#[derive(Clone, Copy)]
pub struct Rounds {
    /// How many blocks, of the number behind the name.
    pub count: fn(&Model<'_>, Option<u32>) -> Result<u32>,
    /// The block of each operator, of so many stages and blocks for each; some operators are no part of any.
    pub cut: CutInRounds,
    /// The stage of a block, of so many.
    pub stage: fn(u32, u32) -> u32,
}

pub type Choose = fn(&Model<'_>, u32) -> Vec<Option<usize>>;

pub type Why = fn(&Model<'_>, OpId, u32) -> String;

/// A choice along one axis of the devices.
pub struct Along {
    /// For each operator the loop that is split into so many parts, if any; otherwise it is copied.
    pub choose: Choose,
    /// Why an operator is not split into so many parts, where it is not.
    pub why: Why,
    /// If all parts of an operator run on the same device, one after another: how many of each.
    pub chunks: Option<Chunks>,
    /// Whether a model in which it finds nothing to split is refused.
    pub must_find: bool,
    /// If it places operators instead: the position of each along the axis.
    pub stages: Option<StageCut>,
    /// Of an axis of so many devices which of them each part is on, in turn where one has several; else each
    /// has one part.
    pub places: Option<fn(u32) -> Vec<u32>>,
    /// For each operator whether its parts exchange rows instead, if it has such that may.
    pub exchange: Option<Exchange>,
}

/// How many parts of each operator run in turn, where its loop is chosen: as many as the name says, or as the set finds
/// where that says nothing (zero).
pub type Chunks = fn(&Model<'_>, &[Option<usize>], u32) -> Vec<u32>;

/// For each operator how its parts exchange rows along an axis of so many devices, if that is worth it.
pub type Exchange = fn(&Model<'_>, u32) -> Vec<Option<On>>;

/// Cuts a model into so many stages: that of each operator. Some are no part of any.
pub type StageCut = fn(&Model<'_>, &[bool], u32) -> Vec<u32>;

impl Along {
    /// An axis along which a loop is split, each part on a device of its own; a model without any is refused.
    const fn new(choose: Choose, why: Why) -> Self {
        Self { choose, why, chunks: None, must_find: true, stages: None, places: None, exchange: None }
    }

    fn in_turn(&self) -> bool {
        self.chunks.is_some()
    }

    /// The device of each part of a loop, of so many along the axis.
    fn places(&self, size: u32) -> Vec<u32> {
        self.places.map_or_else(|| (0..size).collect(), |places| places(size))
    }
}

pub const ALL: &[&Set] = &[
    &replicate::SET,
    &data::SET,
    &expert::SET,
    &megatron::SET,
    &megatron::WITH_SEQUENCE,
    &sequence::SEQUENCE,
    &sequence::ZIGZAG,
    &sequence::ULYSSES,
    &image::SET,
    &coshard::SET,
    &recompute::SET,
    &offload::SET,
    &zero::ONE,
    &zero::TWO,
    &zero::THREE,
    &stages::SET,
    &interlaced::SET,
    &bidirectional::SET,
    &schedules::ONE_F_ONE_B,
    &schedules::GPIPE,
    &schedules::INTERLEAVED,
    &schedules::ZB_H1,
    &schedules::ZB_V,
    &schedules::TWO_BW,
    &kf1b::SET,
    &tokens::SET,
    &whole_updates::SET,
    &overlap::SET,
];

/// The batch's loop of each operator, as `data` finds it.
pub(crate) fn data_choice(model: &Model<'_>, parts: u32) -> Vec<Option<usize>> {
    data::choose(model, parts)
}

/// The classes of the batch, as `data` finds them.
pub(crate) fn batch_classes(model: &Model<'_>) -> Vec<usize> {
    batch::batch_classes(model)
}

/// Names that show each set, such as completion offers.
pub fn examples() -> impl Iterator<Item = &'static str> {
    ALL.iter()
        .flat_map(|set| if set.examples.is_empty() { std::slice::from_ref(&set.name) } else { set.examples })
        .copied()
}

/// The set that gives a pipeline this schedule.
pub fn of_schedule(schedule: Schedule) -> SetTerm {
    let set = ALL.iter().copied().find(|set| set.schedule == Some(schedule));
    SetTerm::bare(set.expect("every schedule has a name"))
}

/// For how many devices a plan of this name is, where the name itself says it.
pub fn devices_of(name: &str) -> Result<Option<u32>> {
    Ok(name.parse::<PlanName>()?.devices())
}

/// The plan that a name such as `data`, `coshard:2` or `data:2 x megatron:2` means.
pub fn named(name: &str, graph: &Graph, analysis: &Analysis, devices: u32) -> Result<Plan> {
    explained(name, graph, analysis, devices).map(|(plan, _)| plan)
}

/// The same, of a model that is looked at once for many names.
pub fn named_of(name: &PlanName, model: &Model<'_>, devices: u32) -> Result<Plan> {
    can_be_filled(&name.to_string(), devices)?;
    decided(name, model, devices)?.0.finish()
}

/// The same as [`named`], and for each operator why several devices compute the same of it, if they do.
pub fn explained(
    name: &str,
    graph: &Graph,
    analysis: &Analysis,
    devices: u32,
) -> Result<(Plan, Vec<Option<String>>)> {
    can_be_filled(name, devices)?;
    let name = name.parse()?;
    let model = Model::new(graph, analysis);
    let (draft, axes, choices) = decided(&name, &model, devices)?;
    let plan = draft.finish()?;
    let reasons = graph.op_ids().map(|op| reason(&model, op, &axes, &choices)).collect();
    Ok((plan, reasons))
}

fn can_be_filled(name: &str, devices: u32) -> Result<()> {
    if (1..=MOST).contains(&devices) {
        return Ok(());
    }
    Err(Error::new("SW0310", format!("`{name}` cannot fill {devices} devices"))
        .why("a plan has at least one device, and no more than can be listed")
        .fix(format!("give a number from 1 to {MOST}")))
}

/// The operators of each of the layers that repeat.
pub fn layers(graph: &Graph, analysis: &Analysis) -> Vec<Vec<OpId>> {
    recompute::layers(&Model::new(graph, analysis)).to_vec()
}

/// What a name decides, to be gone on with.
pub(crate) fn drafted<'g>(
    name: &str,
    graph: &'g Graph,
    analysis: &'g Analysis,
    devices: u32,
) -> Result<Draft<'g>> {
    decided(&name.parse()?, &Model::new(graph, analysis), devices).map(|(draft, ..)| draft)
}

/// The choices of each axis, too.
type Choices<'g> = (Draft<'g>, Vec<Axis>, Vec<Vec<Option<On>>>);

fn decided<'g>(name: &PlanName, model: &Model<'g>, devices: u32) -> Result<Choices<'g>> {
    let (graph, analysis) = (model.graph, model.analysis);
    let axes = axes(name, devices)?;
    let (mut choices, mut chunks) = (vec![], vec![]);
    for axis in &axes {
        let mut choice = (axis.along.choose)(model, axis.size);
        let counts = axis.along.chunks.map(|count| count(model, &choice, axis.size));
        counts
            .iter()
            .flatten()
            .zip(&mut choice)
            .filter(|(count, _)| **count < 2)
            .for_each(|(_, it)| *it = None);
        chunks.push(counts.unwrap_or_default());
        if axis.along.must_find && axis.size != 1 && choice.iter().all(Option::is_none) {
            return Err(Error::new(
                "SW0309",
                format!(
                    "`{}` finds nothing to split into {} parts in {}",
                    axis.set.name, axis.size, graph.model
                ),
            )
            .why(axis.set.doc)
            .fix("use another plan, or fewer devices for this axis"));
        }
        choices.push(choice);
    }
    let exchanges = Exchanges::new(model, &axes, &choices);
    let choices = with_partial_sums(model, &axes, &exchanges.instead_of(choices));
    let choices = exchanges.within(choices);
    let blocks = blocks::from_axes(name, model, &axes)?;
    let mut draft = Draft::new(graph, analysis, &name.to_string(), devices);
    let along: Vec<Vec<u32>> = axes.iter().map(|axis| axis.along.places(axis.size)).collect();
    let mut shared: BTreeMap<Vec<Nested>, Arc<[u32]>> = BTreeMap::new();
    for op in graph.op_ids() {
        let (splits, nested) = nest(model, op, (&axes, &along), &choices, &chunks, blocks.stage(op));
        draft.set(op, splits);
        let devices = shared.entry(nested).or_insert_with_key(|nested| places(&axes, &along, nested));
        draft.place(op, Arc::clone(devices))?;
    }
    blocks.each(graph).iter().for_each(|block| draft.block(block));
    for Said { besides, schedule, axis, number } in besides(name, &axes) {
        schedule.into_iter().for_each(|schedule| draft.schedule(schedule));
        if let Some(besides) = besides {
            let axis_place = place(&axes, &choices, axis);
            besides(model, &mut draft, &AxisPlace { size: number.unwrap_or(axis_place.size), ..axis_place })?;
        }
    }
    Ok((draft, axes, choices))
}

/// Where an axis lies; a set that has none says something of all devices.
fn place<'c>(axes: &[Axis], choices: &'c [Vec<Option<On>>], axis: Option<usize>) -> AxisPlace<'c> {
    let Some(axis) = axis else { return AxisPlace { size: 1, stride: 1, choice: &[] } };
    let inner = axes[axis + 1..].iter().filter(|inner| !inner.along.in_turn());
    AxisPlace {
        size: axes[axis].size,
        stride: inner.map(|inner| inner.size).product(),
        choice: &choices[axis],
    }
}

/// Why an operator is copied along the first axis along which it is.
fn reason(model: &Model<'_>, op: OpId, axes: &[Axis], choices: &[Vec<Option<On>>]) -> Option<String> {
    let copied = |(axis, choice): &(&Axis, &Vec<Option<On>>)| {
        axis.size > 1
            && !axis.along.in_turn()
            && axis.along.stages.is_none()
            && choice[op.index()].is_none_or(|on| on == On::Value)
    };
    let (axis, _) = axes.iter().zip(choices).find(copied)?;
    Some(format!("`{}`: {}", axis.set.name, (axis.along.why)(model, op, axis.size)))
}

/// Why a class that could be split is not.
pub(crate) fn too_few(what: &str, size: i64, parts: u32) -> String {
    format!("{what} has {size} elements, fewer than {parts} parts, and each part needs one")
}

/// What is chosen along each axis, with the operators that pass partial sums on. Parts that run in turn
/// are summed where they are, which costs nothing.
fn with_partial_sums(
    model: &Model<'_>,
    axes: &[Axis],
    choices: &[Vec<Option<usize>>],
) -> Vec<Vec<Option<On>>> {
    let spread = |i: &usize| !axes[*i].along.in_turn() && axes[*i].along.stages.is_none();
    let along = |index: usize| {
        if !spread(&index) || axes[index].size == 1 {
            return choices[index].iter().map(|c| c.map(On::Loop)).collect();
        }
        let others: Vec<&[Option<usize>]> =
            (0..axes.len()).filter(|i| *i != index).filter(spread).map(|i| &choices[i][..]).collect();
        partial::passed_on(model, &choices[index], &others, axes[index].size)
    };
    (0..axes.len()).map(along).collect()
}

/// How the parts of an operator go on along an axis.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Nested {
    /// In a stage.
    Stage(u32),
    /// So many in turn on each device.
    InTurn(u32),
    /// On devices as the axis says, or in their order.
    Along,
    InOrder,
}

/// How an operator is divided along all axes.
fn nest(
    model: &Model<'_>,
    op: OpId,
    (axes, along): (&[Axis], &[Vec<u32>]),
    choices: &[Vec<Option<On>>],
    chunks: &[Vec<u32>],
    stage: u32,
) -> (Vec<Split>, Vec<Nested>) {
    let (mut splits, mut nested) = (vec![], vec![]);
    for ((axis, along), (choice, chunks)) in axes.iter().zip(along).zip(choices.iter().zip(chunks)) {
        if axis.along.stages.is_some() {
            nested.push(Nested::Stage(stage));
            continue;
        }
        let fits = |split: &Split| {
            let all: Vec<Split> = splits.iter().copied().chain([*split]).collect();
            legal(model.graph, model.analysis, op, &all).is_ok()
        };
        let chosen = choice[op.index()];
        if axis.along.in_turn() {
            let before = |on: On| splits.iter().filter(|s| s.on == on).map(|s| s.parts).product::<u32>();
            let most = |on: On| chunks[op.index()].div_ceil(if axis.size == 0 { before(on) } else { 1 });
            let split = chosen.and_then(|on| {
                (2..=most(on)).rev().map(|parts| Split { on, parts }).find(|split| fits(split))
            });
            nested.push(Nested::InTurn(split.map_or(1, |split| split.parts)));
            splits.extend(split);
            continue;
        }
        let is_along = matches!(chosen, Some(On::Loop(_) | On::Exchange { .. }));
        let parts = if is_along { u32::try_from(along.len()).unwrap_or(u32::MAX) } else { axis.size };
        let gathered = chosen.and_then(|on| {
            if let On::Exchange { experts, .. } = on { Some(On::Loop(experts)) } else { None }
        });
        let ways = [chosen, gathered].into_iter().flatten();
        let chosen = ways.map(|on| Split { on, parts }).find(|s| fits(s));
        nested.push(if is_along && chosen.is_some() { Nested::Along } else { Nested::InOrder });
        splits.push(chosen.unwrap_or(Split { on: On::Copies, parts: axis.size }));
    }
    splits.retain(|s| s.parts > 1);
    (splits, nested)
}

/// The devices of parts that go on so.
fn places(axes: &[Axis], along: &[Vec<u32>], nested: &[Nested]) -> Arc<[u32]> {
    let mut places = vec![0];
    for ((axis, along), nested) in axes.iter().zip(along).zip(nested) {
        let within = |i: u32| places.iter().map(move |place| place * axis.size + i);
        places = match nested {
            Nested::Stage(stage) => within(*stage).collect(),
            Nested::InTurn(parts) => {
                places.iter().flat_map(|place| (0..*parts).map(move |_| *place)).collect()
            }
            Nested::Along => {
                places.iter().flat_map(|p| along.iter().map(move |i| p * axis.size + i)).collect()
            }
            Nested::InOrder => {
                places.iter().flat_map(|p| (0..axis.size).map(move |i| p * axis.size + i)).collect()
            }
        };
    }
    places.into()
}
