//! `1f1b`, `gpipe`, `interleaved`, `zb-h1`, `zb-v`, `2bw`: in which order the blocks of a pipeline run.

use diag::{Error, Result};
use schedule::Schedule;

use super::{Model, Rounds, Set, stages};

pub(super) const ONE_F_ONE_B: Set = Set {
    name: "1f1b",
    doc: "a stage runs backward as soon as it can, so that few micro-batches are in flight",
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
    doc: "each stage has several blocks, and a micro-batch passes all stages once for each block",
    along: None,
    aside: None,
    rounds: Some(Rounds {
        count: |_, said| Ok(said.unwrap_or(2)),
        cut: evenly,
        stage: |block, stages| block % stages,
    }),
    besides: &[("", |_, draft, _| {
        draft.schedule(Schedule::Interleaved);
        Ok(())
    })],
};

pub(super) const ZB_H1: Set = Set {
    name: "zb-h1",
    doc: "as `1f1b`, and weight gradients are computed later, where a stage would wait",
    along: None,
    rounds: None,
    aside: None,
    besides: &[("", |_, draft, _| {
        draft.schedule(Schedule::ZbH1);
        Ok(())
    })],
};

pub(super) const ZB_V: Set = Set {
    name: "zb-v",
    doc: "each stage has two blocks: micro-batches go down through the first ones and up again through the second ones",
    along: None,
    aside: None,
    rounds: Some(Rounds {
        count: |_, said| two(said),
        cut: evenly,
        stage: |block, stages| block.min(2 * stages - 1 - block),
    }),
    besides: &[("", |_, draft, _| {
        draft.schedule(Schedule::ZbV);
        Ok(())
    })],
};

pub(super) const TWO_BW: Set = Set {
    name: "2bw",
    doc: "as `1f1b`, without a pipeline flush between steps; gradients are of parameters one update older",
    along: None,
    aside: None,
    rounds: None,
    besides: &[("", |_, draft, _| {
        draft.schedule(Schedule::TwoBw);
        Ok(())
    })],
};

fn evenly(model: &Model<'_>, aside: &[bool], (stages, rounds): (u32, u32)) -> Vec<u32> {
    stages::cut(model, aside, stages * rounds)
}

fn two(said: Option<u32>) -> Result<u32> {
    match said.unwrap_or(2) {
        2 => Ok(2),
        other => Err(Error::new("SW0310", format!("`zb-v` has two blocks on each stage, and not {other}"))
            .why("micro-batches go down through one and come up again through another")
            .fix("write `zb-v`, or for more blocks `interleaved:4`")),
    }
}
