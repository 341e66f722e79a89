//! From the compiler's errors to Python's exceptions.

use diag::Error;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// The exception of `shardwright.errors` that an error's code belongs to.
pub(crate) fn raise(error: Error) -> PyErr {
    Python::attach(|py| build(py, error).unwrap_or_else(|e| e))
}

fn build(py: Python<'_>, error: Error) -> PyResult<PyErr> {
    let class = match &error.code[..4] {
        "SW01" | "SW02" => "CaptureError",
        "SW03" => "PlanError",
        "SW05" => "CheckError",
        "SW07" => "RuntimeFault",
        "SW09" => "ClusterError",
        _ => "CompileError",
    };
    let details = PyDict::new(py);
    details.set_item("place", error.place)?;
    details.set_item("why", error.why)?;
    details.set_item("fix", error.fix)?;
    let class = py.import("shardwright.errors")?.getattr(class)?;
    Ok(PyErr::from_value(class.call((error.code, error.what), Some(&details))?))
}
