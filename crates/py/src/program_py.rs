//! Compiling, and checking again what was compiled.

use std::collections::BTreeMap;

use compiler::{Communication, Issued, Limit, Masters, Traffic};
use program::{Boundary, Inputs, Output};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::graph_py::Graph;
use crate::guard::{Evidence, guarded, sound};
use crate::memory_py::Memory;
use crate::plan_py::Plan;

/// A program that was proved equal to its model.
#[pyclass(frozen, module = "shardwright._core")]
pub(crate) struct Compiled {
    inner: compiler::Compiled,
}

impl Compiled {
    pub(crate) fn inner(&self) -> &compiler::Compiled {
        &self.inner
    }

    /// A number of each kind of communication, for each rank.
    fn traffic<'py>(&self, py: Python<'py>, number: fn(&Issued) -> u64) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let row = |traffic: &Traffic| {
            let dict = PyDict::new(py);
            for ((phase, kind), issued) in traffic {
                dict.set_item(format!("{phase} {kind}"), number(issued))?;
            }
            Ok(dict)
        };
        self.inner.proof.traffic.iter().map(row).collect()
    }
}

#[pymethods]
impl Compiled {
    /// The emitted files, by name.
    #[getter]
    fn files<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let files = PyDict::new(py);
        for file in &self.inner.files {
            files.set_item(&file.name, &file.text)?;
        }
        Ok(files)
    }

    /// What was proved, and what the proof rests on.
    #[getter]
    fn proof(&self) -> PyResult<String> {
        sound(Evidence::none(), || self.inner.proof.to_string())
    }

    /// The digest of the model's graph.
    #[getter]
    fn digest(&self) -> &str {
        &self.inner.program.digest
    }

    /// For each rank: how many communications of each kind, keyed by `forward all_reduce`.
    #[getter]
    fn counts<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        self.traffic(py, |issued| issued.count as u64)
    }

    /// For each rank: the bytes that it hands to its communications, keyed as `counts`.
    #[getter]
    fn bytes<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        self.traffic(py, |issued| issued.bytes)
    }

    /// For each rank: the floating point operations of a micro-batch, forward and backward, and how many of
    /// them backward does a second time.
    #[getter]
    fn computed(&self) -> Vec<(u64, u64)> {
        self.inner.proof.computed.iter().map(|rank| (rank.all, rank.recomputed)).collect()
    }

    /// What rank 0 communicates, in order: phase, kind, module, tensor.
    #[getter]
    fn communications(&self) -> Vec<(&'static str, &'static str, String, String)> {
        let row = |c: &Communication| (c.phase, c.kind, c.module.clone(), c.tensor.clone());
        self.inner.summary.communications.iter().map(row).collect()
    }

    /// Bytes of parameters and buffers that each rank holds.
    #[getter]
    fn held(&self) -> Vec<u64> {
        self.inner.summary.held.clone()
    }

    /// Bytes of the parameters that each rank trains, and so of their gradients.
    #[getter]
    fn trained(&self) -> Vec<u64> {
        self.inner.summary.trained.clone()
    }

    /// What each rank has in memory in a step, with the state of an optimizer.
    #[pyo3(signature = (optimizer = "adamw"))]
    fn memory(&self, optimizer: &str) -> PyResult<Vec<Memory>> {
        let all = || compiler::with_optimizer(&self.inner.proof.memory, optimizer);
        Ok(guarded(Evidence::none(), all)?.into_iter().map(Memory::from).collect())
    }

    /// How many operators are split, computed by several devices, computed by one.
    #[getter]
    fn divided(&self) -> (usize, usize, usize) {
        let divided = self.inner.summary.divided;
        (divided.split, divided.replicated, divided.single)
    }

    /// Operators without a rule, which every device repeats.
    #[getter]
    fn unknown(&self) -> Vec<String> {
        self.inner.summary.unknown.clone()
    }

    /// What ranks do in a step of so many micro-batches, drawn: a row for those that do the same. Nothing for one block.
    fn timetable(&self, batches: u32) -> PyResult<String> {
        sound(Evidence::none(), || compiler::drawn(&self.inner.program, batches).unwrap_or_default())
    }

    /// Seconds of each phase.
    #[getter]
    fn phases(&self) -> Vec<(&'static str, f64)> {
        self.inner.phases.iter().map(|(name, time)| (*name, time.as_secs_f64())).collect()
    }
}

/// What is asked for of a model's outputs: `"loss"`, `"all"`, or for each output `"none"`, `"whole"` or
/// `"local"`. Nothing said is `"loss"`.
#[derive(FromPyObject)]
pub(crate) enum Outputs {
    Word(String),
    Each(Vec<String>),
}

/// What each rank has in memory: bytes, or text such as `16GiB`.
#[derive(FromPyObject)]
pub(crate) enum Size {
    Bytes(u64),
    Text(String),
}

impl Size {
    pub(crate) fn bytes(self) -> Result<u64, diag::Error> {
        match self {
            Size::Bytes(bytes) => Ok(bytes),
            Size::Text(text) => compiler::bytes(&text),
        }
    }
}

/// Tells what watches; that must not fail what it watches.
pub(crate) fn telling(watch: Option<Py<PyAny>>) -> impl FnMut(&str) {
    move |what| {
        if let Some(watch) = &watch {
            Python::attach(|py| drop(watch.call1(py, (what,))));
        }
    }
}

/// Lowers a plan, emits the program, reads it back and proves it. `watch` is told the name of each
/// phase as it begins. A program that does not fit into `memory` with the state of the
/// optimizer beside it is refused.
/// `kept` are the types in which ranks hold parameters, by name, where these are not the graph's.
#[pyfunction]
#[pyo3(signature = (plan, outputs = None, watch = None, inputs = "global", memory = None, kept = None))]
pub(crate) fn compile(
    py: Python<'_>,
    plan: &Plan,
    outputs: Option<Outputs>,
    watch: Option<Py<PyAny>>,
    inputs: &str,
    memory: Option<(Size, String)>,
    kept: Option<BTreeMap<String, String>>,
) -> PyResult<Compiled> {
    let (graph, analysis) = (&plan.model.graph, &plan.model.analysis);
    let mut tell = telling(watch);
    let inner = guarded(plan.evidence(), || {
        let boundary = boundary(graph, outputs, inputs)?;
        let masters = masters_of(kept);
        let limit = limit_of(memory, &masters)?;
        py.detach(|| {
            let compiled =
                compiler::compile_watched(graph, analysis, &plan.plan, &boundary, &masters, &mut tell)?;
            let fits = |limit| compiler::fits(graph, analysis, &plan.plan, &boundary, &compiled, limit);
            limit.as_ref().map_or(Ok(()), fits)?;
            Ok(compiled)
        })
    })?;
    Ok(Compiled { inner })
}

/// What ranks are given, by its name.
pub(crate) fn given(inputs: &str) -> diag::Result<Inputs> {
    Inputs::parse(inputs).ok_or_else(|| {
        diag::Error::new("SW0419", format!("inputs={inputs:?} is unknown")).fix("use \"global\" or \"local\"")
    })
}

fn boundary(graph: &graph::Graph, outputs: Option<Outputs>, inputs: &str) -> Result<Boundary, diag::Error> {
    let given = given(inputs)?;
    let unknown = |word: &str| {
        diag::Error::new("SW0402", format!("outputs={word:?} is unknown"))
            .fix("use \"loss\" or \"all\", or say \"none\", \"whole\" or \"local\" for each output")
    };
    match outputs {
        None => Ok(lower::loss(graph, given)),
        Some(Outputs::Word(word)) if word == "loss" => Ok(lower::loss(graph, given)),
        Some(Outputs::Word(word)) if word == "all" => Ok(lower::all(graph, given)),
        Some(Outputs::Word(word)) => Err(unknown(&word)),
        Some(Outputs::Each(words)) => {
            let output = |word: &String| Output::parse(word).ok_or_else(|| unknown(word));
            Ok(Boundary { inputs: given, outputs: words.iter().map(output).collect::<Result<_, _>>()? })
        }
    }
}

/// The types in which ranks hold parameters, by name.
pub(crate) fn masters_of(kept: Option<BTreeMap<String, String>>) -> Masters {
    let dtype = |(name, dtype): (String, String)| Some((name, graph::Dtype::parse_torch(&dtype)?));
    kept.unwrap_or_default().into_iter().filter_map(dtype).collect()
}

pub(crate) fn files_of(files: BTreeMap<String, String>) -> Vec<emit::File> {
    files.into_iter().map(|(name, text)| emit::File { name, text }).collect()
}

/// Reads emitted files back, which somebody may have edited, and proves them: a program as `compile` gives it,
/// with the same arguments.
#[pyfunction]
#[pyo3(signature = (graph, files, outputs = None, watch = None, inputs = "global", memory = None, kept = None))]
#[expect(clippy::too_many_arguments, reason = "they are those of `compile`, by name in Python")]
pub(crate) fn read_program(
    py: Python<'_>,
    graph: &Graph,
    files: BTreeMap<String, String>,
    outputs: Option<Outputs>,
    watch: Option<Py<PyAny>>,
    inputs: &str,
    memory: Option<(Size, String)>,
    kept: Option<BTreeMap<String, String>>,
) -> PyResult<Compiled> {
    let graph = &graph.model.graph;
    let mut tell = telling(watch);
    let inner = guarded(Evidence::none(), || {
        let boundary = boundary(graph, outputs, inputs)?;
        let masters = masters_of(kept);
        let limit = limit_of(memory, &masters)?;
        py.detach(|| {
            let read = compiler::read(graph, files_of(files), &boundary, &masters, &mut tell)?;
            limit.as_ref().map_or(Ok(()), |limit| compiler::fits_alone(&read, limit))?;
            Ok(read)
        })
    })?;
    Ok(Compiled { inner })
}

fn limit_of(memory: Option<(Size, String)>, masters: &Masters) -> diag::Result<Option<Limit<'_>>> {
    memory.map(|(size, optimizer)| Ok(Limit { bytes: size.bytes()?, optimizer, masters })).transpose()
}

/// Reads emitted files back and proves them against the text of the model's graph.
#[pyfunction]
pub(crate) fn verify(py: Python<'_>, graph_text: &str, files: BTreeMap<String, String>) -> PyResult<String> {
    let proof = || {
        let graph: graph::Graph = graph_text.parse()?;
        compiler::verify(&graph, &files_of(files)).map(|proof| proof.to_string())
    };
    guarded(Evidence::text(graph_text), || py.detach(proof))
}

/// The table of operator families, as in the documentation.
#[pyfunction]
pub(crate) fn operators_table() -> PyResult<String> {
    sound(Evidence::none(), rules::families::table)
}
