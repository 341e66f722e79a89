//! A plan's rows, as Python prints them.

use plan::{Gather, Reduce};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use report::{Kept, Row};

use crate::guard::sound;
use crate::plan_py::Plan;
use crate::step_py::Simulated;

/// Modules of a plan that are decided alike, in the model's order: a dict for each. With a simulated step also what they
/// take of it.
#[pyfunction]
#[pyo3(signature = (plan, step = None))]
pub(crate) fn plan_rows<'py>(
    py: Python<'py>,
    plan: &Plan,
    step: Option<&Bound<'py, Simulated>>,
) -> PyResult<Vec<Bound<'py, PyDict>>> {
    let model = &plan.model;
    let shares = step.map(|step| step.get().shares());
    let rows = sound(plan.evidence(), || report::rows(&model.graph, &model.analysis, &plan.plan, shares))?;
    rows.iter().map(|row| dict(py, row)).collect()
}

fn dict<'py>(py: Python<'py>, row: &Row) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("modules", &row.modules)?;
    dict.set_item("operators", row.ops.len())?;
    dict.set_item("others", row.others)?;
    dict.set_item("divided", row.decided.to_string())?;
    dict.set_item("devices", row.decided.placed())?;
    dict.set_item("block", row.decided.block)?;
    dict.set_item("recomputed", row.again)?;
    dict.set_item("offloaded", row.away)?;
    dict.set_item("work", row.work)?;
    if let Some(share) = row.share {
        dict.set_item("computes", share.works)?;
        dict.set_item("communicates", share.moves)?;
        dict.set_item("exposed", share.exposed)?;
        dict.set_item("bytes", share.bytes)?;
    }
    Ok(dict)
}

/// Among how many, when gathered, when reduced, how many, bytes.
type Home = (usize, &'static str, &'static str, usize, u64);

/// Parameters that are divided between steps: among how many devices, when they are gathered and their gradients
/// reduced, how many, and their bytes.
#[pyfunction]
pub(crate) fn plan_homes(plan: &Plan) -> PyResult<Vec<Home>> {
    let of = |kept: Kept| {
        (kept.over, Gather::name(kept.gather), Reduce::name(kept.reduce), kept.count, kept.bytes)
    };
    sound(plan.evidence(), || report::kept(&plan.model.graph, &plan.plan).into_iter().map(of).collect())
}
