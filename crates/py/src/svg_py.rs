//! Pictures of plans, as Python writes them to files.

use pyo3::prelude::*;
use report::page::{About, Subject};
use report::svg::ComparedTitle;

use crate::guard::{Evidence, guarded, sound};
use crate::plan_py::Plan;
use crate::program_py::Compiled;
use crate::report_py::comparison;
use crate::search_py::{Found, cluster_of};
use crate::step_py::Simulated;

/// Who does what when in a step of so many micro-batches on a cluster: a name, or the text of a file and what that is called.
#[pyfunction]
#[pyo3(signature = (plan, compiled, step, cluster, text = None, *, batches))]
pub(crate) fn timeline_svg(
    plan: &Plan,
    compiled: &Compiled,
    step: &Simulated,
    cluster: &str,
    text: Option<&str>,
    batches: u32,
) -> PyResult<String> {
    guarded(plan.evidence(), || {
        let (cluster, about) = (cluster_of(cluster, text)?, About::default());
        Ok(report::svg::timeline(&Subject {
            graph: &plan.model.graph,
            analysis: &plan.model.analysis,
            plan: &plan.plan,
            compiled: compiled.inner(),
            step: step.inner(),
            cluster: &cluster,
            batches,
            optimizer: "",
            is_compiled: false,
            about: &about,
        }))
    })
}

/// How each module of a plan is sharded.
#[pyfunction]
pub(crate) fn sharding_svg(plan: &Plan) -> PyResult<String> {
    let model = &plan.model;
    sound(plan.evidence(), || report::svg::sharding(&model.graph, &model.analysis, &plan.plan))
}

/// Plans of searches, with the micro-batches of each, on so many devices of a cluster.
#[pyfunction]
#[expect(clippy::needless_pass_by_value, reason = "Python gives a copy")]
pub(crate) fn compared_svg(
    model: &str,
    cluster: &str,
    devices: u32,
    compared: Vec<(u32, Py<Found>)>,
) -> PyResult<String> {
    let title = ComparedTitle { model, cluster, devices };
    sound(Evidence::none(), || report::svg::compared(title, &comparison(&compared).unwrap_or_default()))
}
