//! One kind of error for the whole compiler: what, where, why, and what to do.
//!
//! Library crates return [`Error`]; only the edges (the Python module, the console command)
//! decide how it is shown. Every error carries a stable code that `docs/reference/errors.md` explains.

use std::fmt;

/// A refusal that a user can act on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// A stable code such as `SW0203`.
    pub code: &'static str,
    /// What is wrong, in one sentence.
    pub what: String,
    /// Where: the model's source line, or the file and line of the input.
    pub place: Option<String>,
    /// Why it is refused.
    pub why: Option<String>,
    /// What to do about it.
    pub fix: Option<String>,
}

pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub fn new(code: &'static str, what: impl Into<String>) -> Self {
        Self { code, what: what.into(), place: None, why: None, fix: None }
    }

    #[must_use]
    pub fn at(mut self, place: impl Into<String>) -> Self {
        self.place = Some(place.into());
        self
    }

    #[must_use]
    pub fn why(mut self, why: impl Into<String>) -> Self {
        self.why = Some(why.into());
        self
    }

    #[must_use]
    pub fn fix(mut self, fix: impl Into<String>) -> Self {
        self.fix = Some(fix.into());
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error[{}]: {}", self.code, self.what)?;
        for (label, text) in [("at", &self.place), ("why", &self.why), ("help", &self.fix)] {
            if let Some(text) = text {
                write!(f, "\n  {label}: {text}")?;
            }
        }
        Ok(())
    }
}

impl std::error::Error for Error {}
