//! `1f1b`, `gpipe`, `interleaved`, `zb-h1`: in which order the blocks of a pipeline run.

use schedule::Schedule;

use super::{Rounds, Set, stages};

pub(super) const ONE_F_ONE_B: Set = Set {
    name: "1f1b",
    doc: "a stage runs backward as soon as it can, so that few micro-batches are kept at a time",
    along: None,
    aside: None,
    rounds: None,
    besides: &[("", |_, draft, _| {
        draft.schedule(Schedule::OneFOneB);
        Ok(())
    })],
};

pub(super) const GPIPE: Set = Set {
    name: "gpipe",
    doc: "a stage runs all forwards of a step, then all backwards",
    along: None,
    aside: None,
    rounds: None,
    besides: &[("", |_, draft, _| {
        draft.schedule(Schedule::Gpipe);
        Ok(())
    })],
};

pub(super) const INTERLEAVED: Set = Set {
    name: "interleaved",
    doc: "each stage has several blocks, which follow each other round all stages",
    along: None,
    aside: None,
    rounds: Some(Rounds {
        count: |_, said| Ok(said.unwrap_or(2)),
        cut: |model, aside, (stages, rounds)| stages::cut(model, aside, stages * rounds),
        stage: |block, stages| block % stages,
    }),
    besides: &[("", |_, draft, _| {
        draft.schedule(Schedule::Interleaved);
        Ok(())
    })],
};

pub(super) const ZB_H1: Set = Set {
    name: "zb-h1",
    doc: "as `1f1b`, and gradients of parameters are computed later, where a stage would wait",
    along: None,
    rounds: None,
    aside: None,
    besides: &[("", |_, draft, _| {
        draft.schedule(Schedule::ZbH1);
        Ok(())
    })],
};
