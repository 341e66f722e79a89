//! The name of a plan that the search made: what it began with, and what was changed. It parses and prints as a plan's
//! name does, so that nobody edits one as text.

use std::fmt;

use plan::PlanName;
use plan::sets::{Set, SetTerm, auto};

/// `found, data:2 x recompute, 3 of 8 layers recomputed`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Title {
    /// Whether the search changed a plan that has a name, or found its stages.
    is_found: bool,
    /// What begins it and is no set: `auto`, `4 stages`.
    begins: Option<String>,
    sets: Option<PlanName>,
    changes: Vec<String>,
}

const FOUND: &str = "found";
const AUTO: &str = "auto";

impl Title {
    /// Of a plan that the search chose from all of one block.
    pub(crate) fn auto(sets: impl IntoIterator<Item = SetTerm>) -> Self {
        Self { begins: Some(AUTO.into()), ..Self::parse("") }.with_all(sets)
    }

    /// Of a pipeline whose stages it found.
    pub(crate) fn stages(count: usize) -> Self {
        Self { is_found: true, begins: Some(format!("{count} stages")), ..Self::parse("") }
    }

    pub(crate) fn parse(text: &str) -> Self {
        let mut pieces = text.split(", ").peekable();
        let is_found = pieces.next_if_eq(&FOUND).is_some();
        let head = pieces.next().unwrap_or_default();
        let (begins, sets) = match (head.parse::<PlanName>(), head.split_once(" x ")) {
            (Ok(sets), _) => (None, Some(sets)),
            (_, Some((begins, sets))) => match sets.parse() {
                Ok(sets) => (Some(begins.to_owned()), Some(sets)),
                Err(_) => (Some(head.to_owned()), None),
            },
            _ => (Some(head.to_owned()), None),
        };
        Self { is_found, begins, sets, changes: pieces.map(str::to_owned).collect() }
    }

    pub(crate) fn with(self, term: SetTerm) -> Self {
        self.with_all([term])
    }

    fn with_all(self, terms: impl IntoIterator<Item = SetTerm>) -> Self {
        let mut all: Vec<SetTerm> = self.sets.iter().flat_map(PlanName::terms).copied().collect();
        all.extend(terms);
        let sets = (!all.is_empty()).then(|| PlanName::new(all));
        Self { sets, ..self }
    }

    /// Without a set.
    pub(crate) fn without(self, set: &Set) -> Self {
        let is_left =
            |sets: &PlanName| self.begins.is_none() || sets.terms().iter().any(|it| it.set() != set);
        let sets = self.sets.as_ref().filter(|sets| is_left(sets)).map(|sets| sets.without(set));
        Self { sets, ..self }
    }

    /// With so much recomputed; what was said of its layers before is gone. Of stages that were found it is not said.
    pub(crate) fn with_recompute(mut self, term: Option<SetTerm>) -> Self {
        self.changes.retain(|change| !change.contains(" layers "));
        let is_said = self.begins.as_deref().is_none_or(|begins| begins == AUTO);
        let title = self.without(auto::recomputes());
        match term.filter(|_| is_said) {
            Some(term) => title.with(term),
            None => title,
        }
    }

    /// Changed by the search.
    pub(crate) fn changed(mut self, change: String) -> Self {
        self.is_found |= self.begins.as_deref() != Some(AUTO);
        self.changes.push(change);
        self
    }
}

impl fmt::Display for Title {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sets = self.sets.as_ref().map(ToString::to_string);
        let head: Vec<&str> = self.begins.as_deref().into_iter().chain(sets.as_deref()).collect();
        let prefix = self.is_found.then(|| FOUND.to_owned());
        let pieces: Vec<String> =
            prefix.into_iter().chain([head.join(" x ")]).chain(self.changes.iter().cloned()).collect();
        f.write_str(&pieces.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use plan::sets::auto;

    use super::*;

    #[test]
    fn what_prints_parses() {
        for text in [
            "auto",
            "auto x recompute",
            "auto x recompute:selective, 3 of 8 layers again",
            "auto, 2 of 8 layers on the host",
            "found, 4 stages",
            "found, 4 stages x zb-v",
            "found, 4 stages x gpipe, in an order of its own",
            "found, stages:2 x data:2 x 1f1b x recompute, 3 of 8 layers again",
            "data:2 x megatron:4",
            "stages:2 x 1f1b, in an order of its own",
            "a plan of somebody, with x and all",
        ] {
            let title = Title::parse(text);
            assert_eq!(title.to_string(), text);
            assert_eq!(Title::parse(&title.to_string()), title);
        }
    }

    #[test]
    fn changes() {
        let recomputed = auto::recompute()[0].set();
        let changed = |text: &str| Title::parse(text).without(recomputed).changed("half".into()).to_string();
        assert_eq!(changed("auto x recompute:selective"), "auto, half");
        assert_eq!(changed("data:2 x recompute"), "found, data:2, half");
        assert_eq!(changed("found, data:2 x recompute, 3 of 8"), "found, data:2, 3 of 8, half");
        assert_eq!(changed("found, 4 stages"), "found, 4 stages, half");
        assert_eq!(changed("a plan, changed"), "found, a plan, changed, half");
    }

    #[test]
    fn beginnings() {
        assert_eq!(Title::auto([]).to_string(), "auto");
        assert_eq!(Title::auto(auto::recompute().last().copied()).to_string(), "auto x recompute");
        assert_eq!(Title::stages(4).with(auto::schedule()).to_string(), "found, 4 stages x 1f1b");
    }
}
