//! A plan for a unit of devices, run on several units: the batch is divided among the units as
//! `data` does, and each unit divides its share as the plan says.

use diag::{Error, Result};
use graph::{Graph, OpId};
use rules::Analysis;

use crate::fit::{fit, without_idle_copies};
use crate::sets::{Model, data_choice};
use crate::{MOST, On, OpPlan, Plan, Split, legal, param_sharding};

/// Unit `u` of a plan for `d` devices has the devices from `u * d` on. The graph's batch is that of
/// all units together.
pub fn repeat(unit: &Plan, graph: &Graph, analysis: &Analysis, units: u32) -> Result<Plan> {
    let devices = unit.devices.checked_mul(units).filter(|&d| (1..=MOST).contains(&d)).ok_or_else(|| {
        Error::new("SW0327", format!("a plan for {} devices cannot be repeated {units} times", unit.devices))
            .why("a plan has at least one device, and no more than can be listed")
            .fix(format!("use at least one unit, and at most {MOST} devices in all"))
    })?;
    if units == 1 {
        return Ok(unit.clone());
    }
    let model = Model::new(graph, analysis);
    let choice = data_choice(&model, units);
    if choice.iter().all(Option::is_none) {
        return Err(Error::new("SW0328", format!("the batch cannot be divided among {units} units"))
            .why(format!("no operator of {} has a batch of at least {units}", graph.model))
            .fix("give a larger batch (that of all units together), or plan for a larger unit"));
    }
    let ops = graph.op_ids().map(|op| op_plan(unit, &model, op, choice[op.index()], units)).collect();
    let name = format!("{units} units of {}", unit.name);
    let param_shardings = param_sharding::repeated(&unit.param_shardings, unit.devices, units);
    Ok(Plan { name, devices, ops, param_shardings, ..unit.clone() })
}

fn op_plan(unit: &Plan, model: &Model<'_>, op: OpId, batch: Option<usize>, units: u32) -> OpPlan {
    let (graph, analysis) = (model.graph, model.analysis);
    let outer = batch.map(|index| Split { on: On::Loop(index), parts: units });
    let outer = outer.filter(|s| legal(graph, analysis, op, &[*s]).is_ok());
    let mut splits = vec![outer.unwrap_or(Split { on: On::Copies, parts: units })];
    let inside = unit.op(op);
    for split in &inside.splits {
        splits.extend(fit(graph, analysis, op, &splits, *split));
    }
    let devices = (0..units).flat_map(|u| inside.devices.iter().map(move |d| u * unit.devices + d)).collect();
    without_idle_copies(OpPlan { splits, devices })
}
