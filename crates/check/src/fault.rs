//! What is wrong with a program.

use std::collections::HashSet;
use std::fmt;

use diag::Error;
use program::{Pass, RankId};

/// One thing that a program does wrong, on the first rank that does it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub code: &'static str,
    pub rank: Option<RankId>,
    /// The role and the instruction, if it is one instruction's fault.
    pub place: Option<Place>,
    /// What is wrong, in one sentence.
    pub what: String,
    /// What was expected, and what was found.
    pub why: Option<String>,
    /// The operator that it is about: target, module path and source line.
    pub operator: Option<String>,
}

/// Where in a role's code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    pub role: usize,
    pub block: u32,
    pub pass: Pass,
    /// The index of the instruction in that code.
    pub index: usize,
    /// The index of the local operator inside a call.
    pub op: Option<usize>,
}

impl Fault {
    pub(crate) fn new(code: &'static str, what: impl Into<String>) -> Self {
        Self { code, rank: None, place: None, what: what.into(), why: None, operator: None }
    }

    pub(crate) fn why(mut self, why: impl Into<String>) -> Self {
        self.why = Some(why.into());
        self
    }

    pub(crate) fn operator(mut self, operator: String) -> Self {
        self.operator = Some(operator);
        self
    }

    pub(crate) fn at(mut self, rank: RankId, place: Option<Place>) -> Self {
        self.rank = self.rank.or(Some(rank));
        self.place = self.place.or(place);
        self
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "role {}, {}", self.role, self.pass.name())?;
        if self.block > 0 {
            write!(f, "_{}", self.block)?;
        }
        write!(f, "[{}]", self.index)?;
        if let Some(op) = self.op {
            write!(f, ", operator {op}")?;
        }
        Ok(())
    }
}

/// Of a list of rewritings that cannot be applied.
impl From<Error> for Fault {
    fn from(error: Error) -> Fault {
        Fault { why: error.why, ..Fault::new(error.code, error.what) }
    }
}

impl From<&Fault> for Error {
    fn from(fault: &Fault) -> Error {
        let mut error = Error::new(fault.code, fault.what.clone());
        let rank = fault.rank.map(|rank| format!("rank {}", rank.0));
        let place = fault.place.map(|place| place.to_string());
        let parts: Vec<String> = rank.into_iter().chain(place).chain(fault.operator.clone()).collect();
        if !parts.is_empty() {
            error = error.at(parts.join(", "));
        }
        error.why.clone_from(&fault.why);
        error.fix(
            "undo the edit, or compile again; if nothing was edited, this is a bug: report it with the plan",
        )
    }
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Error {
        Error::from(&fault)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Error::from(self).fmt(f)
    }
}

/// How many faults are reported.
const MOST: usize = 20;

/// The faults found so far; one for each place and code, on the first rank that has it.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    pub(crate) list: Vec<Fault>,
    seen: HashSet<(Option<Place>, &'static str, Option<String>)>,
}

impl Faults {
    pub(crate) fn push(&mut self, fault: Fault) {
        // Without a place, the sentence tells faults apart.
        let what = fault.place.is_none().then(|| fault.what.clone());
        if self.seen.insert((fault.place, fault.code, what)) && self.list.len() < MOST {
            self.list.push(fault);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.list.len() >= MOST
    }
}
