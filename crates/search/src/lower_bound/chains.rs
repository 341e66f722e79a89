//! Collectives for which a rank waits one after the other, because each depends on what the one before it completed.
//!
//! Forward: what an operator makes that is split along a summed loop is partial, until an operator reads it that is not
//! split by value. Backward: the gradient of what an operator reads whole, while it is split, is partial, until an operator
//! is reached that is split along the same axis; all others may pass it on as it is.

use std::rc::Rc;

use cluster::{Cluster, Collective, Contention};
use graph::{Graph, OpId, TensorId};
use plan::{On, Plan};
use rules::{Analysis, Kind};

use super::parts::OperatorCost;
use super::stages::{Axes, Stages, loop_of};

pub(super) struct Chains<'c> {
    pub(super) graph: &'c Graph,
    pub(super) analysis: &'c Analysis,
    pub(super) plan: &'c Plan,
    pub(super) costs: &'c [Rc<OperatorCost>],
    pub(super) stages: &'c Stages<'c>,
    pub(super) needs_grad: &'c [bool],
    pub(super) line: &'c LinkLine<'c>,
    /// If not all operators count, those that do.
    pub(super) among: Option<&'c [bool]>,
}

/// What a collective takes at least, in any of the groups of a stage.
pub(super) struct LinkLine<'c> {
    pub(super) cluster: &'c Cluster,
    /// For each stage and set of axes, as bits.
    along: Vec<Vec<AxisGroups>>,
    pub(super) axes: usize,
}

/// The groups along some axes, of those that lie alike one, and how many of them share links if all communicate at once.
struct AxisGroups {
    groups: Vec<Vec<u32>>,
    contention: Contention,
}

/// What must be waited for before a value is there: complete, or one of its parts, which has so many bytes.
#[derive(Clone, Copy, Debug)]
struct Wait {
    complete: f64,
    partial: Option<(f64, u64)>,
}

const NOTHING: Wait = Wait { complete: 0.0, partial: None };

impl<'c> LinkLine<'c> {
    pub(super) fn new(cluster: &'c Cluster, plan: &Plan, stages: &Stages<'_>) -> Self {
        let axes = stages.axes(plan);
        let equal = cluster.nodes.windows(2).all(|two| two[0] == two[1]);
        let along = |stage: usize, set: Axes| {
            let mut groups = stages.groups(plan, stage, set);
            let contention = cluster.contention(groups.iter().map(Vec::as_slice));
            if equal {
                groups.sort_by_cached_key(|group| shape(cluster, group));
                groups.dedup_by_key(|group| shape(cluster, group));
            }
            AxisGroups { groups, contention }
        };
        let of_stage = |stage: usize| (0..1 << axes).map(|set| along(stage, set)).collect();
        Self { cluster, along: (0..stages.count).map(of_stage).collect(), axes }
    }

    /// Whether devices that belong together are such along some axes.
    pub(super) fn are(&self, stage: usize, set: Axes, groups: &[Vec<u32>]) -> bool {
        self.along[stage][set].groups.iter().all(|group| groups.contains(group))
    }

    /// Messages that belong together may be one, and one may be cut in two that other ranks send.
    pub(super) fn seconds(&self, stage: usize, axis: usize, collective: Collective, bytes: u64) -> f64 {
        let seconds_of = |group: &Vec<u32>| self.in_group(group, collective, bytes as f64);
        least(self.along[stage][1 << axis].groups.iter().map(seconds_of))
    }

    /// Of what is gathered or scattered along some axes, by all at once: in one, or along one axis after the other, in
    /// whatever order.
    pub(super) fn scattered(&self, stage: usize, set: Axes, bytes: f64) -> f64 {
        let mut shortest = self.in_one(stage, set, bytes);
        for axis in (0..self.axes).map(|axis| 1 << axis).filter(|axis| set & axis != 0 && set != *axis) {
            let parts = self.along[stage][axis].groups.first().map_or(1, Vec::len) as f64;
            let others = self.scattered(stage, set & !axis, bytes / parts);
            shortest = shortest.min(self.in_one(stage, axis, bytes) + others);
        }
        shortest
    }

    fn in_one(&self, stage: usize, set: Axes, bytes: f64) -> f64 {
        let AxisGroups { groups, contention } = &self.along[stage][set];
        least(groups.iter().map(|group| self.scatters(group, *contention, bytes)))
    }

    fn in_group(&self, group: &[u32], collective: Collective, bytes: f64) -> f64 {
        let half = self.scatters(group, Contention(1), bytes);
        match collective {
            Collective::AllReduce if group.len() > 1 && bytes > 0.0 => {
                (2.0 * half).min(self.cluster.collective(Collective::AllReduce, group, Contention(1), bytes))
            }
            _ => half,
        }
    }

    fn scatters(&self, group: &[u32], contention: Contention, bytes: f64) -> f64 {
        match group.len() > 1 && bytes > 0.0 {
            true => self.cluster.least_of_scattered(group, contention, bytes),
            false => 0.0,
        }
    }
}

/// Nothing where there is none.
fn least(seconds: impl Iterator<Item = f64>) -> f64 {
    let shortest = seconds.fold(f64::INFINITY, f64::min);
    if shortest.is_finite() { shortest } else { 0.0 }
}

/// How many of a group are in each node.
fn shape(cluster: &Cluster, group: &[u32]) -> Vec<usize> {
    let mut nodes: Vec<usize> = group.iter().map(|device| cluster.node(*device)).collect();
    nodes.sort_unstable();
    let mut counts: Vec<usize> = nodes.chunk_by(|a, b| a == b).map(<[usize]>::len).collect();
    counts.sort_unstable();
    counts
}

impl Chains<'_> {
    /// For each stage the seconds of the longest chain of a micro-batch, forward and backward.
    pub(super) fn waits(&self) -> Vec<(f64, f64)> {
        let mut longest = vec![(0.0_f64, 0.0_f64); self.stages.count];
        for axis in 0..self.line.axes {
            let (forward, backward) = (self.forward(axis), self.backward(axis));
            for (stage, wait) in longest.iter_mut().enumerate() {
                *wait = (wait.0.max(forward[stage]), wait.1.max(backward[stage]));
            }
        }
        longest
    }

    /// Who makes a tensor in the same stage, if both count.
    fn maker(&self, tensor: TensorId, reader: OpId) -> Option<OpId> {
        let (maker, _) = self.graph.producer(tensor)?;
        let counts = |op: OpId| self.among.is_none_or(|among| among[op.index()]);
        let near = self.stages.of[maker.index()] == self.stages.of[reader.index()];
        (near && counts(maker) && counts(reader)).then_some(maker)
    }

    fn on(&self, op: OpId, axis: usize) -> On {
        self.plan.op(op).splits[axis].on
    }

    /// Of what an operator is split along, if it is a loop.
    fn kind(&self, op: OpId, axis: usize) -> Option<Kind> {
        let at = loop_of(self.plan.op(op).splits[axis])?;
        Some(self.analysis.op(op).loops[at].kind)
    }

    fn forward(&self, axis: usize) -> Vec<f64> {
        let mut longest = vec![0.0_f64; self.stages.count];
        let mut waits = vec![NOTHING; self.graph.ops.len()];
        for op in self.graph.op_ids() {
            let (stage, on) = (self.stages.of[op.index()], self.on(op, axis));
            let dims = self.analysis.op(op);
            let (mut before, mut parts) = (0.0_f64, None);
            for (input, tensor) in self.graph.op(op).inputs().into_iter().enumerate() {
                let Some(maker) = self.maker(tensor, op) else { continue };
                let wait = waits[maker.index()];
                before = before.max(wait.complete);
                let Some((since, bytes)) = wait.partial else { continue };
                if on == On::Value {
                    parts = larger(parts, Some((since, bytes.min(self.costs[op.index()].inputs[input]))));
                    continue;
                }
                let carried = matches!(on, On::Loop(at) if dims.inputs[input].contains(&Some(at)));
                let collective = if carried { Collective::ReduceScatter } else { Collective::AllReduce };
                before = before.max(since + self.line.seconds(stage, axis, collective, bytes));
            }
            longest[stage] = longest[stage].max(before);
            let made = self.costs[op.index()].outputs.iter().copied().min().unwrap_or(0);
            let sums = matches!(self.kind(op, axis), Some(Kind::Reduce(_)));
            let carried =
                matches!(on, On::Loop(at) if dims.outputs.iter().any(|out| out.contains(&Some(at))));
            let partial = if sums && !carried { Some((before, made)) } else { parts };
            let partial = partial.map(|(since, bytes)| (since, bytes.min(made)));
            waits[op.index()] = Wait { complete: before, partial };
        }
        longest
    }

    fn backward(&self, axis: usize) -> Vec<f64> {
        let mut longest = vec![0.0_f64; self.stages.count];
        let mut waits = vec![NOTHING; self.graph.ops.len()];
        for op in self.graph.op_ids().rev() {
            let stage = self.stages.of[op.index()];
            let (wait, split) = (waits[op.index()], loop_of(self.plan.op(op).splits[axis]));
            // What is split needs the gradient complete; whatever is not may pass on what it is given.
            let given = match (split, wait.partial) {
                (Some(_), Some((since, bytes))) => {
                    let sums = matches!(self.kind(op, axis), Some(Kind::Reduce(_)));
                    let collective = if sums { Collective::AllReduce } else { Collective::ReduceScatter };
                    let seconds = self.line.seconds(stage, axis, collective, bytes);
                    Wait { complete: wait.complete.max(since + seconds), partial: None }
                }
                _ => wait,
            };
            longest[stage] = longest[stage].max(given.complete);
            for (input, tensor) in self.graph.op(op).inputs().into_iter().enumerate() {
                let Some(maker) = self.maker(tensor, op).filter(|_| self.needs_grad[tensor.index()]) else {
                    continue;
                };
                let bytes = self.costs[op.index()].inputs[input];
                let carried = |at: usize| self.analysis.op(op).inputs[input].contains(&Some(at));
                let to = &mut waits[maker.index()];
                match split {
                    Some(at) if !carried(at) => {
                        to.partial = larger(to.partial, Some((given.complete, bytes)));
                    }
                    _ => {
                        to.complete = to.complete.max(given.complete);
                        let passed = given.partial.map(|(since, least)| (since, least.min(bytes)));
                        to.partial = larger(to.partial, passed);
                    }
                }
            }
        }
        longest
    }
}

/// The one that was waited for longer, of what is partial.
fn larger(a: Option<(f64, u64)>, b: Option<(f64, u64)>) -> Option<(f64, u64)> {
    match (a, b) {
        (Some(a), Some(b)) => Some(if b > a { b } else { a }),
        (a, b) => a.or(b),
    }
}
