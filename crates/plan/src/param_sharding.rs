//! Where parameters live between steps.
//!
//! A parameter is held by every device whose operators read it, if nothing else is said. Devices that would
//! hold the same of it may divide it among them: each holds and updates a part, what operators read is
//! gathered from the parts, and its gradient is summed into them. However a parameter comes to be divided, its
//! update may be computed of the whole: one device gathers values and gradients, and hands the parts back.
//!
//! ```text
//! param "*": over 4                                  # devices 0..4, 4..8, ... keep a quarter each
//! param "h.*": over 4 by 2, gather step, reduce last # 0 2 4 6 and 1 3 5 7; gathered once a step
//! param "wte.weight": dim 1 over (0 2) (1 3)         # columns, not rows
//! param "ln_f.*": whole
//! param "h.*.mlp.*": update whole                    # and however it was divided before
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use diag::{Error, Result};
use graph::{Graph, Source, TensorId};
use rules::{Analysis, Region};

use crate::device_list::{device_list, devices_text};
use crate::glob::glob;
use crate::nearby::nearby;
use crate::ranges::ranges;
use crate::select::{clip, folded_path, numbers_of};
use crate::{MOST, OpPlan, Plan, no_device};

/// The devices of each group in the order of their parts.
pub type DeviceGroups = Arc<[Vec<u32>]>;

/// How one parameter is divided among devices that would hold the same of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParamSharding {
    /// No device is in two.
    pub groups: DeviceGroups,
    /// The dim that is cut; else the first that divides evenly, or the longest.
    pub dim: Option<usize>,
    pub gather: Gather,
    pub reduce: Reduce,
}

/// When what operators read is gathered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Gather {
    /// Once a step, and kept for all of it.
    Step,
    /// Before each use in forward and in backward, and freed after it.
    Pass,
}

/// When gradients are summed into the parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reduce {
    /// With the last micro-batch of a step: until then they add up as they arise.
    Last,
    /// With each micro-batch: what adds up are the parts.
    Each,
}

/// The homes of a plan, by the first name of a parameter.
pub type ParamShardings = BTreeMap<String, ParamSharding>;

/// Parameters whose update is computed of the whole, by their first names.
pub type Wholes = BTreeSet<String>;

/// What a line of a plan file says of some parameters.
pub(crate) struct Said {
    pub names: Vec<String>,
    /// Where they live, if that is said; `None` in it is whole.
    pub sharding: Option<Option<ParamSharding>>,
    /// Whether their update is computed of the whole, if that is said.
    pub update_whole: Option<bool>,
}

impl ParamSharding {
    /// In neighbourhoods of `size` devices that are `stride` apart.
    pub fn over(devices: u32, size: u32, stride: u32) -> DeviceGroups {
        let first = (0..devices).filter(|device| device / stride % size == 0);
        first.map(|first| (0..size).map(|i| first + i * stride).collect()).collect()
    }
}

/// The names of a parameter.
pub fn names(graph: &Graph, tensor: TensorId) -> &[String] {
    match &graph.tensor(tensor).source {
        Source::Param { names, .. } => names,
        _ => &[],
    }
}

/// Where a parameter lives, if that is said. One that forward writes is held by whoever reads it, as buffers are: what
/// is gathered of parts would have the old value.
pub fn param_sharding_of<'p>(plan: &'p Plan, graph: &Graph, tensor: TensorId) -> Option<&'p ParamSharding> {
    let names = names(graph, tensor).iter().filter(|_| graph.new_value(tensor).is_none());
    names.into_iter().find_map(|name| plan.param_shardings.get(name))
}

/// Whether forward writes a parameter, named by its first name.
pub(crate) fn is_written(graph: &Graph, name: &str) -> bool {
    graph.held(name).is_some_and(|held| graph.new_value(held).is_some())
}

/// Whether a parameter lives on the host; one that forward writes does not.
pub fn lives_on_host(plan: &Plan, graph: &Graph, tensor: TensorId) -> bool {
    let is_said = names(graph, tensor).iter().any(|name| plan.held_on_host.contains(name));
    is_said && graph.new_value(tensor).is_none()
}

/// Whether the optimizer's state of a parameter that is on its device is on the host between steps.
pub fn has_state_on_host(plan: &Plan, graph: &Graph, tensor: TensorId) -> bool {
    let is_said = names(graph, tensor).iter().any(|name| plan.state_on_host.contains(name));
    is_said && !lives_on_host(plan, graph, tensor)
}

/// Whether a parameter's update is computed of the whole.
pub fn is_updated_whole(plan: &Plan, graph: &Graph, tensor: TensorId) -> bool {
    names(graph, tensor).iter().any(|name| plan.wholes.contains(name))
}

/// What each device reads of a parameter; nothing is known where an operator gives an operand only to its first part.
fn readers(
    graph: &Graph,
    analysis: &Analysis,
    ops: &[OpPlan],
    tensor: TensorId,
) -> Option<BTreeMap<u32, BTreeSet<Region>>> {
    let mut parts: BTreeMap<u32, BTreeSet<Region>> = BTreeMap::new();
    for op in graph.op_ids() {
        let (plan, whole) = (&ops[op.index()], analysis.op(op).whole());
        let rule = analysis.rules[op.index()].as_ref();
        for (input, _) in graph.op(op).inputs().iter().enumerate().filter(|(_, read)| **read == tensor) {
            if rule.is_some_and(|rule| rule.inputs[input].once) {
                return None;
            }
            for (&device, index) in plan.devices.iter().zip(0..) {
                let at = plan.intervals(&whole, &plan.digits(index));
                let region = analysis.region(tensor, &analysis.op(op).inputs[input], &at);
                parts.entry(device).or_default().insert(region);
            }
        }
    }
    Some(parts)
}

/// The devices that read one and the same part of a parameter, for each part that several read.
pub(crate) fn readers_agree(
    graph: &Graph,
    analysis: &Analysis,
    ops: &[OpPlan],
    tensor: TensorId,
) -> Vec<Vec<u32>> {
    let mut same: BTreeMap<Region, Vec<u32>> = BTreeMap::new();
    for (device, mut regions) in readers(graph, analysis, ops, tensor).unwrap_or_default() {
        if let (Some(region), 0) = (regions.pop_first(), regions.len()) {
            same.entry(region).or_default().push(device);
        }
    }
    same.into_values().filter(|devices| devices.len() > 1).collect()
}

/// Refuses what was asked for and cannot be.
pub(crate) fn refuse(
    plan: &Plan,
    graph: &Graph,
    analysis: &Analysis,
    asked: &BTreeSet<String>,
) -> Result<()> {
    for tensor in graph.tensor_ids() {
        let Some(name) = names(graph, tensor).first().filter(|name| asked.contains(*name)) else { continue };
        let Some(sharding) = plan.param_shardings.get(name) else { continue };
        if is_written(graph, name) {
            return Err(Error::new(
                "SW0143",
                format!("the parameter `{name}` cannot be divided: a forward writes it"),
            )
            .why("gathered copies of it would keep the old value")
            .fix(
                "leave the line out, or write `whole` for it, or keep what the forward writes in a buffer",
            ));
        }
        let parts = sharding.groups.iter().map(Vec::len).max().unwrap_or(0);
        let shape = &graph.tensor(tensor).shape;
        let length = sharding.dim.map(|dim| shape.get(dim).copied().unwrap_or(0));
        if let (Some(dim), Some(length)) = (sharding.dim, length) {
            if usize::try_from(length).unwrap_or(0) < parts {
                return Err(Error::new(
                    "SW0322",
                    format!("dim {dim} of `{name}` cannot be divided into {parts} parts"),
                )
                .why(format!("its shape is {shape:?}"))
                .fix("name another dim, or none: then a dim that fits is chosen"));
            }
        }
        let Some(reads) = readers(graph, analysis, &plan.ops, tensor) else { continue };
        let apart = |group: &Vec<u32>| {
            let other = group.iter().find(|device| reads.get(*device) != reads.get(&group[0]));
            other.map(|other| (group[0], *other))
        };
        if let Some((one, other)) = sharding.groups.iter().find_map(apart) {
            return Err(Error::new(
                "SW0321",
                format!("`{name}` cannot be divided between devices {one} and {other}"),
            )
            .why("the two devices read different parts of it")
            .fix("shard it among devices that read the same part of it, or write `whole` for it"));
        }
    }
    Ok(())
}

/// Refuses devices that are not there, or are named twice.
pub(crate) fn validate(plan: &Plan) -> Result<()> {
    let mut seen: BTreeSet<*const Vec<u32>> = BTreeSet::new();
    for (name, sharding) in
        plan.param_shardings.iter().filter(|(_, sharding)| seen.insert(sharding.groups.as_ptr()))
    {
        let mut known = vec![false; plan.devices as usize];
        for &device in sharding.groups.iter().flatten() {
            match known.get_mut(device as usize) {
                None => return Err(no_device(i64::from(device), plan.devices)),
                Some(true) => {
                    return Err(Error::new(
                        "SW0319",
                        format!("device {device} is to hold two parts of `{name}`"),
                    )
                    .why("each device of a group holds one shard, and no device is in two groups")
                    .fix("name each device once"));
                }
                Some(slot) => *slot = true,
            }
        }
    }
    Ok(())
}

/// The homes of several units of devices.
pub(crate) fn repeated(param_shardings: &ParamShardings, unit: u32, units: u32) -> ParamShardings {
    let moved = |sharding: &ParamSharding| -> DeviceGroups {
        let all = (0..units).flat_map(|u| sharding.groups.iter().map(move |group| (u * unit, group)));
        all.map(|(by, group)| group.iter().map(|device| device + by).collect()).collect()
    };
    param_shardings
        .iter()
        .map(|(name, sharding)| (name.clone(), ParamSharding { groups: moved(sharding), ..sharding.clone() }))
        .collect()
}

/// What a line of a plan file says.
pub(crate) fn read(line: &str, graph: &Graph, devices: u32) -> Result<Said> {
    let bad = |what: &str| {
        Error::new("SW0301", format!("`{}` does not say which devices share a parameter", clip(what)))
            .why(format!("parameters are shared in groups of equal size, and there are {devices} devices"))
            .fix("write `param \"h.*\": over 4`, or `whole`; `dim 1` before it, `by 2` after it, then `, gather step` or `pass`, `, reduce last` or `each`, `, update whole` or `part`")
    };
    let (who, what) = line.rsplit_once(':').ok_or_else(|| bad(line))?;
    let pattern = who.trim().strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    let names = select(pattern.ok_or_else(|| bad(who))?, graph)?;
    let mut words = what.split(',').map(str::trim).peekable();
    let mut said = Said { names, sharding: None, update_whole: None };
    if let Some(place) = words.next_if(|word| !word.starts_with("update")) {
        let sharding = (place != "whole").then(|| read_place(place, devices).ok_or_else(|| bad(place)));
        let made = |(dim, groups)| ParamSharding { groups, dim, gather: Gather::Pass, reduce: Reduce::Each };
        said.sharding = Some(sharding.transpose()?.map(made));
    }
    for word in words {
        let sharding = said.sharding.as_mut().and_then(Option::as_mut);
        match (word.split_whitespace().collect::<Vec<_>>()[..].as_ref(), sharding) {
            (["gather", when], Some(sharding)) => {
                sharding.gather = parse(&Gather::NAMES, when).ok_or_else(|| bad(word))?;
            }
            (["reduce", when], Some(sharding)) => {
                sharding.reduce = parse(&Reduce::NAMES, when).ok_or_else(|| bad(word))?;
            }
            (["update", update], _) => {
                said.update_whole = Some(parse(&UPDATES, update).ok_or_else(|| bad(word))?);
            }
            _ => return Err(bad(word)),
        }
    }
    Ok(said)
}

fn read_place(place: &str, devices: u32) -> Option<(Option<usize>, DeviceGroups)> {
    let (dim, over) = match place.strip_prefix("dim ") {
        Some(rest) => {
            let (dim, over) = rest.trim().split_once(' ')?;
            (Some(dim.parse().ok()?), over.trim())
        }
        None => (None, place),
    };
    let over = over.strip_prefix("over")?.trim();
    if over.starts_with('(') {
        let groups = over.strip_suffix(')')?.split(')').map(|group| group.trim().strip_prefix('('));
        let group = |text: &str| device_list(text).ok();
        let groups: Option<Vec<Vec<u32>>> = groups.map(|text| group(text?)).collect();
        return Some((dim, groups?.into()));
    }
    let (size, stride) = match over.split_once("by") {
        Some((size, stride)) => (size.trim().parse().ok()?, stride.trim().parse().ok()?),
        None => (over.parse().ok()?, 1),
    };
    let block = u64::from(size) * u64::from(stride);
    let fits = block > 0 && block <= u64::from(MOST) && u64::from(devices) % block == 0;
    fits.then(|| (dim, ParamSharding::over(devices, size, stride)))
}

/// The first names of the parameters that a glob means.
pub(crate) fn select(pattern: &str, graph: &Graph) -> Result<Vec<String>> {
    let all: Vec<&[String]> =
        graph.tensor_ids().map(|id| names(graph, id)).filter(|n| !n.is_empty()).collect();
    let fits = |names: &&&[String]| names.iter().any(|name| glob(pattern, name));
    let selected: Vec<String> = all.iter().filter(fits).map(|names| names[0].clone()).collect();
    if !selected.is_empty() {
        return Ok(selected);
    }
    let near = nearby(pattern, all.iter().flat_map(|names| names.iter().map(String::as_str)));
    let why = match near[..] {
        [] => format!("the model has {} parameters, and none has a similar name", all.len()),
        _ => format!(
            "there is {}",
            near.iter().take(3).map(|n| format!("{n:?}")).collect::<Vec<_>>().join(", ")
        ),
    };
    Err(Error::new("SW0302", format!("no parameter is named {:?}", clip(pattern)))
        .why(why)
        .fix("names are those of `model.named_parameters()`; `*` stands for any text"))
}

/// Lines that say this of parameters.
pub(crate) fn print(plan: &Plan, graph: &Graph) -> String {
    let names: Vec<&String> =
        plan.param_shardings.keys().chain(&plan.wholes).collect::<BTreeSet<_>>().into_iter().collect();
    folded(&names, graph, |name| decision(plan, name), |pattern, said| format!("param {pattern:?}: {said}\n"))
}

/// A line for each of these parameters, of which something is said: those whose names differ in numbers only, and of
/// which the same is said, are one, and else runs of them.
pub(crate) fn folded(
    names: &[&String],
    graph: &Graph,
    said: impl Fn(&str) -> String,
    line: impl Fn(&str, &str) -> String,
) -> String {
    let mut folded: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for name in names {
        folded.entry(folded_path(name)).or_default().push(name);
    }
    let means = |pattern: &str, members: &[&str]| {
        let wanted: BTreeSet<&str> = members.iter().copied().collect();
        select(pattern, graph)
            .is_ok_and(|all| all.iter().map(String::as_str).collect::<BTreeSet<_>>() == wanted)
    };
    let mut lines = String::new();
    for (pattern, mut members) in folded {
        members.sort_by_key(|name| numbers_of(name));
        let first = said(members[0]);
        if members.iter().all(|name| said(name) == first) && means(&pattern, &members) {
            lines += &line(&pattern, &first);
            continue;
        }
        for same in members.chunk_by(|a, b| said(a) == said(b)) {
            let mut rest = same;
            for (pattern, count) in ranges(same) {
                let (run, behind) = rest.split_at(count);
                rest = behind;
                let one = if means(&pattern, run) { &[&pattern[..]][..] } else { run };
                one.iter().for_each(|name| lines += &line(name, &said(run[0])));
            }
        }
    }
    lines
}

fn decision(plan: &Plan, name: &str) -> String {
    let sharding = plan.param_shardings.get(name).map(|sharding| lives(sharding, plan.devices));
    let update = plan.wholes.contains(name).then(|| format!("update {}", name_of(&UPDATES, true)));
    sharding.into_iter().chain(update).collect::<Vec<_>>().join(", ")
}

fn lives(sharding: &ParamSharding, devices: u32) -> String {
    let dim = sharding.dim.map_or_else(String::new, |dim| format!("dim {dim} "));
    let over = regular(&sharding.groups, devices).unwrap_or_else(|| {
        let group = |group: &Vec<u32>| format!("({})", devices_text(group));
        sharding.groups.iter().map(group).collect::<Vec<_>>().join(" ")
    });
    format!("{dim}over {over}, gather {}, reduce {}", sharding.gather.name(), sharding.reduce.name())
}

fn regular(groups: &DeviceGroups, devices: u32) -> Option<String> {
    let first = groups.first()?;
    let size = u32::try_from(first.len()).ok()?;
    let stride = first.get(1).map_or(Some(1), |second| second.checked_sub(first[0]))?;
    let block = size.checked_mul(stride).filter(|block| *block > 0 && devices % block == 0)?;
    debug_assert!(block <= devices);
    let by = if stride == 1 { String::new() } else { format!(" by {stride}") };
    (ParamSharding::over(devices, size, stride) == *groups).then(|| format!("{size}{by}"))
}

const UPDATES: [(bool, &str); 2] = [(true, "whole"), (false, "part")];

impl Gather {
    const NAMES: [(Gather, &'static str); 2] = [(Gather::Step, "step"), (Gather::Pass, "pass")];

    pub fn name(self) -> &'static str {
        name_of(&Self::NAMES, self)
    }
}

impl Reduce {
    const NAMES: [(Reduce, &'static str); 2] = [(Reduce::Last, "last"), (Reduce::Each, "each")];

    pub fn name(self) -> &'static str {
        name_of(&Self::NAMES, self)
    }
}

fn name_of<T: Copy + PartialEq>(names: &[(T, &'static str)], value: T) -> &'static str {
    names.iter().find(|row| row.0 == value).expect("every value has a name").1
}

fn parse<T: Copy>(names: &[(T, &'static str)], word: &str) -> Option<T> {
    names.iter().find(|row| row.1 == word).map(|row| row.0)
}
