//! When `auto` considers a set: each set says so itself, and where several say the same they are tried in the order of
//! [`ALL`].

use std::sync::LazyLock;

use super::{ALL, Argument, Model, Set, SetTerm};

/// When `auto` considers a set.
#[derive(Clone, Copy)]
pub enum Auto {
    /// Never: only a name asks for it.
    Never,
    /// Where no axis divides anything.
    Alone,
    /// As the axis of pipeline stages.
    Stages,
    /// As the axis of the model's replicas: how parameters are sharded over them. The next one needs less memory.
    Replicas,
    /// As the axis that divides each replica.
    Model,
    /// Instead of that one, of this model and so many devices.
    Instead(fn(&Model<'_>, u32) -> bool),
    /// As the schedule of every pipeline.
    Schedule,
    /// As another schedule of the few pipelines that would be quickest if no stage waited, with each of these arguments.
    OtherSchedule(&'static [Argument]),
    /// Where memory is short, with each of these arguments: the next one needs less memory.
    Recompute(&'static [Argument]),
    /// Where all of that is not enough, together with the last of these.
    OverTime,
    /// In the place of recomputation, with the first of these arguments; and where nothing else fits, with each of them and
    /// with several.
    Offload(&'static [Argument]),
}

/// The set of a pipeline's axis of stages.
pub fn stages() -> &'static Set {
    one(|auto| matches!(auto, Auto::Stages))
}

/// Where no axis divides anything.
pub fn alone() -> &'static Set {
    one(|auto| matches!(auto, Auto::Alone))
}

/// The set that divides each replica of the model.
pub fn model_axis() -> &'static Set {
    one(|auto| matches!(auto, Auto::Model))
}

/// What is tried instead of [`model_axis`] for a model and so many devices.
pub fn instead_of_model_axis(model: &Model<'_>, devices: u32) -> Vec<&'static Set> {
    let fits = |set: &&Set| matches!(set.auto, Auto::Instead(fits) if fits(model, devices));
    ALL.iter().copied().filter(fits).collect()
}

/// How parameters are sharded over replicas, from what communicates least to what needs least memory.
pub fn replicas() -> &'static [&'static Set] {
    static REPLICAS: LazyLock<Vec<&Set>> =
        LazyLock::new(|| ALL.iter().copied().filter(|set| matches!(set.auto, Auto::Replicas)).collect());
    &REPLICAS
}

/// The schedule of every pipeline.
pub fn schedule() -> SetTerm {
    SetTerm::bare(one(|auto| matches!(auto, Auto::Schedule)))
}

/// The other schedules.
pub fn other_schedules() -> Vec<SetTerm> {
    terms(|auto| if let Auto::OtherSchedule(all) = auto { all } else { &[] })
}

/// What is recomputed, from little to everything.
pub fn recompute() -> Vec<SetTerm> {
    terms(|auto| if let Auto::Recompute(all) = auto { all } else { &[] })
}

/// The set of these.
pub fn recomputes() -> &'static Set {
    one(|auto| matches!(auto, Auto::Recompute(_)))
}

/// What runs parts one after another, where recomputing everything is not enough.
pub fn over_time() -> SetTerm {
    SetTerm::bare(one(|auto| matches!(auto, Auto::OverTime)))
}

/// What is offloaded to the host: first what may take the place of recomputation.
pub fn offload() -> Vec<SetTerm> {
    terms(|auto| if let Auto::Offload(all) = auto { all } else { &[] })
}

/// Whether plans that `auto` looks at first may have a set: one that is refused is a bug.
pub fn is_usual(set: &Set) -> bool {
    use Auto::{Alone, Model, Recompute, Replicas, Schedule, Stages};
    matches!(set.auto, Alone | Stages | Replicas | Model | Schedule | Recompute(_))
}

fn one(is: fn(Auto) -> bool) -> &'static Set {
    ALL.iter().copied().find(|set| is(set.auto)).expect("some set says so")
}

fn terms(arguments: fn(Auto) -> &'static [Argument]) -> Vec<SetTerm> {
    let each = |set: &'static Set| arguments(set.auto).iter().map(move |it| SetTerm::new(set, *it));
    ALL.iter().copied().flat_map(each).collect()
}
