//! Plans, and the three primitives.

use std::sync::{Arc, Mutex};

use plan::micro_batches::{self, Weight};
use plan::{Decided, On, Side, SubOp, number_of_devices, random, sets, text};
use pyo3::prelude::*;

use crate::cost_py::{Cost, costs_of};
use crate::errors::raise;
use crate::graph_py::{Graph, Operator};
use crate::guard::{Evidence, guarded, sound};
use crate::model::Model;

#[pyclass(frozen, module = "shardwright._core")]
pub(crate) struct Plan {
    pub(crate) model: Arc<Model>,
    pub(crate) plan: plan::Plan,
    notes: Vec<String>,
    /// For each operator why a named plan leaves it whole, where that is known.
    reasons: Vec<Option<String>>,
}

/// Operations of the model, of each device, those that it repeats for backward; and what several devices
/// compute alike: module, operations, why.
type WorkCounts = (f64, Vec<f64>, Vec<f64>, Vec<(String, f64, String)>);

impl Plan {
    /// A plan that was made for a graph.
    pub(crate) fn new(graph: &Graph, plan: plan::Plan) -> Self {
        Self { model: Arc::clone(&graph.model), plan, notes: vec![], reasons: vec![] }
    }
}

#[pymethods]
impl Plan {
    /// A well-known plan by its name, such as `data` or `data:2 x megatron:2`.
    #[staticmethod]
    fn named(py: Python<'_>, graph: &Graph, name: &str, devices: i64) -> PyResult<Self> {
        let model = Arc::clone(&graph.model);
        let make = || sets::explained(name, &model.graph, &model.analysis, number_of_devices(devices)?);
        let (plan, reasons) = guarded(Evidence::from_model(&graph.model), || py.detach(make))?;
        Ok(Self { model, plan, notes: vec![], reasons })
    }

    /// Reads a plan file's text. `devices` overrides the file's own number.
    #[staticmethod]
    #[pyo3(signature = (graph, text, devices = None))]
    fn parse(graph: &Graph, text: &str, devices: Option<i64>) -> PyResult<Self> {
        let model = Arc::clone(&graph.model);
        let plan = guarded(Evidence::from_model(&graph.model), || {
            let devices = devices.map(number_of_devices).transpose()?;
            text::parse(text, &model.graph, &model.analysis, devices)
        })?;
        Ok(Self { model, plan, notes: vec![], reasons: vec![] })
    }

    /// Any legal split of every operator on any devices; the same seed gives the same plan.
    #[staticmethod]
    fn random(graph: &Graph, devices: i64, seed: u64) -> PyResult<Self> {
        let model = Arc::clone(&graph.model);
        let plan = guarded(Evidence::from_model(&graph.model), || {
            Ok(random::plan(&model.graph, &model.analysis, number_of_devices(devices)?, seed))
        })?;
        Ok(Self { model, plan, notes: vec![], reasons: vec![] })
    }

    /// The same decisions for another graph of the same model: other sizes, another mode, no labels.
    fn transferred(&self, py: Python<'_>, graph: &Graph) -> PyResult<Self> {
        let model = Arc::clone(&graph.model);
        let find = || plan::transfer(&self.plan, side(&self.model), side(&model));
        let transferred = sound(self.evidence(), || py.detach(find))?;
        Ok(Self { model, plan: transferred.plan, notes: transferred.notes, reasons: vec![] })
    }

    /// A plan for a unit of devices, made for this graph, on so many units that divide its batch.
    #[staticmethod]
    fn repeated(graph: &Graph, unit_plan: &Self, units: u32) -> PyResult<Self> {
        let model = Arc::clone(&graph.model);
        let (plan, notes) = guarded(unit_plan.evidence(), || {
            let unit = plan::transfer(&unit_plan.plan, side(&unit_plan.model), side(&model));
            Ok((plan::repeat(&unit.plan, &model.graph, &model.analysis, units)?, unit.notes))
        })?;
        Ok(Self { model, plan, notes, reasons: vec![] })
    }

    /// What `transferred` could not carry over.
    #[getter]
    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }

    /// Operations of the model in a step, those of each device, and what devices repeat: the operator's
    /// module, the operations beyond an even share, and the reason.
    #[getter]
    fn work(&self) -> PyResult<WorkCounts> {
        let (graph, analysis) = (&self.model.graph, &self.model.analysis);
        let reason = |op: graph::OpId| self.reasons.get(op.index()).cloned().flatten();
        sound(self.evidence(), || {
            let work = compiler::work(graph, analysis, &self.plan);
            let repeated = work.repeated.into_iter().map(|it| {
                let split = self.plan.op(it.op).splits.iter().any(|split| split.on != On::Copies);
                let other = if split { "its parts repeat some of it" } else { "the plan says so" };
                let why = reason(it.op).unwrap_or_else(|| other.into());
                (graph.op(it.op).module.clone(), it.operations, why)
            });
            (work.model, work.devices, work.recomputed, repeated.collect())
        })
    }

    /// The operators that its programs rewrite, and along which dims, those that are alike on one line.
    #[getter]
    fn rewritings(&self) -> PyResult<Vec<String>> {
        let Model { graph, analysis, .. } = &*self.model;
        guarded(self.evidence(), || plan::rests_on(graph, analysis, &self.plan))
    }

    /// The graph that its programs speak of: the model's, with these rewritings.
    #[getter]
    fn rewritten(&self) -> PyResult<Graph> {
        let Model { graph, analysis, .. } = &*self.model;
        guarded(self.evidence(), || {
            let rewritten = plan::rewritten(graph, analysis, &self.plan)?;
            Ok(Graph { model: Arc::new(Model::new(rewritten)) })
        })
    }

    /// What each part of an operator costs, in the plan's order.
    fn costs(&self, operator: &Operator) -> PyResult<Vec<Cost>> {
        if !Arc::ptr_eq(&self.model, &operator.model) {
            return Err(raise(plan::stranger()));
        }
        sound(self.evidence(), || costs_of(&self.model, operator.id, self.plan.op(operator.id)))
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
    fn text(&self) -> PyResult<String> {
        sound(Evidence::from_model(&self.model), || {
            text::print(&self.plan, &self.model.graph, &self.model.analysis)
        })
    }

    /// The same as people read it: layers that are alike on one line, dims by what they are.
    #[getter]
    fn folded(&self) -> PyResult<String> {
        sound(Evidence::from_model(&self.model), || {
            plan::print_folded(&self.plan, &self.model.graph, &self.model.analysis)
        })
    }

    /// For each operator: its splits as (dim, parts) and its devices.
    #[getter]
    #[expect(clippy::type_complexity, reason = "plain data for Python")]
    fn decisions(&self) -> Vec<(Operator, Vec<(String, u32)>, Vec<u32>)> {
        (self.model.graph.op_ids().zip(&self.plan.ops))
            .map(|(id, p)| {
                let splits =
                    p.splits.iter().map(|s| (s.on.word(&self.model.analysis, id), s.parts)).collect();
                (Operator { model: Arc::clone(&self.model), id }, splits, p.devices.to_vec())
            })
            .collect()
    }

    /// The operators that are computed again for backward: spans, outer ones before those inside of them.
    #[getter]
    fn recompute(&self) -> Vec<Vec<Operator>> {
        let operator = |id: &graph::OpId| Operator { model: Arc::clone(&self.model), id: *id };
        self.plan.recompute.iter().map(|span| span.iter().map(operator).collect()).collect()
    }

    /// The operators of which what is kept for backward is on the host until then, with what goes there together.
    #[getter]
    fn offload(&self) -> Vec<Vec<Operator>> {
        let operator = |id: &graph::OpId| Operator { model: Arc::clone(&self.model), id: *id };
        self.plan.offload.iter().map(|span| span.iter().map(operator).collect()).collect()
    }

    /// The parameters of which the optimizer's state is on the host between steps, by their first names.
    #[getter]
    fn state_on_host(&self) -> Vec<&str> {
        self.plan.state_on_host.iter().map(String::as_str).collect()
    }

    /// The parameters that live on the host, by their first names.
    #[getter]
    fn held_on_host(&self) -> Vec<&str> {
        self.plan.held_on_host.iter().map(String::as_str).collect()
    }

    fn __repr__(&self) -> String {
        format!("Plan({:?}, {} devices)", self.plan.name, self.plan.devices)
    }
}

impl Plan {
    pub(crate) fn evidence(&self) -> Evidence<'_> {
        Evidence::from_model(&self.model).with(&self.plan)
    }
}

fn side(model: &Model) -> plan::Side<'_> {
    plan::Side { graph: &model.graph, analysis: &model.analysis }
}

/// One part of a divided operator.
#[pyclass(frozen, module = "shardwright._core")]
pub(crate) struct Part {
    model: Arc<Model>,
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
    devices: u32,
    decided: Mutex<Decided>,
}

impl Draft {
    fn with<T>(&self, work: impl FnOnce(&mut plan::Draft<'_>) -> diag::Result<T>) -> PyResult<T> {
        let mut decided = self.decided.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        guarded(Evidence::from_model(&self.model), || {
            let mut draft =
                plan::Draft::resume(&self.model.graph, &self.model.analysis, std::mem::take(&mut *decided));
            let result = work(&mut draft);
            *decided = draft.pause();
            result
        })
    }

    /// Refuses what belongs to another graph.
    fn refuse_strange(&self, model: &Arc<Model>) -> PyResult<()> {
        if Arc::ptr_eq(&self.model, model) {
            return Ok(());
        }
        Err(raise(plan::stranger()))
    }

    /// Operators, all of this graph.
    fn ids(&self, operators: &[PyRef<'_, Operator>]) -> PyResult<Vec<graph::OpId>> {
        let id = |operator: &PyRef<'_, Operator>| self.refuse_strange(&operator.model).map(|()| operator.id);
        operators.iter().map(id).collect()
    }

    fn parts(&self, parts: Vec<SubOp>) -> Vec<Part> {
        parts.into_iter().map(|sub| Part { model: Arc::clone(&self.model), sub }).collect()
    }

    fn device(&self, op: graph::OpId, number: i64) -> diag::Result<u32> {
        let line = || self.model.graph.op(op).line.clone();
        u32::try_from(number).map_err(|_| plan::no_device(number, self.devices).at(line()))
    }
}

/// What a plan puts before something else.
#[derive(FromPyObject)]
enum Ordered<'py> {
    Operator(PyRef<'py, Operator>),
    Task(String),
}

#[pymethods]
impl Draft {
    #[new]
    fn new(graph: &Graph, name: &str, devices: i64) -> PyResult<Self> {
        let model = Arc::clone(&graph.model);
        let devices = number_of_devices(devices).map_err(raise)?;
        let decided = plan::Draft::new(&model.graph, &model.analysis, name, devices).pause();
        Ok(Self { model, devices, decided: Mutex::new(decided) })
    }

    /// Divides an operator along a dim, into copies (`replicate`) or partial sums (`value`).
    fn trans(&self, operator: &Operator, algo: &str, parts: i64) -> PyResult<Vec<Part>> {
        self.refuse_strange(&operator.model)?;
        // No operator can be split into no parts, nor into so many: the same refusal as for fewer than none.
        let count = u32::try_from(parts).unwrap_or(if parts < 0 { 0 } else { u32::MAX });
        Ok(self.parts(self.with(|d| d.trans(operator.id, algo, count))?))
    }

    /// Leaves an operator in one piece.
    fn single(&self, operator: &Operator) -> PyResult<Vec<Part>> {
        self.refuse_strange(&operator.model)?;
        let parts = self.with(|d| {
            d.set(operator.id, vec![]);
            Ok(d.parts(operator.id))
        })?;
        Ok(self.parts(parts))
    }

    fn assign(&self, part: &Part, device: i64) -> PyResult<()> {
        self.refuse_strange(&part.model)?;
        self.with(|d| d.assign(part.sub, self.device(part.sub.op, device)?))
    }

    /// Assigns all parts of an operator, in order.
    #[expect(clippy::needless_pass_by_value, reason = "PyO3 gives lists as owned values")]
    fn place(&self, operator: &Operator, devices: Vec<i64>) -> PyResult<()> {
        self.refuse_strange(&operator.model)?;
        self.with(|d| {
            let devices: diag::Result<Vec<u32>> =
                devices.iter().map(|device| self.device(operator.id, *device)).collect();
            d.place(operator.id, devices?)
        })
    }

    /// The first operator runs before the second; or the first task of a pipeline, `"B0"`, before the second, `"F0+2"`,
    /// for every micro-batch.
    fn order(&self, before: Ordered<'_>, after: Ordered<'_>) -> PyResult<()> {
        match (before, after) {
            (Ordered::Operator(before), Ordered::Operator(after)) => {
                self.refuse_strange(&before.model)?;
                self.refuse_strange(&after.model)?;
                self.with(|d| {
                    d.order(before.id, after.id);
                    Ok(())
                })
            }
            (Ordered::Task(before), Ordered::Task(after)) => self.with(|d| {
                d.order_tasks(plan::task_or_refuse(&before)?, plan::task_or_refuse(&after)?);
                Ok(())
            }),
            _ => Err(raise(plan::mixed_order())),
        }
    }

    /// What a device runs, written out: `"F0+1 B0"`, for `b` = 0, `every`, 2 * `every`...
    #[pyo3(signature = (device, tasks, every = 1))]
    fn timetable(&self, device: i64, tasks: &str, every: u32) -> PyResult<()> {
        let known = u32::try_from(device).ok().filter(|device| *device < self.devices);
        let device = known.ok_or_else(|| raise(plan::no_device(device, self.devices)))?;
        self.with(|d| {
            d.timetable(device, plan::loops(Some(&every.to_string()), tasks)?);
            Ok(())
        })
    }

    /// Of these operators forward keeps only what they read from others; backward computes them again.
    #[expect(clippy::needless_pass_by_value, reason = "PyO3 gives lists as owned values")]
    fn recompute(&self, operators: Vec<PyRef<'_, Operator>>) -> PyResult<()> {
        let span = self.ids(&operators)?;
        self.with(|d| {
            d.recompute(span);
            Ok(())
        })
    }

    /// The next block of a pipeline: operators that run together for one micro-batch after another. What no block
    /// names goes with what it reads.
    #[expect(clippy::needless_pass_by_value, reason = "PyO3 gives lists as owned values")]
    fn block(&self, operators: Vec<PyRef<'_, Operator>>) -> PyResult<()> {
        let block = self.ids(&operators)?;
        self.with(|d| {
            d.block(&block);
            Ok(())
        })
    }

    /// In which order blocks run: `1f1b`, `gpipe`, `interleaved`, `zb-h1`, `zb-v`, `2bw`.
    fn schedule(&self, name: &str) -> PyResult<()> {
        self.with(|d| {
            d.schedule(plan::schedule_named(name)?);
            Ok(())
        })
    }

    /// Each block runs so many slices of the sequence, one after another.
    fn tokens(&self, slices: u32) -> PyResult<()> {
        self.with(|d| {
            d.tokens(slices);
            Ok(())
        })
    }

    /// In backward, messages of at least so many bytes run while gradients of parameters are computed; without a
    /// number none does.
    fn overlap(&self, bytes: Option<u64>) -> PyResult<()> {
        self.with(|d| {
            d.overlap(bytes.unwrap_or(u64::MAX));
            Ok(())
        })
    }

    /// What forward keeps of these operators for backward is on the host until then; of none it is that nothing is.
    #[expect(clippy::needless_pass_by_value, reason = "PyO3 gives lists as owned values")]
    fn offload(&self, operators: Vec<PyRef<'_, Operator>>) -> PyResult<()> {
        let span = self.ids(&operators)?;
        self.with(|d| {
            d.offload(span);
            Ok(())
        })
    }

    /// The optimizer's state of the parameters whose names fit a glob is on the host between steps.
    fn offload_state(&self, names: &str) -> PyResult<()> {
        self.with(|d| d.offload_state(&format!("\"{names}\"")))
    }

    /// The parameters whose names fit a glob live on the host, and the optimizer steps them there.
    fn offload_parameters(&self, names: &str) -> PyResult<()> {
        self.with(|d| d.offload_parameters(&format!("\"{names}\"")))
    }

    /// Where parameters live between steps, by a glob of their names: `over 4`, `over 4, gather step, reduce last`,
    /// `dim 1 over (0 2) (1 3)` or `whole`, as in plan files.
    fn param(&self, names: &str, place: &str) -> PyResult<()> {
        self.with(|d| d.param(&format!("\"{names}\": {place}")))
    }

    fn finish(&self) -> PyResult<Plan> {
        let decided = self.decided.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
        let plan = guarded(Evidence::from_model(&self.model), || {
            plan::Draft::resume(&self.model.graph, &self.model.analysis, decided).finish()
        })?;
        Ok(Plan { plan, model: Arc::clone(&self.model), notes: vec![], reasons: vec![] })
    }
}

/// The names of plans.
#[pyfunction]
pub(crate) fn plan_names() -> Vec<&'static str> {
    sets::ALL.iter().map(|set| set.name).collect()
}

/// Names that show each of them.
#[pyfunction]
pub(crate) fn plan_examples() -> Vec<&'static str> {
    sets::examples().collect()
}

/// For how many devices a plan of this name is, where the name itself says it.
#[pyfunction]
pub(crate) fn plan_devices(name: &str) -> PyResult<Option<u32>> {
    guarded(Evidence::none(), || sets::devices_of(name))
}

/// What a micro-batch counts in the loss of its batch, of a model that was captured with two and with one of them:
/// `sum`, `mean`, or the text of a graph that counts for two; the inputs that have rows of the batch, and how many.
#[pyfunction]
pub(crate) fn micro_batch_weight(whole: &Graph, one: &Graph) -> PyResult<(String, Vec<usize>, i64)> {
    let (whole, one) = (Arc::clone(&whole.model), Arc::clone(&one.model));
    let (rows, positions, weight) = guarded(Evidence::from_model(&whole), || {
        let sides = [&whole, &one].map(|model| Side { graph: &model.graph, analysis: &model.analysis });
        micro_batches::cut(sides[0], sides[1])
    })?;
    let weight = match weight {
        Weight::One => "sum".into(),
        Weight::Equal => "mean".into(),
        Weight::Counted(text) => text,
    };
    Ok((weight, positions, rows))
}

/// Fails as a bug of the compiler would, so that tests see what becomes of one.
#[pyfunction]
pub(crate) fn _fail(plan: &Plan) -> PyResult<()> {
    sound(plan.evidence(), || panic!("as it was asked to"))
}
