//! Whether a plan respects constraints: walked part by part, whoever made it.

use std::collections::{BTreeMap, BTreeSet};

use diag::{Error, Result};
use graph::{Graph, OpId};
use plan::constraints::{Says, Ways};
use plan::{On, OpPlan, Plan};
use rules::Analysis;

use super::{Constraints, between, named_splits, of_level};

/// How often an operator's loops are divided, wherever its parts are.
pub(super) fn ways(plan: &OpPlan, loops: usize) -> Ways {
    let mut ways = Ways { loops: vec![1; loops], value: 1, copies: 1 };
    for split in &plan.splits {
        match split.on {
            On::Copies => ways.copies *= split.parts,
            On::Value => ways.value *= split.parts,
            on => on.loops().for_each(|index| ways.loops[index] *= split.parts),
        }
    }
    ways
}

/// How many different parts of each loop the devices of one node have, of the node that has most.
fn inside(plan: &OpPlan, loops: usize, nodes: &[usize]) -> Ways {
    let kinds: Vec<On> = (0..loops).map(On::Loop).chain([On::Value, On::Copies]).collect();
    let mut seen: BTreeMap<(usize, usize), BTreeSet<Vec<u32>>> = BTreeMap::new();
    for (part, device) in (0..).zip(plan.devices.iter()) {
        let digits = plan.digits(part);
        for (at, kind) in kinds.iter().enumerate() {
            let divides =
                |on: On| on == *kind || matches!(kind, On::Loop(index) if on.loops().any(|it| it == *index));
            let dividing = digits.iter().zip(&plan.splits).filter(|(_, split)| divides(split.on));
            let coordinates: Vec<u32> = dividing.map(|(digit, _)| *digit).collect();
            seen.entry((nodes[*device as usize], at)).or_default().insert(coordinates);
        }
    }
    let most = |wanted: usize| {
        let counts = seen.iter().filter(|((_, at), _)| *at == wanted).map(|(_, parts)| parts.len());
        u32::try_from(counts.max().unwrap_or(1)).unwrap_or(u32::MAX)
    };
    Ways { loops: (0..loops).map(most).collect(), value: most(loops), copies: most(loops + 1) }
}

impl Constraints {
    /// The constraints that a plan does not respect; how much memory it needs is known when it was lowered.
    pub fn broken(&self, plan: &Plan, graph: &Graph, analysis: &Analysis) -> BTreeSet<usize> {
        let mut broken = BTreeSet::new();
        for op in graph.op_ids() {
            broken.extend(self.broken_at(plan, analysis, op));
        }
        for (number, set) in self.ties() {
            let splits = |op: &OpId| named_splits(&plan.op(*op).splits, analysis, *op);
            if set.iter().any(|op| splits(op) != splits(&set[0])) {
                broken.insert(number);
            }
        }
        for (number, constraint) in self.all.iter().enumerate() {
            let is_broken = match &constraint.says {
                Says::NoRecompute => !plan.recompute.is_empty(),
                Says::NoOffload => {
                    !(plan.offload.is_empty()
                        && plan.state_on_host.is_empty()
                        && plan.held_on_host.is_empty())
                }
                Says::Stages(most) => stages(plan) > *most as usize,
                Says::Devices { ops, devices } => {
                    ops.iter().any(|op| plan.op(*op).devices.iter().any(|device| !devices.contains(device)))
                }
                _ => false,
            };
            if is_broken {
                broken.insert(number);
            }
        }
        broken
    }

    fn broken_at(&self, plan: &Plan, analysis: &Analysis, op: OpId) -> Vec<usize> {
        let demands = &self.demands[op.index()];
        if demands.is_empty() {
            return vec![];
        }
        let (it, loops) = (plan.op(op), analysis.op(op).loops.len());
        let (all, inside) = (ways(it, loops), inside(it, loops, &self.nodes));
        let between = between(&all, &inside);
        let broken = demands.iter().filter(|(_, it)| !it.holds(of_level(it.level, &all, &between, &inside)));
        broken.map(|(number, _)| *number).collect()
    }

    /// Refuses an own plan that does not respect them: that is a bug.
    pub fn confirm(&self, plan: &Plan, graph: &Graph, analysis: &Analysis) -> Result<()> {
        match self.broken(plan, graph, analysis).first() {
            None => Ok(()),
            Some(number) => {
                let constraint = &self.all[*number];
                let what = format!("the plan `{}` that was found breaks `{}`", plan.name, constraint.text);
                Err(Error::new("SW0532", what)
                    .at(constraint.place.clone())
                    .why("this is a bug in Shardwright: nothing was run")
                    .fix("please report it, with the model and the constraints"))
            }
        }
    }
}

/// How many sets of devices run blocks.
fn stages(plan: &Plan) -> usize {
    let mut blocks: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
    for (at, op) in plan.ops.iter().enumerate() {
        let block = plan.blocks.get(at).copied().unwrap_or(0);
        blocks.entry(block).or_default().extend(op.devices.iter());
    }
    blocks.into_values().collect::<BTreeSet<_>>().len()
}
