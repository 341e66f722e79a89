//! Named plans that differ from another by one choice that saves memory.

use super::{ALL, Argument, Auto, PlanName, Set, SetTerm, auto};

impl PlanName {
    /// `data:2 x megatron` with recomputation, with something on the host, or with more of the parameters sharded over the
    /// devices of `data`; with the usual schedule in the place of one that keeps more.
    pub fn with_less_memory(&self) -> Vec<Self> {
        let with = added().filter(|term| !self.says(term)).map(|term| self.with(term));
        let schedule =
            self.terms().iter().find(|term| term.set().schedule.is_some_and(schedule::Schedule::keeps_more));
        let sooner = schedule.map(|term| self.instead_of(term, auto::schedule()));
        with.chain(self.with_more_sharded()).chain(sooner).collect()
    }

    /// In the place of the axis that shards most of a parameter, what shards still more.
    fn with_more_sharded(&self) -> Vec<Self> {
        let sharding = |term: &SetTerm| Some((term.set().shards?, *term));
        let Some((most, term)) = self.terms().iter().filter_map(sharding).max_by_key(|(shards, _)| *shards)
        else {
            return vec![];
        };
        let more = |set: &&&'static Set| set.shards > Some(most) && matches!(set.auto, Auto::Replicas);
        ALL.iter()
            .filter(more)
            .map(|set| self.instead_of(&term, SetTerm::new(set, term.argument())))
            .collect()
    }

    /// Whether a name has a term, or another one of its set that says as much.
    fn says(&self, wanted: &SetTerm) -> bool {
        let terms = self.terms().iter().filter(|term| term.set() == wanted.set());
        let as_much =
            |term: &SetTerm| term.argument() == Argument::None || term.argument() == wanted.argument();
        terms.into_iter().any(|term| wanted.argument() == Argument::None || as_much(term))
    }
}

/// What may be multiplied in.
fn added() -> impl Iterator<Item = SetTerm> {
    ALL.iter().flat_map(|set| set.saves.iter().map(|it| SetTerm::new(set, *it)))
}
