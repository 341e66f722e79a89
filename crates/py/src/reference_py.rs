//! A second opinion on emitted programs.

use std::collections::BTreeMap;

use diag::Error;
use pyo3::prelude::*;
use reference::{Report, Verdict};

use crate::guard::{Evidence, guarded};
use crate::program_py::files_of;

/// Runs an emitted program and its model on formal numbers, in a step of so many micro-batches. Gives what was
/// compared and how, or, where that cannot be known, why; refuses a program that is different.
#[pyfunction]
#[pyo3(signature = (graph_text, files, batches = 2, seed = 0))]
pub(crate) fn compare_numbers(
    py: Python<'_>,
    graph_text: &str,
    files: BTreeMap<String, String>,
    batches: u32,
    seed: u64,
) -> PyResult<(&'static str, String)> {
    let compared = || {
        let graph: graph::Graph = graph_text.parse()?;
        let program = emit::read(&graph, &files_of(files))?;
        match reference::compare(&graph, &program, seed, batches)? {
            Verdict::Equal(report) => Ok(("equal", said(&report))),
            Verdict::Unknown(reason) => Ok(("unknown", reason.to_string())),
            Verdict::Different(difference) => Err(different(&difference)),
        }
    };
    guarded(Evidence::text(graph_text), || py.detach(compared))
}

fn different(difference: &reference::Difference) -> Error {
    Error::new("SW0533", format!("on formal numbers the program is not its model: {difference}"))
        .why("all ranks and one device were run on the same numbers, modulo a large prime")
        .fix("undo the edit of the program, or compile again; if nobody edited it, report this as a bug")
}

fn said(report: &Report) -> String {
    let count = |calls: &BTreeMap<String, u64>| calls.values().sum::<u64>();
    let steps = if report.batches == 1 { "micro-batch" } else { "micro-batches" };
    let mut text = format!(
        "{} elements are equal, in a step of {} {steps}\n{} calls of operators computed by what they mean, and {} by a table\n",
        report.elements,
        report.batches,
        count(&report.exact),
        count(&report.opaque),
    );
    if report.undefined > 0 {
        text += &format!("{} of the elements are no number on either side\n", report.undefined);
    }
    if !report.rewritings_agree {
        text += "compared with the model as it is rewritten, which was not seen to equal the model\n";
    }
    if !report.opaque.is_empty() {
        let names: Vec<&str> = report.opaque.keys().map(String::as_str).collect();
        text += &format!("by a table: {}\n", names.join(", "));
    }
    text
}
