//! Plans: all decisions made with the three primitives, as data.
//!
//! A [`Plan`] says for every operator how it is split ([`Split`], nested), on which devices its
//! sub-operators run, which operators must run before which, in which [`blocks`], what is computed again for backward
//! ([`recompute`]), and where parameters live between steps ([`param_sharding`]). [`primitives`] is how code makes
//! one (`trans`, `assign`, `order`), [`text`] how a file says it, [`sets`] the well-known ones.
//!
//! A plan knows devices by number only, and nothing of communication.

mod blocks;
pub mod constraints;
mod counterparts;
mod device_list;
pub mod dim_names;
mod exchange;
mod fit;
mod folded;
mod glob;
pub mod micro_batches;
mod model_dims;
mod nearby;
mod offload;
mod op_index;
mod order;
mod overlap;
pub mod param_sharding;
pub mod primitives;
pub mod random;
mod ranges;
mod recompute;
mod repeat;
mod rewriting;
mod select;
pub mod sets;
pub mod text;
mod timetables;
mod tokens;
mod transfer;

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use diag::{Error, Result};
use graph::{Graph, OpId};
use rules::{Analysis, Interval, Kind, Loop};

pub use blocks::schedule_named;
pub use exchange::exchanges;
pub use folded::print_folded;
pub use order::order;
pub use overlap::OVERLAP;
pub use param_sharding::{
    Gather, ParamSharding, ParamShardings, Reduce, Wholes, has_state_on_host, is_updated_whole,
    lives_on_host, param_sharding_of,
};
pub use primitives::{Decided, Draft, SubOp};
pub use recompute::teaching;
pub use repeat::repeat;
pub use rewriting::{carried, rewritings};
pub use rules::classes;
pub use rules::{On, Split};
pub use schedule::{Schedule, Task};
pub use sets::PlanName;
pub use timetables::{Timetables, loops, mixed_order, task_or_refuse};
pub use tokens::{InSlices, in_slices, rests_on, rewritten};
pub use transfer::{Side, Transferred, transfer};

/// The most devices of a plan: more is a mistake.
pub const MOST: u32 = rules::MOST_PARTS;

/// How one operator is divided and where its sub-operators run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct OpPlan {
    /// Nested, outermost first. Sub-operators are numbered with the last split running fastest.
    pub splits: Vec<Split>,
    /// A device for each sub-operator; any order, repeats allowed. Operators on the same devices share them.
    pub devices: Arc<[u32]>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    pub name: String,
    pub devices: u32,
    /// One for each operator of the graph.
    pub ops: Vec<OpPlan>,
    pub order: Vec<(OpId, OpId)>,
    /// Spans that are computed again for backward, outer ones before those inside of them.
    pub recompute: Vec<Vec<OpId>>,
    /// Operators of which what is kept for backward is on the host until then; what is in one set goes and comes
    /// together, and no operator is in two.
    pub offload: Vec<Vec<OpId>>,
    /// Parameters that devices divide among them.
    pub param_shardings: ParamShardings,
    /// The block of each operator; empty if all are in one.
    pub blocks: Vec<u32>,
    pub schedule: Schedule,
    /// How many slices of the sequence each block runs one after another.
    pub tokens: u32,
    /// In backward, messages of at least so many bytes run while gradients of parameters are computed.
    pub overlap: u64,
    /// Tasks of blocks, of which the first comes before the second, for every micro-batch.
    pub before: Vec<(Task, Task)>,
    pub timetables: Timetables,
    /// Parameters whose update is computed of the whole, where devices hold parts.
    pub wholes: Wholes,
    /// The first names of parameters of which the optimizer's state is on the host between steps.
    pub state_on_host: BTreeSet<String>,
    /// The first names of parameters that live on the host, with the optimizer's state of them.
    pub held_on_host: BTreeSet<String>,
}

impl OpPlan {
    pub fn count(&self) -> u32 {
        self.splits.iter().map(|s| s.parts).product()
    }

    /// The position of a sub-operator in each split.
    pub fn digits(&self, mut index: u32) -> Vec<u32> {
        let mut digits: Vec<u32> = self.splits.iter().map(|_| 0).collect();
        for (digit, split) in digits.iter_mut().zip(&self.splits).rev() {
            *digit = index % split.parts;
            index /= split.parts;
        }
        digits
    }

    /// The intervals of an operator's loops that a sub-operator computes.
    pub fn intervals(&self, whole: &[Interval], digits: &[u32]) -> Vec<Interval> {
        let mut at = whole.to_vec();
        for (split, &digit) in self.splits.iter().zip(digits) {
            // Of the tokens for all experts a part computes as much as of all tokens for its experts.
            if let On::Loop(index) | On::Exchange { tokens: index, .. } = split.on {
                at[index] = at[index].part(digit, split.parts);
            }
        }
        at
    }
}

impl Plan {
    pub fn op(&self, op: OpId) -> &OpPlan {
        &self.ops[op.index()]
    }

    /// Refuses what no rule allows, and an order that cannot be. Every plan is validated before it is lowered.
    pub fn validate(&self, graph: &Graph, analysis: &Analysis) -> Result<()> {
        // Operators on the same devices share them, and these may be many.
        let mut seen = HashSet::new();
        for op in graph.op_ids() {
            let is_new = seen.insert(self.op(op).devices.as_ptr());
            self.validate_op(graph, analysis, op, is_new).map_err(|e| e.at(place(graph, op)))?;
        }
        recompute::validate(self, graph)?;
        param_sharding::validate(self)?;
        blocks::validate(self, graph)?;
        tokens::validate(graph, analysis, self)?;
        order(graph, self).map(|_| ())
    }

    /// An operator; and its devices, if these are new.
    fn validate_op(&self, graph: &Graph, analysis: &Analysis, op: OpId, is_new: bool) -> Result<()> {
        let plan = self.op(op);
        legal(graph, analysis, op, &plan.splits)?;
        let who = || title(graph, op);
        if plan.devices.len() != plan.count() as usize {
            return Err(Error::new(
                "SW0307",
                format!("{} has {} parts but {} devices", who(), plan.count(), plan.devices.len()),
            )
            .why("each part runs on one device")
            .fix("name one device for each part; devices may repeat"));
        }
        exchange::on_devices(graph, analysis, op, plan)?;
        let devices = if is_new { &plan.devices[..] } else { &[] };
        match devices.iter().find(|&&d| d >= self.devices) {
            Some(device) => Err(no_device(i64::from(*device), self.devices)),
            None => Ok(()),
        }
    }
}

/// The number of a plan's devices, as it is given.
pub fn number_of_devices(given: i64) -> Result<u32> {
    u32::try_from(given).map_err(|_| {
        Error::new("SW0306", format!("a plan cannot be for {given} devices"))
            .fix("give the number of devices that the program is to run on")
    })
}

/// An operator that a plan function took from elsewhere.
pub fn stranger() -> Error {
    Error::new("SW0302", "the operator is not in the graph that the draft is for")
        .fix("take it from `operators` of the graph that the plan function is given")
}

pub fn no_device(device: i64, devices: u32) -> Error {
    Error::new("SW0306", format!("there is no device {device}"))
        .why(format!("the plan is for {devices} devices, numbered from 0 to {}", devices.saturating_sub(1)))
        .fix("use another device, or plan for more of them")
}

/// Whether an operator may be split this way; an error says why not.
pub fn legal(graph: &Graph, analysis: &Analysis, op: OpId, splits: &[Split]) -> Result<()> {
    let dims = analysis.op(op);
    let mut left: Vec<i64> = dims.loops.iter().map(|l| l.size).collect();
    let mut count = 1_u64;
    for split in splits {
        if split.parts == 0 {
            return Err(Error::new("SW0305", format!("{} cannot be split into 0 parts", title(graph, op)))
                .why("each part has at least one element")
                .fix("split it into at least one part"));
        }
        count = count.saturating_mul(u64::from(split.parts));
        if count > u64::from(MOST) {
            return Err(Error::new(
                "SW0305",
                format!("{} cannot be split into {count} parts", title(graph, op)),
            )
            .why(format!("an operator has at most {MOST} parts"))
            .fix("split it into fewer"));
        }
        match split.on {
            On::Copies => {}
            On::Value => {
                if !passes_shares(graph, analysis, op)
                    || splits.iter().filter(|s| s.on == On::Value).count() > 1
                {
                    return Err(Error::new(
                        "SW0304",
                        format!("{} may not be split by value", title(graph, op)),
                    )
                    .why("it needs whole operands, or is split by value already")
                    .fix(choices(analysis, op)));
                }
            }
            On::Exchange { tokens, experts } => {
                exchange::legal(graph, analysis, op, splits)?;
                for index in [tokens, experts] {
                    long_enough(graph, op, &dims.loops[index], left[index], split.parts)?;
                    left[index] /= i64::from(split.parts);
                }
            }
            On::Loop(index) => {
                let l = &dims.loops[index];
                if l.kind == Kind::Whole {
                    return Err(Error::new(
                        "SW0304",
                        format!("`{}` of {} may not be split", l.name, title(graph, op)),
                    )
                    .why(whole_reason(analysis, op))
                    .fix(choices(analysis, op)));
                }
                long_enough(graph, op, l, left[index], split.parts)?;
                left[index] /= i64::from(split.parts);
            }
        }
    }
    one_reduction(graph, analysis, op, splits)
}

/// Refuses more parts of a loop than the shortest part before has elements.
fn long_enough(graph: &Graph, op: OpId, it: &Loop, shortest: i64, parts: u32) -> Result<()> {
    if i64::from(parts) <= shortest {
        return Ok(());
    }
    let what = format!("`{}` of {} cannot be split into {parts} parts", it.name, title(graph, op));
    Err(Error::new("SW0305", what)
        .why(format!("it has {shortest} elements here"))
        .fix(format!("split it into at most {shortest}, or split another dim")))
}

/// The inputs of which an operator may be given partial sums: it is linear in them jointly, and
/// operators make them (what a rank holds of a parameter is always whole). Of several such sets the one
/// with the most elements: a weighted row and not its weight. None of what has no elements, whose parts
/// nothing tells apart.
pub fn value_operands<'a>(graph: &Graph, analysis: &'a Analysis, op: OpId) -> Option<&'a Vec<usize>> {
    if analysis.op(op).loops.iter().any(|l| l.size == 0) {
        return None;
    }
    let inputs = graph.op(op).inputs();
    let made = |set: &&Vec<usize>| set.iter().all(|&i| graph.producer(inputs[i]).is_some());
    let size = |set: &&Vec<usize>| -> i64 {
        set.iter().map(|&i| graph.tensor(inputs[i]).shape.iter().product::<i64>()).sum()
    };
    let sets = analysis.rules[op.index()].as_ref()?.linear().filter(made);
    sets.min_by_key(|set| std::cmp::Reverse(size(set)))
}

/// Whether an operator may be given shares of some kind of values that operators make.
fn passes_shares(graph: &Graph, analysis: &Analysis, op: OpId) -> bool {
    let inputs = graph.op(op).inputs();
    let rule = analysis.rules[op.index()].as_ref();
    let has_elements = analysis.op(op).loops.iter().all(|l| l.size > 0);
    let mut sets = rule.into_iter().flat_map(|rule| &rule.passes);
    has_elements && sets.any(|set| set.operands.iter().all(|&i| graph.producer(inputs[i]).is_some()))
}

/// Partial results of one operator are completed by one reduction.
fn one_reduction(graph: &Graph, analysis: &Analysis, op: OpId, splits: &[Split]) -> Result<()> {
    let dims = analysis.op(op);
    let mut kinds = splits.iter().filter(|s| s.parts > 1).filter_map(|s| match s.on {
        On::Loop(index) => match dims.loops[index].kind {
            Kind::Reduce(reduction) => Some(reduction),
            _ => None,
        },
        On::Value => Some(rules::Reduction::Sum),
        On::Copies | On::Exchange { .. } => None,
    });
    let first = kinds.next();
    if kinds.any(|k| Some(k) != first) {
        return Err(Error::new("SW0304", format!("{} may not be split this way", title(graph, op)))
            .why("its partial results would need two different reductions")
            .fix("split only one of the dims that it reduces, or dims that it keeps"));
    }
    Ok(())
}

fn whole_reason(analysis: &Analysis, op: OpId) -> String {
    match &analysis.rules[op.index()] {
        Some(rule) => format!("its rule is `{rule}`"),
        None => "no rule is known for this operator, so it can only be replicated".into(),
    }
}

/// The loops of an operator that may be split, for messages.
pub fn choices(analysis: &Analysis, op: OpId) -> String {
    let dims = analysis.op(op);
    let open: Vec<String> = (dims.loops.iter())
        .filter(|l| l.kind != Kind::Whole && l.size > 1)
        .map(|l| format!("`{}` ({})", l.name, l.size))
        .collect();
    if open.is_empty() { "replicate it".into() } else { format!("split one of {}", open.join(", ")) }
}

pub(crate) fn title(graph: &Graph, op: OpId) -> String {
    let it = graph.op(op);
    if it.module.is_empty() { it.target.clone() } else { format!("{} of {}", it.target, it.module) }
}

pub(crate) fn place(graph: &Graph, op: OpId) -> String {
    graph.op(op).line.clone()
}
