//! Constraints of a search: what the plans that are looked for must respect ([`plan::constraints`]).
//!
//! They leave out choices of operators before anything is priced ([`Constraints::against`]), and plans with names before
//! they are lowered. Every plan that is told was looked at once more, part by part on its devices ([`Constraints::broken`]),
//! whoever made it. Where no plan is left, [`clash`] says which constraints cannot hold together.

pub(crate) mod clash;
mod obeys;

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::ops::Range;

use cluster::Cluster;
use diag::{Error, Result};
use graph::{Graph, OpId};
use plan::constraints::{Along, Constraint, Demand, Level, Says, Ways, read};
use plan::{Plan, sets};
use rules::Analysis;

/// What a search must respect.
#[derive(Clone, Debug)]
pub struct Constraints {
    pub all: Vec<Constraint>,
    /// For each operator who demands what of it.
    demands: Vec<Vec<(usize, Demand)>>,
    /// For each operator who says on which devices it is.
    on: Vec<Vec<usize>>,
    /// The node of each device.
    nodes: Vec<usize>,
    pub(crate) memory: Option<u64>,
}

impl Constraints {
    /// Reads a file that is called so, for a model on the first devices of a cluster.
    pub fn read(
        text: &str,
        called: &str,
        graph: &Graph,
        analysis: &Analysis,
        cluster: &Cluster,
        devices: u32,
    ) -> Result<Self> {
        let mut all = read(text, called, graph, analysis, devices)?;
        let nodes: Vec<usize> =
            (0..devices.min(cluster.devices())).map(|device| cluster.node(device)).collect();
        for constraint in &mut all {
            let says = resolved(&constraint.says, graph, analysis, &nodes);
            constraint.says = says.map_err(|error| error.at(constraint.place.clone()))?;
        }
        Self::new(all, graph, nodes)
    }

    fn new(all: Vec<Constraint>, graph: &Graph, nodes: Vec<usize>) -> Result<Self> {
        let (demands, on) = (vec![vec![]; graph.ops.len()], vec![vec![]; graph.ops.len()]);
        let mut constraints = Self { all: vec![], demands, on, nodes, memory: None };
        for (number, constraint) in all.iter().enumerate() {
            match &constraint.says {
                Says::Ways(demands) => {
                    for demand in demands {
                        constraints.demands[demand.op.index()].push((number, demand.clone()));
                    }
                }
                Says::Memory(size) => {
                    let size = compiler::bytes(size).map_err(|error| error.at(constraint.place.clone()))?;
                    constraints.memory = Some(constraints.memory.map_or(size, |known| known.min(size)));
                }
                Says::Devices { ops, .. } => {
                    ops.iter().for_each(|op| constraints.on[op.index()].push(number));
                }
                _ => {}
            }
        }
        Ok(Self { all, ..constraints })
    }

    /// Some of them.
    pub(crate) fn only(&self, keep: &BTreeSet<usize>, graph: &Graph) -> Result<Self> {
        let all = keep.iter().map(|number| self.all[*number].clone()).collect();
        Self::new(all, graph, self.nodes.clone())
    }

    /// Who forbids this of an operator that all devices run: how often its loops are divided, in all and among the
    /// devices of a node.
    pub(crate) fn against(&self, op: OpId, all: &Ways, inside: &Ways) -> Vec<usize> {
        let between = between(all, inside);
        let broken = |demand: &Demand| !demand.holds(of_level(demand.level, all, &between, inside));
        let ways = self.demands[op.index()].iter().filter(|(_, it)| broken(it)).map(|(number, _)| *number);
        let everywhere = |number: &usize| match &self.all[*number].says {
            Says::Devices { devices, .. } => {
                (0..).zip(&self.nodes).all(|(device, _)| devices.contains(&device))
            }
            _ => true,
        };
        ways.chain(self.on[op.index()].iter().copied().filter(|number| !everywhere(number))).collect()
    }

    /// What is demanded of an operator, as text, with a word for each of its loops: empty if nothing is.
    pub(crate) fn mark<W: Debug + Ord>(&self, op: OpId, word: impl Fn(usize) -> W) -> String {
        let along = |along: &Along| {
            let words: BTreeSet<W> = along.loops.iter().map(|index| word(*index)).collect();
            (words, along.least, along.most)
        };
        let demands: Vec<_> = (self.demands[op.index()].iter())
            .map(|(_, it)| (it.level, it.along.iter().map(along).collect::<Vec<_>>(), it.only, it.copies))
            .collect();
        let on: Vec<_> = self.on[op.index()].iter().map(|number| &self.all[*number].text).collect();
        if demands.is_empty() && on.is_empty() { String::new() } else { format!("{demands:?} {on:?}") }
    }

    /// The loops of an operator that must be divided.
    pub(crate) fn divides(&self, op: OpId) -> impl Iterator<Item = usize> + '_ {
        self.demands[op.index()].iter().flat_map(|(_, demand)| demand.divides())
    }

    /// Operators that must be divided alike, and who says so.
    pub(crate) fn ties(&self) -> impl Iterator<Item = (usize, &Vec<OpId>)> {
        self.all.iter().enumerate().flat_map(|(number, constraint)| {
            let sets: &[Vec<OpId>] = match &constraint.says {
                Says::Alike(sets) => sets,
                _ => &[],
            };
            sets.iter().map(move |set| (number, set))
        })
    }

    /// Without those that say on which devices something is: what they leave on groups of devices that are alike.
    pub(crate) fn anywhere(&self) -> Self {
        Self { on: vec![vec![]; self.on.len()], ..self.clone() }
    }

    /// Whether operators may be on all of some devices.
    pub(crate) fn lets(&self, ops: impl Iterator<Item = OpId>, mut devices: Range<u32>) -> bool {
        let numbers: BTreeSet<usize> = ops.flat_map(|op| self.on[op.index()].iter().copied()).collect();
        devices.all(|device| {
            numbers.iter().all(|number| match &self.all[*number].says {
                Says::Devices { devices, .. } => devices.contains(&device),
                _ => true,
            })
        })
    }

    /// So many sets of devices may run blocks one after the other.
    pub(crate) fn stages(&self) -> Option<u32> {
        let limits = self.all.iter().filter_map(|constraint| match constraint.says {
            Says::Stages(most) => Some(most),
            _ => None,
        });
        limits.min()
    }

    /// Who forbids that anything is computed again.
    pub(crate) fn no_recompute(&self) -> Option<usize> {
        self.all.iter().position(|constraint| constraint.says == Says::NoRecompute)
    }
}

fn of_level<'w>(level: Level, all: &'w Ways, between: &'w Ways, inside: &'w Ways) -> &'w Ways {
    match level {
        Level::All => all,
        Level::Between => between,
        Level::Inside => inside,
    }
}

/// What is left of all ways for nodes.
fn between(all: &Ways, inside: &Ways) -> Ways {
    Ways {
        loops: all.loops.iter().zip(&inside.loops).map(|(all, inside)| all.div_ceil(*inside)).collect(),
        value: all.value.div_ceil(inside.value),
        copies: all.copies.div_ceil(inside.copies),
    }
}

/// A named plan as what it demands of each operator; levels where nodes are alike.
fn resolved(says: &Says, graph: &Graph, analysis: &Analysis, nodes: &[usize]) -> Result<Says> {
    match says {
        Says::Ways(demands) if demands.iter().any(|it| it.level != Level::All) => {
            each(nodes)?;
            Ok(says.clone())
        }
        Says::Set { name, level } => {
            let all = u32::try_from(nodes.len()).unwrap_or(u32::MAX);
            let inside = each(nodes);
            let devices = match level {
                Level::All => all,
                Level::Between => all / inside?,
                Level::Inside => inside?,
            };
            let plan = sets::named(name, graph, analysis, devices)?;
            Ok(Says::Ways(demanded(&plan, graph, analysis, *level)))
        }
        _ => Ok(says.clone()),
    }
}

/// How many devices each node has, where that is one number.
fn each(nodes: &[usize]) -> Result<u32> {
    let count = |node: usize| nodes.iter().filter(|it| **it == node).count();
    let last = nodes.iter().copied().max().unwrap_or(0);
    let counts: BTreeSet<usize> = (0..=last).map(count).collect();
    match counts.iter().copied().collect::<Vec<_>>()[..] {
        [one] if one > 0 => Ok(u32::try_from(one).unwrap_or(u32::MAX)),
        _ => Err(Error::new("SW0335", "the nodes do not have the same number of devices")
            .why("a split between nodes needs equally many devices inside each node")
            .fix("leave `between nodes` and `inside nodes` out, or use whole nodes of one size")),
    }
}

fn demanded(plan: &Plan, graph: &Graph, analysis: &Analysis, level: Level) -> Vec<Demand> {
    let demand = |op: OpId| {
        let ways = obeys::ways(plan.op(op), analysis.op(op).loops.len());
        let along = ways.loops.iter().enumerate().filter(|(_, ways)| **ways > 1);
        let along = along.map(|(index, ways)| Along { loops: vec![index], least: *ways, most: *ways });
        Demand { op, level, along: along.collect(), only: true, copies: None }
    };
    graph.op_ids().map(demand).collect()
}

/// How an operator is divided by digits that stand for so many devices each.
pub(crate) fn by_digits<'d>(
    loops: usize,
    digits: impl Iterator<Item = (&'d Option<usize>, &'d u32)>,
) -> Ways {
    let mut ways = Ways { loops: vec![1; loops], value: 1, copies: 1 };
    for (on, size) in digits {
        match on {
            Some(index) => ways.loops[*index] *= size,
            None => ways.copies *= size,
        }
    }
    ways
}

/// How an operator's splits are named, those that divide anything.
pub(crate) fn named_splits(splits: &[plan::Split], analysis: &Analysis, op: OpId) -> Vec<(String, u32)> {
    let divides = splits.iter().filter(|split| split.parts > 1);
    divides.map(|split| (split.on.word(analysis, op), split.parts)).collect()
}
