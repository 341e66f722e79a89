//! A plan's rows, and what of a model has rules, as Python prints them.

use std::collections::BTreeMap;

use cluster::Origin;
use compiler::Setting;
use plan::{Gather, Reduce};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use report::page::{About, Candidate, Compared, OtherPages, RecordedFile, Subject};
use report::{Amount, KeptParams, Lack, Row, Unruled};

use crate::graph_py::Graph;
use crate::guard::{Evidence, guarded, sound};
use crate::plan_py::Plan;
use crate::program_py::{Compiled, files_of, masters_of};
use crate::search_py::{Found, cluster_of};
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
    dict.set_item("recomputed", row.recomputed)?;
    dict.set_item("offloaded", row.offloaded)?;
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
type ParamSharding = (usize, &'static str, &'static str, usize, u64);

/// Parameters that are divided between steps: among how many devices, when they are gathered and their gradients
/// reduced, how many, and their bytes.
#[pyfunction]
pub(crate) fn plan_homes(plan: &Plan) -> PyResult<Vec<ParamSharding>> {
    let fields_of = |kept: KeptParams| {
        (kept.over, Gather::name(kept.gather), Reduce::name(kept.reduce), kept.count, kept.bytes)
    };
    sound(plan.evidence(), || {
        report::kept(&plan.model.graph, &plan.plan).into_iter().map(fields_of).collect()
    })
}

/// What of a model has a rule, and what has none: dicts of plain data. With a plan of the model also what that splits.
/// `counted` are shares of a forward's operations, of what runs as Python.
#[pyfunction]
#[pyo3(signature = (graph, plan = None, counted = BTreeMap::new()))]
#[expect(clippy::needless_pass_by_value, reason = "Python gives a copy")]
pub(crate) fn rule_coverage<'py>(
    py: Python<'py>,
    graph: &Graph,
    plan: Option<&Plan>,
    counted: BTreeMap<String, f64>,
) -> PyResult<Bound<'py, PyDict>> {
    let model = plan.map_or(&graph.model, |plan| &plan.model);
    let plan = plan.map(|plan| &plan.plan);
    let coverage = sound(Evidence::from_model(model), || {
        report::coverage(&model.graph, &model.analysis, plan, &counted)
    })?;
    let dict = PyDict::new(py);
    let amounts = [("model", coverage.all), ("with_rule", coverage.ruled), ("whole", coverage.whole)];
    for (name, amount) in amounts {
        dict.set_item(name, amount_dict(py, amount)?)?;
    }
    let unruled = coverage.unruled.iter().map(|row| unruled_dict(py, row)).collect::<PyResult<Vec<_>>>()?;
    dict.set_item("without_rule", unruled)?;
    if let Some(planned) = coverage.planned {
        let ways = [("split", planned.split), ("replicated", planned.replicated), ("single", planned.single)];
        let plan_dict = PyDict::new(py);
        for (name, amount) in ways {
            plan_dict.set_item(name, amount_dict(py, amount)?)?;
        }
        dict.set_item("plan", plan_dict)?;
    }
    Ok(dict)
}

fn amount_dict(py: Python<'_>, amount: Amount) -> PyResult<Bound<'_, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("operators", amount.operators)?;
    dict.set_item("operations", amount.operations)?;
    dict.set_item("activations", amount.activations)?;
    dict.set_item("parameters", amount.parameters)?;
    Ok(dict)
}

fn unruled_dict<'py>(py: Python<'py>, row: &Unruled) -> PyResult<Bound<'py, PyDict>> {
    let dict = amount_dict(py, row.amount)?;
    dict.set_item("target", &row.target)?;
    dict.set_item("names", &row.names)?;
    dict.set_item("name", row.name.as_deref())?;
    dict.set_item("lack", row.lack.name())?;
    dict.set_item("family", if let Lack::Call(family) = row.lack { Some(family) } else { None })?;
    dict.set_item("python", row.lack.is_python())?;
    dict.set_item("counted", row.counted)?;
    dict.set_item("modules", &row.modules)?;
    dict.set_item("lines", &row.lines)?;
    Ok(dict)
}

/// The page of a plan on a cluster, a name or the text of a file and what that is called: its JSON, and all of it in one
/// file of HTML. `command` makes it again, and `compared` are searches with the micro-batches of each, and `recorded` is
/// what a recording is called, and its text. `others` is how pages of other plans are made: the words of the command, whether
/// the batch is cut, and how many rows are kept. `sources` are what lines of the model say.
#[pyfunction]
#[pyo3(signature = (plan, compiled, step, cluster, text = None, *, batches, optimizer, command, version, compared = vec![], recorded = None, others = (vec![], true, 0), compile = false, sources = BTreeMap::new()))]
#[expect(clippy::too_many_arguments, reason = "they are named in Python")]
#[expect(clippy::needless_pass_by_value, reason = "Python gives a copy")]
pub(crate) fn report_page(
    py: Python<'_>,
    plan: &Plan,
    compiled: &Compiled,
    step: &Simulated,
    cluster: &str,
    text: Option<&str>,
    batches: u32,
    optimizer: &str,
    command: String,
    version: String,
    compared: Vec<(u32, Py<Found>)>,
    recorded: Option<(String, String)>,
    others: (Vec<String>, bool, usize),
    compile: bool,
    sources: BTreeMap<String, String>,
) -> PyResult<(String, String)> {
    guarded(plan.evidence(), || {
        let cluster = cluster_of(cluster, text)?;
        let recorded = recorded.map(|(name, text)| RecordedFile { name, text });
        let (words, is_cut, kept) = others;
        let others = OtherPages { words, is_cut, kept };
        let about = About { command, version, compared: comparison(&compared), recorded, others, sources };
        let subject = Subject {
            graph: &plan.model.graph,
            analysis: &plan.model.analysis,
            plan: &plan.plan,
            compiled: compiled.inner(),
            step: step.inner(),
            cluster: &cluster,
            batches,
            optimizer,
            is_compiled: compile,
            about: &about,
        };
        py.detach(|| {
            let data = report::page::data(&subject)?;
            Ok((data.to_string(), report::page::html(&data)))
        })
    })
}

/// What was recorded of a program that is read from emitted files, beside a step of it on a cluster: its JSON, and the
/// file of a cluster with what was measured. `recording` is what it is called, and its text; `origin` the device, PyTorch
/// and threads that it was measured with. The others are as of `communications`.
#[pyfunction]
#[pyo3(signature = (graph_text, files, cluster, recording, origin, *, batches = 1, optimizer = "adamw", kept = None, compile = false))]
#[expect(clippy::too_many_arguments, reason = "they are named in Python")]
pub(crate) fn profiled_step(
    py: Python<'_>,
    graph_text: &str,
    files: BTreeMap<String, String>,
    cluster: (String, Option<String>),
    recording: (String, String),
    origin: (String, String, u32),
    batches: u32,
    optimizer: &str,
    kept: Option<BTreeMap<String, String>>,
    compile: bool,
) -> PyResult<(String, String)> {
    guarded(Evidence::text(graph_text), || {
        let graph: graph::Graph = graph_text.parse()?;
        let (files, masters) = (files_of(files), masters_of(kept));
        let (cluster, text) = cluster;
        let cluster = cluster_of(&cluster, text.as_deref())?;
        let setting = Setting { cluster: &cluster, batches, optimizer, masters: &masters, compiled: compile };
        let file = RecordedFile { name: recording.0, text: recording.1 };
        let origin = Origin { device: origin.0, torch: origin.1, threads: origin.2 };
        let step = py.detach(|| report::profiled(&graph, &files, &setting, &file, origin))?;
        Ok((step.json, step.cluster))
    })
}

/// All plans that were looked at; none if there was no search.
pub(crate) fn comparison(searches: &[(u32, Py<Found>)]) -> Option<Compared> {
    let bound = searches.iter().map(|(_, search)| search.get().inner().bound).reduce(f64::min)?;
    let candidate_of = |micro_batches: u32, candidate: &search::Evaluated| Candidate {
        plan: candidate.plan.name.clone(),
        micro_batches,
        seconds: candidate.seconds(),
        fits: candidate.fits(),
        memory: (candidate.memory.1, candidate.memory.2),
        utilisation: candidate.estimate.utilisation,
        decisions: Some(candidate.plan.clone()),
    };
    let candidates_of = |(many, search): &(u32, Py<Found>)| {
        search.get().inner().rows.iter().map(|it| candidate_of(*many, it)).collect::<Vec<_>>()
    };
    let mut candidates: Vec<Candidate> = searches.iter().flat_map(candidates_of).collect();
    candidates.sort_by(|a, b| (!a.fits).cmp(&!b.fits).then(a.seconds.total_cmp(&b.seconds)));
    Some(Compared { bound, candidates })
}
