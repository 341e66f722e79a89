//! The search for the order of blocks, as Python sees it.

use std::time::{Duration, Instant};

use orders::{Limits, Problem, Repetend, SHAPES, Whole};
use pyo3::prelude::*;
use report::svg::{OrderBlock, OrderPicture};

use crate::guard::{Evidence, guarded, sound};

/// The orders that were found for blocks.
#[pyclass(frozen, module = "shardwright._core")]
pub(crate) struct FoundOrder {
    problem: Problem,
    repetend: Repetend,
    whole: Whole,
}

#[pymethods]
impl FoundOrder {
    /// So many micro-batches begin in a period.
    #[getter]
    fn group(&self) -> usize {
        self.repetend.group
    }

    /// After so much all begins again for the next micro-batches.
    #[getter]
    fn period(&self) -> i64 {
        self.repetend.period
    }

    /// No period of so many micro-batches is shorter.
    #[getter]
    fn period_bound(&self) -> i64 {
        self.repetend.bound
    }

    /// How long the busiest device waits in a period.
    #[getter]
    fn bubbles(&self) -> i64 {
        self.repetend.bubbles(&self.problem)
    }

    /// How many micro-batches are under way in the steady state.
    #[getter]
    fn in_flight(&self) -> i64 {
        self.repetend.in_flight(&self.problem)
    }

    /// How long the whole step takes.
    #[getter]
    fn makespan(&self) -> i64 {
        self.whole.end
    }

    /// No step of so many micro-batches takes less.
    #[getter]
    fn makespan_bound(&self) -> i64 {
        self.whole.bound
    }

    /// What was looked at to find it.
    #[getter]
    fn nodes(&self) -> u64 {
        self.repetend.nodes + self.whole.nodes
    }

    /// The whole step, drawn: a row for each device.
    #[getter]
    fn figure(&self) -> String {
        orders::figure(&self.problem, &self.whole.starts)
    }

    /// The same as a picture (SVG) with a title.
    fn svg(&self, title: String) -> PyResult<String> {
        sound(Evidence::none(), || report::svg::order(&self.picture(title)))
    }

    /// The lines of a plan that run the step so, if blocks have the names of tasks.
    #[getter]
    fn timetable(&self) -> Option<String> {
        orders::timetable(&self.problem, &self.repetend, &self.whole)
    }

    /// Whether the step goes on in the order of the steady state from its beginning to its end.
    #[getter]
    fn in_turn(&self) -> bool {
        self.whole.in_turn
    }

    /// Name, devices, time and memory of each block.
    #[getter]
    fn blocks(&self) -> Vec<(String, Vec<usize>, i64, i64)> {
        let blocks = self.problem.blocks.iter();
        blocks.map(|it| (it.name.clone(), it.devices.clone(), it.time, it.memory)).collect()
    }

    /// When each block begins in the steady state, for each micro-batch of a period.
    #[getter]
    fn steady(&self) -> Vec<Vec<i64>> {
        self.repetend.times.clone()
    }

    /// When each block begins in the step, for each micro-batch.
    #[getter]
    fn starts(&self) -> Vec<Vec<i64>> {
        self.whole.starts.clone()
    }
}

impl FoundOrder {
    fn picture(&self, title: String) -> OrderPicture {
        let count = match self.repetend.group {
            1 => "a micro-batch".to_owned(),
            many => format!("{many} micro-batches"),
        };
        let about = format!(
            "steady state: {count} every {}, {} in flight; a step of {} micro-batches takes {}",
            self.repetend.period,
            self.repetend.in_flight(&self.problem),
            self.whole.starts.len(),
            self.whole.end
        );
        let block = |(block, word): (&orders::Block, String)| OrderBlock {
            word,
            name: block.name.clone(),
            devices: block.devices.clone(),
            time: block.time,
        };
        OrderPicture {
            title,
            about,
            devices: self.problem.devices(),
            blocks: self.problem.blocks.iter().zip(orders::words(&self.problem)).map(block).collect(),
            starts: self.whole.starts.clone(),
            end: self.whole.end,
        }
    }
}

/// The names of known shapes, and what each is.
#[pyfunction]
pub(crate) fn shape_names() -> Vec<(&'static str, &'static str)> {
    SHAPES.to_vec()
}

/// The blocks of a known shape, as text.
#[pyfunction]
#[pyo3(signature = (name, devices, memory=None))]
pub(crate) fn blocks_of_shape(name: &str, devices: usize, memory: Option<i64>) -> PyResult<String> {
    guarded(Evidence::none(), || orders::named(name, devices, memory).map(|it| orders::print(&it)))
}

/// The order with the fewest bubbles for blocks that are given as text, and a step of so many micro-batches.
#[pyfunction]
#[pyo3(signature = (blocks, batches, *, memory=None, in_flight=None, seconds=None))]
pub(crate) fn search_order(
    py: Python<'_>,
    blocks: &str,
    batches: usize,
    memory: Option<i64>,
    in_flight: Option<i64>,
    seconds: Option<f64>,
) -> PyResult<FoundOrder> {
    let until = seconds.and_then(|it| Instant::now().checked_add(Duration::try_from_secs_f64(it).ok()?));
    let nodes = if until.is_some() { u64::MAX } else { Limits::default().nodes };
    let limits = Limits { nodes, until, in_flight };
    guarded(Evidence::none(), || {
        py.detach(|| {
            let mut problem = orders::parse(blocks)?;
            if let Some(memory) = memory {
                problem.room.fill(Some(memory));
                problem = problem.checked()?;
            }
            let (repetend, whole) = orders::found(&problem, batches, &limits)?;
            Ok(FoundOrder { problem, repetend, whole })
        })
    })
}
