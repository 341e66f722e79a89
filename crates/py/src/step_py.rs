//! A step on a cluster, as Python sees it.

use std::collections::BTreeMap;

use compiler::{Setting, SimulatedStep};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::guard::{Evidence, guarded, sound};
use crate::plan_py::Plan;
use crate::program_py::{Compiled, files_of, masters_of};
use crate::search_py::cluster_of;

/// A step of a program on a cluster, as it was simulated.
#[pyclass(frozen, module = "shardwright._core")]
pub(crate) struct Simulated {
    inner: SimulatedStep,
    /// For each rank the memory of its device.
    /// Of each device its memory, and what of its host's is its own.
    there: Vec<(u64, u64)>,
}

/// A rank, its stretches of time with bytes, and a line of them.
type HeldOver = (u32, Vec<(f64, f64, u64)>, String);

impl Simulated {
    pub(crate) fn inner(&self) -> &SimulatedStep {
        &self.inner
    }

    /// What of ranks' time each operator takes.
    pub(crate) fn shares(&self) -> &[simulate::Shares] {
        &self.inner.shares
    }

    fn most_waited_for(&self, share_of: impl Fn(&simulate::Shares) -> simulate::Share) -> (f64, f64, u64) {
        let all = self.shares().iter().map(share_of).map(|it| (it.moves, it.exposed, it.bytes));
        all.reduce(|a, b| if (b.1, b.0) > (a.1, a.0) { b } else { a }).unwrap_or_default()
    }
}

#[pymethods]
impl Simulated {
    /// Until the last rank has updated its parameters.
    #[getter]
    fn seconds(&self) -> f64 {
        self.inner.estimate.simulation.seconds
    }

    /// Operations of the model in a step, and what these are of all that the devices could compute meanwhile.
    #[getter]
    fn operations(&self) -> (f64, f64) {
        (self.inner.estimate.operations, self.inner.estimate.utilisation)
    }

    /// Of each rank that was followed: its number, and the seconds of what it does.
    #[getter]
    fn ranks<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let lane = |lane: &simulate::Lane| {
            let dict = PyDict::new(py);
            dict.set_item("rank", lane.rank.0)?;
            for (name, seconds) in lane.parts() {
                dict.set_item(name, seconds)?;
            }
            dict.set_item("communication", lane.communication)?;
            Ok(dict)
        };
        self.inner.estimate.simulation.ranks.iter().map(lane).collect()
    }

    /// For each rank the most bytes that it has at once, and those of its device.
    #[getter]
    fn memory(&self) -> Vec<(u64, u64)> {
        self.inner
            .estimate
            .memory
            .iter()
            .map(compiler::Memory::total)
            .zip(self.there.iter().map(|(capacity, _)| *capacity))
            .collect()
    }

    /// For each rank the most bytes that it has on its host, and what of the host's memory is its own.
    #[getter]
    fn on_host(&self) -> Vec<(u64, u64)> {
        let there = self.there.iter().map(|(_, host)| *host);
        self.inner.estimate.memory.iter().map(|it| it.offloaded).zip(there).collect()
    }

    /// A line for each device.
    #[getter]
    fn drawn(&self) -> PyResult<String> {
        sound(Evidence::none(), || self.inner.estimate.simulation.drawn())
    }

    /// What ranks have in memory over time, of those that are drawn: of each its number, the most bytes of each stretch
    /// with its start and end, and a line of them, as high as the most of all.
    #[getter]
    fn held(&self) -> Vec<HeldOver> {
        let (held, seconds) = (&self.inner.held, self.seconds());
        let most = held.iter().flat_map(|it| &it.over).map(|it| it.bytes).max().unwrap_or(0);
        let over =
            |it: &simulate::HeldMemory| it.over.iter().map(|it| (it.start, it.end, it.bytes)).collect();
        held.iter().map(|it| (it.rank.0, over(it), it.drawn(seconds, most))).collect()
    }

    /// What is moved of parameters and their gradients, by the rank that waits longest for it: seconds, those for which it
    /// waits, and bytes.
    #[getter]
    fn of_parameters(&self) -> (f64, f64, u64) {
        self.most_waited_for(|rank| rank.rest)
    }

    /// The same of what goes from one stage of a pipeline to another.
    #[getter]
    fn between_stages(&self) -> (f64, f64, u64) {
        self.most_waited_for(|rank| rank.between)
    }

    /// What each role communicates, as JSON.
    #[getter]
    fn manifest(&self) -> &str {
        &self.inner.manifest
    }

    /// A timeline, in the format of Chrome's traces, if it was asked for.
    #[getter]
    fn trace(&self) -> Option<&str> {
        self.inner.trace.as_deref()
    }
}

/// Simulates a step of so many micro-batches on a cluster: a name, or the text of a file and what that is called. `traced`
/// says whether a timeline is wanted.
#[pyfunction]
#[pyo3(signature = (plan, compiled, cluster, text = None, batches = 1, optimizer = "adamw", traced = false, kept = None, compile = false))]
#[expect(clippy::too_many_arguments, reason = "they are named in Python")]
pub(crate) fn simulate_step(
    py: Python<'_>,
    plan: &Plan,
    compiled: &Compiled,
    cluster: &str,
    text: Option<&str>,
    batches: u32,
    optimizer: &str,
    traced: bool,
    kept: Option<BTreeMap<String, String>>,
    compile: bool,
) -> PyResult<Simulated> {
    let (graph, analysis) = (&plan.model.graph, &plan.model.analysis);
    guarded(plan.evidence(), || {
        let cluster = cluster_of(cluster, text)?;
        let masters = masters_of(kept);
        let setting = Setting { cluster: &cluster, batches, optimizer, masters: &masters, compiled: compile };
        let inner =
            py.detach(|| compiler::step(graph, analysis, &plan.plan, compiled.inner(), &setting, traced))?;
        let there = (0..inner.estimate.memory.len()).map(|rank| cluster.device(rank as u32));
        let there = there.map(|device| (device.memory, device.host_memory)).collect();
        Ok(Simulated { inner, there })
    })
}

/// Its seconds alone, which of many micro-batches take no longer than of few.
#[pyfunction]
#[pyo3(signature = (plan, compiled, cluster, text = None, batches = 1, optimizer = "adamw", kept = None, compile = false))]
#[expect(clippy::too_many_arguments, reason = "they are named in Python")]
pub(crate) fn simulate_seconds(
    py: Python<'_>,
    plan: &Plan,
    compiled: &Compiled,
    cluster: &str,
    text: Option<&str>,
    batches: u32,
    optimizer: &str,
    kept: Option<BTreeMap<String, String>>,
    compile: bool,
) -> PyResult<f64> {
    let (graph, analysis) = (&plan.model.graph, &plan.model.analysis);
    guarded(plan.evidence(), || {
        let cluster = cluster_of(cluster, text)?;
        let masters = masters_of(kept);
        let setting = Setting { cluster: &cluster, batches, optimizer, masters: &masters, compiled: compile };
        let estimate =
            py.detach(|| compiler::brief(graph, analysis, &plan.plan, compiled.inner(), &setting))?;
        Ok(estimate.simulation.seconds)
    })
}

/// What every rank communicates in a step of so many micro-batches, as JSON: of emitted files, which are read back and
/// proved against the text of the model's graph. `cluster` is its name, and what its file says if it has one; `kept` are the types in which ranks hold parameters, as of `compile`.
#[pyfunction]
#[pyo3(signature = (graph_text, files, cluster, batches = 1, optimizer = "adamw", kept = None))]
pub(crate) fn communications(
    py: Python<'_>,
    graph_text: &str,
    files: BTreeMap<String, String>,
    cluster: (String, Option<String>),
    batches: u32,
    optimizer: &str,
    kept: Option<BTreeMap<String, String>>,
) -> PyResult<String> {
    guarded(Evidence::text(graph_text), || {
        let graph: graph::Graph = graph_text.parse()?;
        let files = files_of(files);
        let ((name, text), masters) = (cluster, masters_of(kept));
        let cluster = cluster_of(&name, text.as_deref())?;
        let setting = Setting { cluster: &cluster, batches, optimizer, masters: &masters, compiled: false };
        py.detach(|| compiler::communications(&graph, &files, &setting))
    })
}
