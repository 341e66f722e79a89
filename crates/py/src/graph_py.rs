//! Graphs and their operators, as plan functions see them.

use std::sync::Arc;

use graph::{OpId, Source};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use rules::families::registered;
use rules::given::{Given, give};
use rules::{Kind, View};

use crate::cost_py::{Cost, cost_of};
use crate::guard::{Evidence, guarded, sound};
use crate::model::Model;
use crate::rule_py::refused;

/// The parameters, by all their names, and the inputs, by position, that have a gradient where these outputs alone
/// are given one: all others have none, not zeros.
#[pyfunction]
#[expect(clippy::needless_pass_by_value, reason = "what comes from Python is owned")]
pub(crate) fn reached_from(text: &str, outputs: Vec<usize>) -> PyResult<(Vec<String>, Vec<usize>)> {
    guarded(Evidence::text(text), || {
        let graph: graph::Graph = text.parse()?;
        let reached = graph.needs_grad_of(|number| outputs.contains(&number));
        let (mut names, mut positions) = (vec![], vec![]);
        for (tensor, _) in graph.tensors.iter().zip(reached).filter(|(_, reached)| *reached) {
            match &tensor.source {
                Source::Param { names: all, .. } => names.extend(all.iter().cloned()),
                Source::Input { position, .. } => positions.push(*position),
                _ => {}
            }
        }
        Ok((names, positions))
    })
}

#[pyclass(frozen, module = "shardwright._core")]
pub(crate) struct Graph {
    pub(crate) model: Arc<Model>,
}

#[pymethods]
impl Graph {
    #[new]
    fn new(py: Python<'_>, text: &str) -> PyResult<Self> {
        let made = || {
            let graph: graph::Graph = text.parse()?;
            Ok(Self { model: Arc::new(Model::new(graph)) })
        };
        guarded(Evidence::text(text), || py.detach(made))
    }

    #[getter]
    fn model(&self) -> &str {
        &self.model.graph.model
    }

    #[getter]
    fn text(&self) -> PyResult<String> {
        sound(Evidence::none(), || self.model.graph.to_string())
    }

    #[getter]
    fn digest(&self) -> PyResult<String> {
        sound(Evidence::none(), || self.model.graph.digest())
    }

    #[getter]
    fn operators(&self) -> Vec<Operator> {
        self.model.graph.op_ids().map(|id| Operator { model: Arc::clone(&self.model), id }).collect()
    }

    /// The results: name and whether they carry a gradient; `None` where the model returns `None`.
    #[getter]
    #[expect(clippy::type_complexity, reason = "plain data for Python")]
    fn outputs(&self) -> PyResult<Vec<Option<(String, Vec<i64>, bool)>>> {
        sound(Evidence::from_model(&self.model), || {
            let needs = &self.model.needs_grad;
            let output = |t: &Option<graph::TensorId>| {
                t.map(|t| {
                    let tensor = self.model.graph.tensor(t);
                    (tensor.name.clone(), tensor.shape.clone(), needs[t.index()])
                })
            };
            self.model.graph.outputs.iter().map(output).collect()
        })
    }

    /// The text in which operators that run as Python, by their numbers, have these rules: of each its text, the
    /// sizes that are arguments, the call without them if there are any, whether it was found, and the place of
    /// whoever stated it.
    #[expect(clippy::type_complexity, reason = "plain data from Python")]
    #[expect(clippy::needless_pass_by_value, reason = "what comes from Python is owned")]
    fn ruled(
        &self,
        rules: Vec<(usize, String, Vec<(String, i64)>, Option<String>, bool, Option<String>)>,
    ) -> PyResult<String> {
        guarded(Evidence::from_model(&self.model), || {
            let mut graph = self.model.graph.clone();
            for (at, rule, argument_sizes, call, is_found, place) in &rules {
                let id = OpId::new(*at);
                let name = registered::name_of(graph.op(id)).unwrap_or_default().to_owned();
                let given =
                    Given { rule, told: argument_sizes.clone(), call: call.as_deref(), found: *is_found };
                let text = registered::with_sizes(rule, argument_sizes);
                give(&mut graph, id, &given).map_err(|invalid| refused(&name, &text, place, &invalid))?;
            }
            Ok(graph.to_string())
        })
    }

    fn __repr__(&self) -> String {
        format!("Graph({:?}, {} operators)", self.model.graph.model, self.model.graph.ops.len())
    }
}

/// One operator of the model.
#[pyclass(frozen, module = "shardwright._core")]
#[derive(Clone)]
pub(crate) struct Operator {
    pub(crate) model: Arc<Model>,
    pub(crate) id: OpId,
}

#[pymethods]
impl Operator {
    /// The name of its first result.
    #[getter]
    fn name(&self) -> &str {
        let graph = &self.model.graph;
        graph.op(self.id).outputs.iter().flatten().next().map_or("_", |t| &graph.tensor(*t).name)
    }

    #[getter]
    fn path(&self) -> &str {
        &self.model.graph.op(self.id).module
    }

    #[getter]
    fn target(&self) -> &str {
        &self.model.graph.op(self.id).target
    }

    #[getter]
    fn line(&self) -> &str {
        &self.model.graph.op(self.id).line
    }

    #[getter]
    fn rule(&self) -> PyResult<Option<String>> {
        sound(Evidence::from_model(&self.model), || {
            self.model.analysis.rules[self.id.index()].as_ref().map(ToString::to_string)
        })
    }

    /// The dims that may be split, and their sizes.
    #[getter]
    fn dims<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dims = PyDict::new(py);
        for l in &self.model.analysis.op(self.id).loops {
            if l.kind != Kind::Whole && l.size > 1 {
                dims.set_item(&l.name, l.size)?;
            }
        }
        Ok(dims)
    }

    /// The shapes of its inputs and outputs.
    #[getter]
    fn shapes(&self) -> (Vec<Vec<i64>>, Vec<Vec<i64>>) {
        let graph = &self.model.graph;
        let op = graph.op(self.id);
        let shape = |t: graph::TensorId| graph.tensor(t).shape.clone();
        (
            op.inputs().into_iter().map(shape).collect(),
            op.outputs.iter().flatten().map(|t| shape(*t)).collect(),
        )
    }

    /// What it costs in one piece.
    #[getter]
    fn cost(&self) -> PyResult<Cost> {
        sound(Evidence::from_model(&self.model), || cost_of(&self.model, self.id))
    }

    /// Of a function with a registered rule: its sizes and the shapes of its inputs and outputs where dims that may
    /// be split have at most so many elements.
    #[expect(clippy::type_complexity, reason = "plain data for Python")]
    fn smaller(&self, most: i64) -> PyResult<Option<(Vec<i64>, Vec<Vec<i64>>, Vec<Vec<i64>>)>> {
        sound(Evidence::from_model(&self.model), || {
            let rule = self.model.analysis.rules[self.id.index()].as_ref()?;
            let smaller = registered::smaller(View::new(&self.model.graph, self.id), rule, most)?;
            Some((smaller.sizes, smaller.inputs, smaller.outputs))
        })
    }

    fn __repr__(&self) -> String {
        format!("Operator({})", self.model.graph.describe(self.id))
    }
}
