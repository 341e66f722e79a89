//! The search for a plan, as Python sees it.

use std::time::Duration;

use cluster::{Cluster, Driver};
use compiler::Masters;
use graph::OpId;
use program::Inputs;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use search::{Constraints, Evaluated, Question, Wanted};

use crate::graph_py::Graph;
use crate::guard::{Evidence, guarded};
use crate::plan_py::Plan;
use crate::program_py::{Size, given, telling};

/// What a search found: plans that fit before those that do not, and the quickest first.
#[pyclass(frozen, module = "shardwright._core")]
pub(crate) struct Found {
    inner: search::Found,
    graph: Graph,
    asked: Asked,
}

impl Found {
    pub(crate) fn inner(&self) -> &search::Found {
        &self.inner
    }
}

/// What was asked, but for the model.
pub(crate) struct Asked {
    pub(crate) cluster: Cluster,
    pub(crate) devices: u32,
    pub(crate) batches: u32,
    pub(crate) optimizer: String,
    pub(crate) memory: Option<u64>,
    pub(crate) inputs: Inputs,
    /// What the file is called, and what it says.
    pub(crate) constraints: Option<(String, String)>,
    /// So many plans are evaluated at the same time.
    pub(crate) threads: usize,
}

impl Asked {
    /// The whole question.
    pub(crate) fn with_question<T>(
        &self,
        model: &crate::model::Model,
        ask: impl FnOnce(&Question<'_>) -> diag::Result<T>,
    ) -> diag::Result<T> {
        let read = |(called, text): &(String, String)| {
            Constraints::read(text, called, &model.graph, &model.analysis, &self.cluster, self.devices)
        };
        let constraints = self.constraints.as_ref().map(read).transpose()?;
        let (masters, boundary) = (Masters::new(), lower::loss(&model.graph, self.inputs));
        ask(&Question {
            graph: &model.graph,
            analysis: &model.analysis,
            boundary: &boundary,
            masters: &masters,
            cluster: &self.cluster,
            devices: self.devices,
            batches: self.batches,
            optimizer: &self.optimizer,
            memory: self.memory,
            constraints: constraints.as_ref(),
            stop: search::Stop::default(),
            threads: self.threads,
        })
    }
}

#[pymethods]
impl Found {
    /// Of each plan: name, seconds of a step, whether it fits, the rank that uses most of its memory with bytes needed
    /// and there, the share of what the devices can compute, where an order of blocks was searched the seconds that they take in whatever
    /// order, and the seconds of what that rank does.
    #[getter]
    fn rows<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        self.inner.rows.iter().map(|candidate| dict(py, candidate)).collect()
    }

    /// A plan by its place among the rows.
    fn plan(&self, at: usize) -> PyResult<Plan> {
        let candidate = self.inner.rows.get(at);
        let candidate =
            candidate.ok_or_else(|| pyo3::exceptions::PyIndexError::new_err("there are fewer plans"))?;
        Ok(Plan::new(&self.graph, candidate.plan.clone()))
    }

    /// Seconds of a step that no plan can beat.
    #[getter]
    fn bound(&self) -> f64 {
        self.inner.bound
    }

    /// Of plans of one block, operator by operator: the seconds that none of them can beat, decisions, their choices, sums
    /// that were looked at, and how long that took. None if these were not looked at.
    #[getter]
    fn inside(&self) -> Option<(f64, usize, usize, f64, f64)> {
        self.inner
            .inside
            .map(|stats| (stats.bound, stats.decisions, stats.choices, stats.sums, stats.seconds))
    }

    /// Of pipelines whose stages are found: places to cut, groups of devices that differ, pipelines and ends of them that were
    /// looked at, how long that took, and whether nothing was left out for lack of time. None if these were not looked at.
    #[getter]
    fn pipelines(&self) -> Option<(usize, usize, usize, f64, bool)> {
        let stats = self.inner.stages.as_ref().filter(|stats| stats.looked > 0)?;
        Some((stats.places, stats.groups, stats.looked, stats.seconds, stats.is_whole))
    }

    /// Why an operator is divided as it is in the quickest plan, if that was found and not named, or was before it was
    /// changed: its name then; of several blocks which one of how many, and its devices; how many operators that is decided of; and
    /// the ways to do it, best first, with seconds that the best with it takes more, what that one takes, and what would have
    /// to change for it to be better. None of a plan with a name.
    fn explain(&self, py: Python<'_>, operator: usize, most: usize) -> PyResult<Option<Explained>> {
        let Some(candidate) = self.inner.rows.first().filter(|candidate| candidate.reason.is_some()) else {
            return Ok(None);
        };
        let model = &self.graph.model;
        if operator >= model.graph.ops.len() {
            return Err(pyo3::exceptions::PyIndexError::new_err("there are fewer operators"));
        }
        guarded(Evidence::from_model(model), || {
            py.detach(|| {
                self.asked.with_question(model, |question| {
                    let explanation = search::why(question, candidate, OpId::new(operator), most.max(1))?;
                    Ok(explanation.map(|why| explained(candidate, &why, search::spmd::limit(question))))
                })
            })
        })
    }

    /// How many constraints all plans respect.
    #[getter]
    fn constraints(&self) -> usize {
        self.inner.constraints
    }

    /// How many shapes were looked at, of how many.
    #[getter]
    fn tried(&self) -> (usize, usize) {
        self.inner.tried
    }

    /// How many plans were not lowered: they are not among the quickest that were wanted.
    #[getter]
    fn left_out(&self) -> usize {
        self.inner.left_out
    }

    /// Plans that are none for this model, and why.
    #[getter]
    fn passed_over(&self) -> Vec<(String, String)> {
        self.inner.passed_over.clone()
    }
}

/// A way, and what it takes: seconds more, in which devices work, wait and update, in which parameters are sent, bytes; and
/// what would have to change.
type AlternativeRow = (String, f64, (f64, f64, f64, f64), f64, Option<String>);
type PyBlock = (usize, usize, (u32, u32));
type Explained = (String, Option<PyBlock>, usize, Vec<AlternativeRow>);

fn explained(candidate: &Evaluated, why: &search::Why, limit: u64) -> Explained {
    let ways = &why.explanation.ways;
    let way = |it: &search::spmd::Alternative| {
        let takes = (it.totals.works, it.totals.waits, it.totals.updates, it.totals.sends);
        (it.name.clone(), it.more, takes, it.totals.bytes, it.wins_if(&ways[0], limit as f64))
    };
    let ways = ways.iter().map(way).collect();
    let plan_name = candidate.reason.as_ref().map_or(&candidate.plan.name, |reason| &reason.plan);
    (plan_name.clone(), why.block, why.explanation.ops.len(), ways)
}

fn dict<'py>(py: Python<'py>, candidate: &Evaluated) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    let (rank, needed, there) = candidate.memory;
    dict.set_item("plan", &candidate.plan.name)?;
    dict.set_item("seconds", candidate.seconds())?;
    dict.set_item("fits", candidate.fits())?;
    dict.set_item("memory", (rank, needed, there))?;
    dict.set_item("on_host", candidate.host)?;
    dict.set_item("utilisation", candidate.estimate.utilisation)?;
    dict.set_item("order", candidate.order)?;
    let lanes = &candidate.estimate.simulation.ranks;
    let busiest = lanes.iter().reduce(|a, b| if b.idle < a.idle { b } else { a });
    for (name, seconds) in busiest.map(simulate::Lane::parts).into_iter().flatten() {
        dict.set_item(name, seconds)?;
    }
    Ok(dict)
}

/// More threads are not worth their memory.
const MANY: usize = 16;

/// Looks for the quickest plan for so many devices of a cluster: a name, or the text of a file and what that is called.
/// With `every` all plans are given, also if none fits, or at least so many of the quickest as `wanted` says, of those
/// below so many seconds; else one that fits is the first. `watch` is told each by its name. `constraints` are what their
/// file is called and what it says; `inputs` say what ranks are given, as for [`compile`](crate::program_py::compile). So many `threads` evaluate plans: as many
/// as there are cores, unless said. What is found does not depend on it.
#[pyfunction]
#[pyo3(signature = (
    graph, devices, cluster, text = None, *, batches = 1, optimizer = "adamw", memory = None, deadline = None,
    every = false, wanted = None, below = None, watch = None, constraints = None, inputs = "global", threads = None
))]
#[expect(clippy::too_many_arguments, reason = "they are named in Python")]
pub(crate) fn search_plan(
    py: Python<'_>,
    graph: &Graph,
    devices: u32,
    cluster: &str,
    text: Option<&str>,
    batches: u32,
    optimizer: &str,
    memory: Option<Size>,
    deadline: Option<f64>,
    every: bool,
    wanted: Option<usize>,
    below: Option<f64>,
    watch: Option<Py<PyAny>>,
    constraints: Option<(String, String)>,
    inputs: &str,
    threads: Option<usize>,
) -> PyResult<Found> {
    let mut tell = telling(watch);
    let model = &graph.model;
    let (inner, asked) = guarded(Evidence::from_model(model), || {
        let asked = Asked {
            cluster: cluster_of(cluster, text)?,
            devices,
            batches,
            optimizer: optimizer.into(),
            memory: memory.map(Size::bytes).transpose()?,
            inputs: given(inputs)?,
            constraints,
            threads: threads.unwrap_or_else(cores),
        };
        let deadline = deadline.map(deadline_of).transpose()?;
        py.detach(|| {
            let wanted =
                Wanted { count: wanted.unwrap_or(usize::MAX).max(1), below: below.unwrap_or(f64::INFINITY) };
            let result = asked.with_question(model, |question| match every {
                true => search::quickest(question, wanted, deadline, &mut tell),
                false => search::best(question, deadline, &mut tell),
            })?;
            Ok((result, asked))
        })
    })?;
    Ok(Found { inner, graph: Graph { model: std::sync::Arc::clone(model) }, asked })
}

/// So many threads run at once here. Of more than a few each has less to do, and memory of its own.
fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, |count| count.get().min(MANY))
}

fn deadline_of(seconds: f64) -> diag::Result<Duration> {
    if seconds.is_nan() || seconds < 0.0 {
        return Err(diag::Error::new("SW0929", format!("a deadline is not {seconds} seconds"))
            .why("after so many seconds the search ends, with the best plan so far")
            .fix("give a number of seconds from 0 on, or no deadline"));
    }
    Ok(Duration::from_secs_f64(seconds.min(1e6)))
}

/// By its name, or as its file says.
pub(crate) fn cluster_of(name: &str, text: Option<&str>) -> diag::Result<Cluster> {
    text.map_or_else(|| cluster::named(name), |text| cluster::read(text, name))
}

/// Names that show how clusters are named, each with what it is.
#[pyfunction]
pub(crate) fn cluster_examples() -> Vec<(String, String)> {
    cluster::examples()
}

/// The GPUs that have names: the generation of each, the bytes that a model may have and its bytes a second, operations
/// a second in half, and the link between those of a node with its bytes a second each way.
#[pyfunction]
pub(crate) fn gpus() -> Vec<Gpu> {
    let figures = |it: cluster::Gpu| {
        (it.name, it.generation.name(), it.memory, it.bandwidth, it.half, it.link, it.link_bandwidth)
    };
    cluster::gpus().map(figures).collect()
}

type Gpu = (&'static str, &'static str, f64, f64, f64, &'static str, f64);

/// How many devices a cluster has.
#[pyfunction]
#[pyo3(signature = (cluster, text = None))]
pub(crate) fn cluster_devices(cluster: &str, text: Option<&str>) -> PyResult<u32> {
    guarded(Evidence::none(), || Ok(cluster_of(cluster, text)?.devices()))
}

/// The cluster of `nodes` of `local` GPUs, of one that its driver describes: its name, the text of its file if a name says
/// too little, and the bytes of a device where that is less than the name says.
#[pyfunction]
#[pyo3(signature = (name, memory, multiprocessors, capability, clock, bandwidth, local, nodes))]
#[expect(clippy::too_many_arguments, reason = "what the driver says, by name")]
pub(crate) fn cluster_of_gpus(
    name: String,
    memory: u64,
    multiprocessors: u32,
    capability: (u32, u32),
    clock: Option<f64>,
    bandwidth: Option<f64>,
    local: u32,
    nodes: u32,
) -> PyResult<(String, Option<String>, Option<u64>)> {
    let driver = Driver { name, memory, multiprocessors, capability, clock, bandwidth };
    let here = guarded(Evidence::none(), || cluster::here(&driver, local, nodes))?;
    Ok((here.name, here.text, here.memory))
}

/// Where the measured figures of a cluster's file are from: the device, the version of PyTorch, and the threads of a rank.
#[pyfunction]
#[pyo3(signature = (cluster, text = None))]
pub(crate) fn cluster_origin(cluster: &str, text: Option<&str>) -> PyResult<Option<(String, String, u32)>> {
    let origin = guarded(Evidence::none(), || Ok(cluster_of(cluster, text)?.origin))?;
    Ok(origin.map(|it| (it.device, it.torch, it.threads)))
}
