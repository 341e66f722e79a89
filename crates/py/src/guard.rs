//! What goes wrong inside the compiler is a bug of ours. It reaches Python as an error that asks for a
//! report, and what a report needs is saved in a folder that the error names.
//!
//! Every entry point that computes goes through [`guarded`], so no panic passes.

use std::backtrace::Backtrace;
use std::cell::{Cell, RefCell};
use std::io;
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind, set_hook, take_hook};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use diag::{Error, Result};
use pyo3::prelude::*;

use crate::errors::raise;
use crate::model::Model;

/// What a report needs: the graph, and the plan if there is one already.
#[derive(Clone, Copy, Default)]
pub(crate) struct Evidence<'a> {
    text: Option<&'a str>,
    model: Option<&'a Model>,
    plan: Option<&'a plan::Plan>,
}

impl<'a> Evidence<'a> {
    pub(crate) fn none() -> Self {
        Self::default()
    }

    pub(crate) fn from_model(model: &'a Model) -> Self {
        Self { model: Some(model), ..Self::default() }
    }

    /// The text of a graph that is not read yet.
    pub(crate) fn text(text: &'a str) -> Self {
        Self { text: Some(text), ..Self::default() }
    }

    pub(crate) fn with(self, plan: &'a plan::Plan) -> Self {
        Self { plan: Some(plan), ..self }
    }

    fn files(&self, failure: &str) -> Vec<(&'static str, String)> {
        let about = concat!("shardwright ", env!("CARGO_PKG_VERSION"), "\n");
        let mut files = vec![("failure.txt", format!("{about}{failure}\n"))];
        let read = || self.model.map(|model| text(|| model.graph.to_string()));
        let graph = self.text.map(str::to_owned).or_else(read).map(|text| ("model.graph", text));
        let plan = self.model.zip(self.plan).map(|(model, plan)| {
            ("the.plan", text(|| plan::text::print(plan, &model.graph, &model.analysis)))
        });
        files.extend(graph.into_iter().chain(plan));
        files
    }
}

/// Does the work of an entry point. A panic, and an error that is a bug of ours, ask for a report.
pub(crate) fn guarded<T>(evidence: Evidence<'_>, work: impl FnOnce() -> Result<T>) -> PyResult<T> {
    caught(work).map_err(|(error, failure)| match &failure[..] {
        "" => raise(error),
        _ => raise(asking(error, evidence, &failure)),
    })
}

/// The same for work that cannot fail otherwise.
pub(crate) fn sound<T>(evidence: Evidence<'_>, work: impl FnOnce() -> T) -> PyResult<T> {
    guarded(evidence, || Ok(work()))
}

thread_local! {
    static WATCHED: Cell<u32> = const { Cell::new(0) };
    static SEEN: RefCell<Option<(String, String)>> = const { RefCell::new(None) };
}

/// From now on a panic inside of an entry point is kept for its error, instead of being printed.
pub(crate) fn watch_panics() {
    let before = take_hook();
    set_hook(Box::new(move |info| {
        if WATCHED.get() == 0 {
            before(info);
        } else {
            SEEN.set(Some(seen(info)));
        }
    }));
}

/// Where it happened, and everything about it.
fn seen(info: &PanicHookInfo<'_>) -> (String, String) {
    let place = info.location().map_or_else(String::new, |l| format!("{}:{}", l.file(), l.line()));
    (place, format!("{info}\n{}", Backtrace::force_capture()))
}

/// The result, or an error with what is to be saved about it; nothing if it is the user's to mend.
fn caught<T>(work: impl FnOnce() -> Result<T>) -> std::result::Result<T, (Error, String)> {
    WATCHED.set(WATCHED.get() + 1);
    let result = catch_unwind(AssertUnwindSafe(work));
    WATCHED.set(WATCHED.get() - 1);
    match result {
        Ok(Ok(made)) => Ok(made),
        Ok(Err(error)) => {
            let failure = if error.code == compiler::REFUSED { error.to_string() } else { String::new() };
            Err((error, failure))
        }
        Err(panic) => {
            let words = panic.downcast_ref::<&str>().map(|text| (*text).to_string());
            let words = words.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
            let (place, failure) = SEEN.take().unwrap_or_default();
            Err((Error::new("SW0420", format!("the compiler failed: {words}")).at(place), failure + "\n"))
        }
    }
}

fn asking(error: Error, evidence: Evidence<'_>, failure: &str) -> Error {
    let why = error.why.clone().map_or_else(String::new, |why| format!("; {why}"));
    let ours = error.why(format!("this is a bug in Shardwright, not in the model or the plan{why}"));
    match save(&evidence.files(failure)) {
        Ok(folder) => ours.fix(format!(
            "report it with the folder {}, which has the graph, the plan and what happened; another plan may do",
            folder.display()
        )),
        Err(error) => ours.fix(format!(
            "report it with the model and the plan, which could not be saved ({error}); another plan may do"
        )),
    }
}

fn save(files: &[(&'static str, String)]) -> io::Result<PathBuf> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let folder = std::env::temp_dir().join(format!("shardwright-report-{}-{number}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    for (name, text) in files {
        std::fs::write(folder.join(name), text)?;
    }
    Ok(folder)
}

/// A text, unless making it fails as well.
fn text(make: impl FnOnce() -> String) -> String {
    caught(|| Ok(make())).unwrap_or_else(|(error, _)| format!("it cannot be written: {}", error.what))
}
