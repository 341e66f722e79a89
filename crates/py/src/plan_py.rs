//! Plans, and the three primitives.

use std::sync::{Arc, Mutex};

use plan::{Decided, On, SubOp, random, sets, text};
use pyo3::prelude::*;

use crate::errors::raise;
use crate::graph_py::{Graph, Model, Operator};

#[pyclass(frozen, module = "shardwright._core")]
pub(crate) struct Plan {
    pub(crate) model: Arc<Model>,
    pub(crate) plan: plan::Plan,
    notes: Vec<String>,
    /// For each operator why a named plan leaves it whole, where that is known.
    reasons: Vec<Option<String>>,
}

#[pymethods]
impl Plan {
    /// A well-known plan by its name, such as `data` or `data:2 x megatron:2`.
    #[staticmethod]
    fn named(py: Python<'_>, graph: &Graph, name: &str, devices: u32) -> PyResult<Self> {
        let model = Arc::clone(&graph.model);
        let found = py.detach(|| sets::explained(name, &model.graph, &model.analysis, devices));
        let (plan, reasons) = found.map_err(raise)?;
        Ok(Self { model, plan, notes: vec![], reasons })
    }

    /// Reads a plan file's text. `devices` overrides the file's own number.
    #[staticmethod]
    #[pyo3(signature = (graph, text, devices = None))]
    fn parse(graph: &Graph, text: &str, devices: Option<u32>) -> PyResult<Self> {
        let model = Arc::clone(&graph.model);
        let plan = text::parse(text, &model.graph, &model.analysis, devices).map_err(raise)?;
        Ok(Self { model, plan, notes: vec![], reasons: vec![] })
    }

    /// Any legal split of every operator on any devices; the same seed gives the same plan.
    #[staticmethod]
    fn random(graph: &Graph, devices: u32, seed: u64) -> Self {
        let model = Arc::clone(&graph.model);
        let plan = random::plan(&model.graph, &model.analysis, devices, seed);
        Self { model, plan, notes: vec![], reasons: vec![] }
    }

    /// The same decisions for another graph of the same model: other sizes, another mode, no labels.
    fn transferred(&self, py: Python<'_>, graph: &Graph) -> Self {
        let model = Arc::clone(&graph.model);
        let found = py.detach(|| plan::transfer(&self.plan, side(&self.model), side(&model)));
        Self { model, plan: found.plan, notes: found.notes, reasons: vec![] }
    }

    /// A plan for a unit of devices, made for this graph, on so many units that divide its batch.
    #[staticmethod]
    fn repeated(graph: &Graph, unit_plan: &Self, units: u32) -> PyResult<Self> {
        let model = Arc::clone(&graph.model);
        let unit = plan::transfer(&unit_plan.plan, side(&unit_plan.model), side(&model));
        let plan = plan::repeat(&unit.plan, &model.graph, &model.analysis, units).map_err(raise)?;
        Ok(Self { model, plan, notes: unit.notes, reasons: vec![] })
    }

    /// What `transferred` could not carry over.
    #[getter]
    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }

    /// Operations of the model in a step, those of each device, and what devices repeat: the operator's
    /// module, the operations beyond an even share, and the reason.
    #[getter]
    fn work(&self) -> (f64, Vec<f64>, Vec<(String, f64, String)>) {
        let (graph, analysis) = (&self.model.graph, &self.model.analysis);
        let work = compiler::work(graph, analysis, &self.plan);
        let reason = |op: graph::OpId| self.reasons.get(op.index()).cloned().flatten();
        let repeated = work.repeated.into_iter().map(|it| {
            let why = reason(it.op).unwrap_or_else(|| "the plan says so".into());
            (graph.op(it.op).module.clone(), it.operations, why)
        });
        (work.model, work.devices, repeated.collect())
    }

    #[getter]
    fn name(&self) -> &str {
        &self.plan.name
    }

    #[getter]
    fn devices(&self) -> u32 {
        self.plan.devices
    }

    #[getter]
    fn text(&self) -> String {
        text::print(&self.plan, &self.model.graph, &self.model.analysis)
    }

    /// The same as people read it: layers that are alike on one line, dims by what they are.
    #[getter]
    fn folded(&self) -> String {
        plan::print_folded(&self.plan, &self.model.graph, &self.model.analysis)
    }

    /// For each operator: its splits as (dim, parts) and its devices.
    #[getter]
    #[expect(clippy::type_complexity, reason = "plain data for Python")]
    fn decisions(&self) -> Vec<(Operator, Vec<(String, u32)>, Vec<u32>)> {
        let loops = |id: graph::OpId| &self.model.analysis.op(id).loops;
        let word = |id: graph::OpId, on: On| match on {
            On::Loop(index) => loops(id)[index].name.clone(),
            On::Copies => "replicate".into(),
            On::Value => "value".into(),
        };
        (self.model.graph.op_ids().zip(&self.plan.ops))
            .map(|(id, p)| {
                let splits = p.splits.iter().map(|s| (word(id, s.on), s.parts)).collect();
                (Operator { model: Arc::clone(&self.model), id }, splits, p.devices.clone())
            })
            .collect()
    }

    fn __repr__(&self) -> String {
        format!("Plan({:?}, {} devices)", self.plan.name, self.plan.devices)
    }
}

fn side(model: &Model) -> plan::Side<'_> {
    plan::Side { graph: &model.graph, analysis: &model.analysis }
}

/// One part of a divided operator.
#[pyclass(frozen, module = "shardwright._core")]
pub(crate) struct Part {
    sub: SubOp,
}

#[pymethods]
impl Part {
    #[getter]
    fn index(&self) -> u32 {
        self.sub.index
    }

    fn __repr__(&self) -> String {
        format!("Part({} of operator {})", self.sub.index, self.sub.op.index())
    }
}

/// A plan in the making.
#[pyclass(frozen, module = "shardwright._core")]
pub(crate) struct Draft {
    model: Arc<Model>,
    decided: Mutex<Decided>,
}

impl Draft {
    fn with<T>(&self, work: impl FnOnce(&mut plan::Draft<'_>) -> T) -> T {
        let mut decided = self.decided.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut draft =
            plan::Draft::resume(&self.model.graph, &self.model.analysis, std::mem::take(&mut *decided));
        let result = work(&mut draft);
        *decided = draft.pause();
        result
    }
}

#[pymethods]
impl Draft {
    #[new]
    fn new(graph: &Graph, name: &str, devices: u32) -> Self {
        let model = Arc::clone(&graph.model);
        let decided = plan::Draft::new(&model.graph, &model.analysis, name, devices).pause();
        Self { model, decided: Mutex::new(decided) }
    }

    /// Divides an operator along a dim, into copies (`replicate`) or partial sums (`value`).
    fn trans(&self, operator: &Operator, algo: &str, parts: u32) -> PyResult<Vec<Part>> {
        let parts = self.with(|d| d.trans(operator.id, algo, parts)).map_err(raise)?;
        Ok(parts.into_iter().map(|sub| Part { sub }).collect())
    }

    /// Leaves an operator in one piece.
    fn single(&self, operator: &Operator) -> Vec<Part> {
        self.with(|d| {
            d.set(operator.id, vec![]);
            d.parts(operator.id).into_iter().map(|sub| Part { sub }).collect()
        })
    }

    fn assign(&self, part: &Part, device: u32) -> PyResult<()> {
        self.with(|d| d.assign(part.sub, device)).map_err(raise)
    }

    /// Assigns all parts of an operator, in order.
    #[expect(clippy::needless_pass_by_value, reason = "PyO3 gives lists as owned values")]
    fn place(&self, operator: &Operator, devices: Vec<u32>) -> PyResult<()> {
        self.with(|d| d.place(operator.id, &devices)).map_err(raise)
    }

    /// The first operator runs before the second.
    fn order(&self, before: &Operator, after: &Operator) {
        self.with(|d| d.order(before.id, after.id));
    }

    fn finish(&self) -> PyResult<Plan> {
        let decided = self.decided.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
        let draft = plan::Draft::resume(&self.model.graph, &self.model.analysis, decided);
        let plan = draft.finish().map_err(raise)?;
        Ok(Plan { plan, model: Arc::clone(&self.model), notes: vec![], reasons: vec![] })
    }
}

/// The names of plans.
#[pyfunction]
pub(crate) fn plan_names() -> Vec<&'static str> {
    sets::ALL.iter().map(|set| set.name).collect()
}

/// For how many devices a plan of this name is, where the name itself says it.
#[pyfunction]
pub(crate) fn plan_devices(name: &str) -> PyResult<Option<u32>> {
    sets::devices_of(name).map_err(raise)
}
