//! The three primitives: `trans`, `assign`, `order`.
//!
//! A [`Draft`] is a plan in the making. `trans` divides an operator, once more each time it is
//! called; `assign` places a sub-operator; `order` puts one before another. [`Draft::finish`] gives
//! the plan, or says which operator was forgotten.

use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::sync::Arc;

use diag::{Error, Result};
use graph::{Graph, OpId, TensorId};
use rules::{Analysis, Kind};

use crate::classes::Classes;
use crate::exchange;
use crate::{
    OVERLAP, On, OpPlan, ParamSharding, ParamShardings, Plan, Schedule, Split, Task, Timetables, Wholes,
    blocks, legal, model_dims, no_device, offload, param_sharding, place, recompute, title,
};

/// One part of a divided operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SubOp {
    pub op: OpId,
    pub index: u32,
}

pub struct Draft<'g> {
    graph: &'g Graph,
    analysis: &'g Analysis,
    decided: Decided,
    /// Of the model's own dims, once one is named.
    classes: OnceCell<Classes>,
}

/// What a draft has decided so far, apart from the model it is about.
#[derive(Clone, Debug, Default)]
pub struct Decided {
    name: String,
    devices: u32,
    splits: Vec<Option<Vec<Split>>>,
    placed: Vec<PartDevices>,
    order: Vec<(OpId, OpId)>,
    /// `None` where nothing was said of it.
    recompute: Option<Vec<Vec<OpId>>>,
    offload: Vec<Vec<OpId>>,
    param_shardings: ParamShardings,
    /// The block of each operator that one was said of, and how many blocks there are.
    blocks: Vec<Option<u32>>,
    block_count: u32,
    schedule: Option<Schedule>,
    tokens: Option<u32>,
    overlap: Option<u64>,
    before: Vec<(Task, Task)>,
    timetables: Timetables,
    state_on_host: BTreeSet<String>,
    held_on_host: BTreeSet<String>,
    /// The parameters whose homes a person asked for.
    asked: BTreeSet<String>,
    wholes: Wholes,
}

/// The devices of an operator's parts: one after the other, or all at once.
#[derive(Clone, Debug)]
enum PartDevices {
    Some(Vec<Option<u32>>),
    All(Arc<[u32]>),
}

impl Default for PartDevices {
    fn default() -> Self {
        Self::Some(vec![])
    }
}

impl PartDevices {
    fn len(&self) -> usize {
        match self {
            Self::Some(devices) => devices.len(),
            Self::All(devices) => devices.len(),
        }
    }

    fn assigned(&self) -> Vec<u32> {
        match self {
            Self::Some(devices) => devices.iter().flatten().copied().collect(),
            Self::All(devices) => devices.to_vec(),
        }
    }

    /// None where a part has no device.
    fn all(&self) -> Option<Arc<[u32]>> {
        match self {
            Self::Some(devices) => devices.iter().copied().collect(),
            Self::All(devices) => Some(Arc::clone(devices)),
        }
    }

    fn assign(&mut self, part: usize, device: u32) -> Option<()> {
        if let Self::All(devices) = self {
            *self = Self::Some(devices.iter().copied().map(Some).collect());
        }
        let Self::Some(devices) = self else { return None };
        *devices.get_mut(part)? = Some(device);
        Some(())
    }
}

impl<'g> Draft<'g> {
    pub fn new(graph: &'g Graph, analysis: &'g Analysis, name: &str, devices: u32) -> Self {
        let count = graph.ops.len();
        let (splits, placed) = (vec![None; count], vec![PartDevices::default(); count]);
        let blocks = vec![None; count];
        let decided = Decided { name: name.into(), devices, splits, placed, blocks, ..Decided::default() };
        Self::resume(graph, analysis, decided)
    }

    /// Goes on with what was decided before, about the same model.
    pub fn resume(graph: &'g Graph, analysis: &'g Analysis, decided: Decided) -> Self {
        Self { graph, analysis, decided, classes: OnceCell::new() }
    }

    pub fn pause(self) -> Decided {
        self.decided
    }

    /// Divides every sub-operator of `op` into `parts`: along a dim by its name in the operator's rule or
    /// by that of a dim of the model (`idx.0`), into copies (`replicate`) or into partial sums (`value`).
    /// Called again, it divides further. Placements made before are forgotten.
    pub fn trans(&mut self, op: OpId, algo: &str, parts: u32) -> Result<Vec<SubOp>> {
        let mut splits = self.decided.splits[op.index()].clone().unwrap_or_default();
        let on = self.on(op, algo, parts, &splits).map_err(|e| e.at(place(self.graph, op)))?;
        splits.push(Split { on, parts });
        legal(self.graph, self.analysis, op, &splits).map_err(|e| e.at(place(self.graph, op)))?;
        self.set(op, splits);
        Ok(self.parts(op))
    }

    /// Whether `dim` is a dim of the model that an operator does not have, or has and may not split: along
    /// such a dim it can only be copied.
    pub fn goes_elsewhere(&self, op: OpId, dim: &str) -> bool {
        let has_loop = self.analysis.op(op).loops.iter().any(|l| l.name == dim);
        !has_loop && self.model_loops(op, dim).is_some_and(|loops| loops.is_empty())
    }

    /// Replaces all splits of an operator; they are validated in [`Draft::finish`].
    pub fn set(&mut self, op: OpId, splits: Vec<Split>) {
        let count: u32 = splits.iter().map(|s| s.parts).product();
        self.decided.splits[op.index()] = Some(splits);
        self.decided.placed[op.index()] = PartDevices::Some(vec![None; count as usize]);
    }

    /// Forgets what was decided for an operator.
    pub fn clear(&mut self, op: OpId) {
        self.decided.splits[op.index()] = None;
        self.decided.placed[op.index()] = PartDevices::default();
    }

    pub fn parts(&self, op: OpId) -> Vec<SubOp> {
        (0..self.decided.placed[op.index()].len())
            .map(|i| SubOp { op, index: u32::try_from(i).unwrap_or(u32::MAX) })
            .collect()
    }

    /// The devices of an operator's parts, in their order, as far as they are assigned.
    pub fn devices_of(&self, op: OpId) -> Vec<u32> {
        self.decided.placed[op.index()].assigned()
    }

    pub fn assign(&mut self, part: SubOp, device: u32) -> Result<()> {
        if device >= self.decided.devices {
            return Err(no_device(i64::from(device), self.decided.devices).at(place(self.graph, part.op)));
        }
        let placed = &mut self.decided.placed[part.op.index()];
        placed.assign(part.index as usize, device).ok_or_else(|| {
            let what = format!("{} has no part {}", title(self.graph, part.op), part.index);
            Error::new("SW0307", what)
                .at(place(self.graph, part.op))
                .why(format!("it is split into {}", placed.len()))
                .fix("use the parts that the last `trans` of this operator returned")
        })
    }

    /// Places all sub-operators of an operator, in order.
    pub fn place(&mut self, op: OpId, devices: impl Into<Arc<[u32]>>) -> Result<()> {
        let devices = devices.into();
        if devices.len() != self.decided.placed[op.index()].len() {
            return Err(Error::new(
                "SW0307",
                format!(
                    "{} has {} parts but {} devices",
                    title(self.graph, op),
                    self.decided.placed[op.index()].len(),
                    devices.len()
                ),
            )
            .at(place(self.graph, op))
            .why("each part runs on one device")
            .fix("name one device for each part; devices may repeat"));
        }
        if let Some(device) = devices.iter().find(|device| **device >= self.decided.devices) {
            return Err(no_device(i64::from(*device), self.decided.devices).at(place(self.graph, op)));
        }
        self.decided.placed[op.index()] = PartDevices::All(devices);
        Ok(())
    }

    pub fn order(&mut self, before: OpId, after: OpId) {
        self.decided.order.push((before, after));
    }

    /// Of these operators forward keeps only what they read from others, and backward computes them again.
    /// Spans may be inside of each other, and an empty one is none. Where none is said, it is what the model
    /// itself computes again.
    pub fn recompute(&mut self, span: Vec<OpId>) {
        self.decided.recompute.get_or_insert_default().push(span);
    }

    /// The next block: operators that run together for one micro-batch after another. What no block names goes with
    /// what it reads.
    pub fn block(&mut self, ops: &[OpId]) {
        let number = self.decided.block_count;
        ops.iter().for_each(|op| self.decided.blocks[op.index()] = Some(number));
        self.decided.block_count += 1;
    }

    /// The block of each operator, as far as one was said, and how they are cut instead.
    pub(crate) fn blocks(&self) -> &[Option<u32>] {
        &self.decided.blocks
    }

    pub(crate) fn cut(&mut self, blocks: Vec<u32>) {
        self.decided.block_count = blocks.iter().max().map_or(0, |last| last + 1);
        self.decided.blocks = blocks.into_iter().map(Some).collect();
    }

    pub(crate) fn splits_of(&self, op: OpId) -> &[Split] {
        self.decided.splits[op.index()].as_deref().unwrap_or_default()
    }

    /// In which order blocks run.
    pub fn schedule(&mut self, schedule: Schedule) {
        self.decided.schedule = Some(schedule);
    }

    /// Each block runs so many slices of the sequence one after another.
    pub fn tokens(&mut self, slices: u32) {
        self.decided.tokens = Some(slices);
    }

    /// In backward, messages of at least so many bytes run while gradients of parameters are computed.
    pub fn overlap(&mut self, bytes: u64) {
        self.decided.overlap = Some(bytes);
    }

    /// The first task comes before the second, for every micro-batch.
    pub fn order_tasks(&mut self, first: Task, then: Task) {
        self.decided.before.push((first, then));
    }

    /// What a device runs, one loop after the other.
    pub fn timetable(&mut self, device: u32, loops: Vec<schedule::ShapeLoop>) {
        self.decided.timetables.insert(device, loops);
    }

    /// What is kept of these operators for backward is on the host until then. What was said of them before
    /// no longer holds; of none it is said that nothing goes there.
    pub fn offload(&mut self, span: Vec<OpId>) {
        offload::replace(&mut self.decided.offload, span);
    }

    /// The optimizer's state of the parameters whose names fit a glob is on the host between steps, too, as a plan
    /// file says it: `"h.*" but "h.0.*"`; or of `none`.
    pub fn offload_state(&mut self, line: &str) -> Result<()> {
        self.offload_of(offload::Of::State, line)
    }

    /// The parameters whose names fit a glob live on the host, said in the same way, and the optimizer steps them there.
    pub fn offload_parameters(&mut self, line: &str) -> Result<()> {
        self.offload_of(offload::Of::Parameter, line)
    }

    pub(crate) fn offload_of(&mut self, kind: offload::Of, line: &str) -> Result<()> {
        let offloaded = match kind {
            offload::Of::State => &mut self.decided.state_on_host,
            offload::Of::Parameter => &mut self.decided.held_on_host,
        };
        match offload::named(kind, line, self.graph)? {
            Some(names) => offloaded.extend(names),
            None => offloaded.clear(),
        }
        Ok(())
    }

    /// Decides what another draft did about the same operators.
    pub fn follow(&mut self, other: Decided) {
        self.decided.splits = other.splits;
        self.decided.placed = other.placed;
        self.decided.order.extend(other.order);
        if let Some(spans) = other.recompute {
            self.decided.recompute.get_or_insert_default().extend(spans);
        }
        other.offload.into_iter().for_each(|span| self.offload(span));
        self.decided.param_shardings.extend(other.param_shardings);
        self.decided.schedule = other.schedule.or(self.decided.schedule);
        self.decided.tokens = other.tokens.or(self.decided.tokens);
        self.decided.overlap = other.overlap.or(self.decided.overlap);
        self.decided.before.extend(other.before);
        self.decided.timetables.extend(other.timetables);
        if other.block_count > 0 {
            (self.decided.blocks, self.decided.block_count) = (other.blocks, other.block_count);
        }
        self.decided.wholes.extend(other.wholes);
        self.decided.state_on_host.extend(other.state_on_host);
        self.decided.held_on_host.extend(other.held_on_host);
    }

    /// Where a parameter lives between steps; `None` is with all devices that read it. One that forward writes does.
    pub fn sharding(&mut self, parameter: TensorId, sharding: Option<ParamSharding>) {
        let sharding = sharding.filter(|_| self.graph.new_value(parameter).is_none());
        let Some(name) = param_sharding::names(self.graph, parameter).first() else { return };
        self.set_sharding(name, sharding);
    }

    /// Whether a parameter's update is computed of the whole, where devices hold parts.
    pub fn update_whole(&mut self, parameter: TensorId, is_whole: bool) {
        let Some(name) = param_sharding::names(self.graph, parameter).first() else { return };
        self.update(name, is_whole);
    }

    /// Where the parameters live whose names fit a glob, and how they are updated, as a plan file says it:
    /// `"h.*": over 4, gather step`.
    pub fn param(&mut self, line: &str) -> Result<()> {
        let said = param_sharding::read(line, self.graph, self.decided.devices)?;
        let is_one = said.names.len() == 1;
        for name in said.names {
            if let Some(is_whole) = said.update_whole {
                self.update(&name, is_whole);
            }
            if let Some(sharding) =
                said.sharding.as_ref().filter(|_| is_one || !param_sharding::is_written(self.graph, &name))
            {
                self.set_sharding(&name, sharding.clone());
                self.decided.asked.insert(name);
            }
        }
        Ok(())
    }

    fn update(&mut self, name: &str, is_whole: bool) {
        if is_whole {
            self.decided.wholes.insert(name.into());
        } else {
            self.decided.wholes.remove(name);
        }
    }

    /// The same by the parameter's first name.
    pub(crate) fn set_sharding(&mut self, name: &str, sharding: Option<ParamSharding>) {
        match sharding {
            Some(sharding) => self.decided.param_shardings.insert(name.into(), sharding),
            None => self.decided.param_shardings.remove(name),
        };
    }

    pub fn devices(&self) -> u32 {
        self.decided.devices
    }

    pub fn is_decided(&self, op: OpId) -> bool {
        self.decided.splits[op.index()].is_some()
    }

    pub fn finish(self) -> Result<Plan> {
        let mut ops = Vec::with_capacity(self.decided.splits.len());
        for (id, (splits, placed)) in
            self.graph.op_ids().zip(self.decided.splits.iter().zip(&self.decided.placed))
        {
            match (splits, placed.all()) {
                (Some(splits), Some(devices)) => ops.push(OpPlan { splits: splits.clone(), devices }),
                (Some(_), None) => {
                    return Err(self.forgotten(
                        id,
                        "a part of it has no device",
                        "assign every part to a device",
                    ));
                }
                (None, _) => {
                    let fix =
                        "say how it is split and where it runs; `op \"*\": replicate N` covers all others";
                    return Err(self.forgotten(id, "the plan does not mention it", fix));
                }
            }
        }
        let Decided { name, devices, order, recompute, offload, param_shardings, asked, wholes, .. } =
            self.decided;
        let Decided { state_on_host, held_on_host, before, timetables, .. } = self.decided;
        let one = self.decided.block_count < 2;
        let blocks = if one { vec![] } else { blocks::completed(self.graph, &self.decided.blocks) };
        let schedule = self.decided.schedule.filter(|_| !one).unwrap_or_default();
        let tokens = self.decided.tokens.unwrap_or(1);
        let overlap = self.decided.overlap.unwrap_or(OVERLAP);
        let recompute = recompute.map_or_else(|| recompute::of_model(self.graph), recompute::sorted);
        let offload = recompute::sorted(offload);
        let plan = Plan {
            name,
            devices,
            ops,
            order,
            recompute,
            offload,
            param_shardings,
            state_on_host,
            held_on_host,
            wholes,
            blocks,
            schedule,
            tokens,
            overlap,
            before,
            timetables,
        };
        plan.validate(self.graph, self.analysis)?;
        param_sharding::refuse(&plan, self.graph, self.analysis, &asked)?;
        Ok(plan)
    }

    fn forgotten(&self, op: OpId, why: &str, fix: &str) -> Error {
        Error::new("SW0308", format!("the plan is not complete: {}", self.graph.describe(op)))
            .at(place(self.graph, op))
            .why(why)
            .fix(fix)
    }

    /// An operator's loops over a dim of the model that may be split, if this is one's name.
    fn model_loops(&self, op: OpId, name: &str) -> Option<Vec<usize>> {
        let classes = self.classes.get_or_init(|| Classes::new(self.graph, self.analysis));
        let wanted = model_dims::classes(name, self.graph, self.analysis, classes)?;
        Some(wanted.into_iter().filter_map(|class| classes.open_loop(self.analysis, op, class)).collect())
    }

    /// What a word of `trans` means for an operator.
    fn on(&self, op: OpId, algo: &str, parts: u32, before: &[Split]) -> Result<On> {
        match algo {
            "replicate" => return Ok(On::Copies),
            "value" => return Ok(On::Value),
            _ => {}
        }
        if let Some(dim) = algo.strip_prefix("exchange ") {
            return exchange::along(self.on(op, dim.trim(), parts, before)?, self.graph, self.analysis, op);
        }
        let dims = self.analysis.op(op);
        if let Some(index) = dims.find(algo) {
            return Ok(On::Loop(index));
        }
        let left = |index: usize| {
            let done: u32 = before.iter().filter(|s| s.on == On::Loop(index)).map(|s| s.parts).product();
            dims.loops[index].size / i64::from(done.max(1))
        };
        // A dim of several factors by its plain name: the outermost factor that divides evenly.
        let factors: Vec<usize> = (0..dims.loops.len())
            .filter(|&i| {
                dims.loops[i].kind != Kind::Whole && dims.loops[i].name.split('.').next() == Some(algo)
            })
            .collect();
        let even = factors.iter().find(|&&i| left(i) % i64::from(parts.max(1)) == 0);
        let long = factors.iter().find(|&&i| left(i) >= i64::from(parts));
        if let Some(&index) = even.or(long).or(factors.first()) {
            return Ok(On::Loop(index));
        }
        if let Some(loops) = self.model_loops(op, algo) {
            let even = loops.iter().find(|&&i| left(i) % i64::from(parts.max(1)) == 0);
            if let Some(&index) = even.or(loops.first()) {
                return Ok(On::Loop(index));
            }
            return Err(Error::new(
                "SW0303",
                format!("`{algo}` does not go through {}, or may not be split there", title(self.graph, op)),
            )
            .why(crate::whole_reason(self.analysis, op))
            .fix(crate::choices(self.analysis, op)));
        }
        let error = match self.analysis.rules[op.index()].as_ref().and_then(|r| r.find(algo)) {
            Some(_) => {
                Error::new("SW0304", format!("`{algo}` of {} may not be split", title(self.graph, op)))
            }
            None => Error::new("SW0303", format!("{} has no dim `{algo}`", title(self.graph, op))),
        };
        Err(error.why(crate::whole_reason(self.analysis, op)).fix(crate::choices(self.analysis, op)))
    }
}
