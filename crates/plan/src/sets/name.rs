//! The name of a plan: sets in their order, each with what stands behind it, `data:2 x megatron:4 x recompute:selective`.
//!
//! Parsing what is printed gives the same name, and printing what is parsed gives the canonical text: one `x` between two
//! sets, and each by its own name and not by an alias. Nobody edits names as text.

use std::fmt;
use std::str::FromStr;

use diag::{Error, Result};

use super::term::{SetTerm, term};
use super::{Set, auto};

/// At least one set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanName {
    terms: Vec<SetTerm>,
}

impl PlanName {
    /// Some sets; none at all compute everything on every device.
    pub fn new(mut terms: Vec<SetTerm>) -> Self {
        if terms.is_empty() {
            terms.push(SetTerm::bare(auto::alone()));
        }
        Self { terms }
    }

    pub fn terms(&self) -> &[SetTerm] {
        &self.terms
    }

    /// Those that divide operators, the outermost axis first.
    pub fn axes(&self) -> impl Iterator<Item = &SetTerm> {
        self.terms.iter().filter(|term| term.set().along.is_some())
    }

    /// The schedule of its pipeline, if it names one: the last one holds.
    pub fn schedule(&self) -> Option<schedule::Schedule> {
        self.terms.iter().rev().find_map(|term| term.set().schedule)
    }

    pub fn has(&self, set: &Set) -> bool {
        self.terms.iter().any(|term| term.set() == set)
    }

    #[must_use]
    pub fn with(&self, term: SetTerm) -> Self {
        Self { terms: [&self.terms[..], &[term]].concat() }
    }

    /// Without all terms of a set.
    #[must_use]
    pub fn without(&self, set: &Set) -> Self {
        Self::new(self.terms.iter().copied().filter(|term| term.set() != set).collect())
    }

    /// Another set in the place of one, with the same size.
    #[must_use]
    pub fn with_set_instead(&self, set: &Set, other: &'static Set) -> Self {
        let instead =
            |term: &SetTerm| if term.set() == set { SetTerm::new(other, term.argument()) } else { *term };
        Self { terms: self.terms.iter().map(instead).collect() }
    }

    /// Another term in the place of one: of several that are the same, of the last.
    #[must_use]
    pub fn instead_of(&self, term: &SetTerm, other: SetTerm) -> Self {
        let mut terms = self.terms.clone();
        if let Some(at) = terms.iter().rposition(|candidate| candidate == term) {
            terms[at] = other;
        }
        Self { terms }
    }
}

impl fmt::Display for PlanName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, term) in self.terms.iter().enumerate() {
            f.write_str(if at > 0 { " x " } else { "" })?;
            term.fmt(f)?;
        }
        Ok(())
    }
}

impl FromStr for PlanName {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let terms = factors(name).into_iter().map(|factor| term(name, factor));
        Ok(Self { terms: terms.collect::<Result<_>>()? })
    }
}

/// What stands between the `x`: one that stands alone, or right behind a number.
fn factors(name: &str) -> Vec<&str> {
    let (mut factors, mut start) = (vec![], 0);
    let bytes = name.as_bytes();
    for at in 1..bytes.len() {
        let after_space = bytes[at - 1].is_ascii_whitespace();
        let before_space = bytes.get(at + 1).is_none_or(u8::is_ascii_whitespace);
        let alone = after_space && before_space || bytes[at - 1].is_ascii_digit();
        if bytes[at] == b'x' && alone {
            factors.push(name[start..at].trim());
            start = at + 1;
        }
    }
    factors.push(name[start..].trim());
    factors
}
