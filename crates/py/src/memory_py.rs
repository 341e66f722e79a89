//! What a rank has in memory, as Python sees it.

use compiler::Purpose;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Bytes that a rank has in a step.
#[pyclass(frozen, module = "shardwright._core")]
pub(crate) struct Memory {
    inner: compiler::Memory,
}

impl From<compiler::Memory> for Memory {
    fn from(inner: compiler::Memory) -> Self {
        Self { inner }
    }
}

#[pymethods]
impl Memory {
    /// The most at once.
    #[getter]
    fn total(&self) -> u64 {
        self.inner.total()
    }

    /// By what they are for, when they are the most.
    #[getter]
    fn peak<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        by_purpose(py, &self.inner.peak)
    }

    /// Of each purpose the most at any time.
    #[getter]
    fn most<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        by_purpose(py, &self.inner.most)
    }

    /// The most that is on the host at any time, and in none of the others.
    #[getter]
    fn offloaded(&self) -> u64 {
        self.inner.offloaded
    }

    /// When they are the most: the pass, the instruction and its number in it, the operator and its line.
    #[getter]
    fn at(&self) -> Option<String> {
        self.inner.at.as_ref().map(ToString::to_string)
    }
}

fn by_purpose<'py>(py: Python<'py>, bytes: &[u64]) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    for purpose in Purpose::ALL {
        dict.set_item(purpose.name(), bytes[purpose as usize])?;
    }
    Ok(dict)
}
