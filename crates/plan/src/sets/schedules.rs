//! `1f1b`, `gpipe`, `interleaved`, `zb-h1`, `zb-v`, `2bw`: in which order the blocks of a pipeline run.

use diag::{Error, Result};
use schedule::Schedule;

use super::{Argument, Auto, Model, Rounds, Set, stages};

pub(super) const ONE_F_ONE_B: Set = Set {
    schedule: Some(Schedule::OneFOneB),
    auto: Auto::Schedule,
    examples: &["stages:2 x 1f1b"],
    ..Set::new("1f1b", "a stage runs backward as soon as it can, so that few micro-batches are in flight")
};

pub(super) const GPIPE: Set = Set {
    schedule: Some(Schedule::Gpipe),
    auto: Auto::OtherSchedule(&[Argument::None]),
    examples: &["stages:2 x gpipe"],
    ..Set::new("gpipe", "a stage runs all forwards of a step, then all backwards")
};

pub(super) const INTERLEAVED: Set = Set {
    rounds: Some(Rounds {
        count: |_, said| Ok(said.unwrap_or(2)),
        cut: evenly,
        stage: |block, stages| block % stages,
    }),
    schedule: Some(Schedule::Interleaved),
    auto: Auto::OtherSchedule(&[Argument::Number(2), Argument::Number(4)]),
    examples: &["stages:2 x interleaved:2"],
    ..Set::new(
        "interleaved",
        "each stage has several blocks, and a micro-batch passes all stages once for each block",
    )
};

pub(super) const ZB_H1: Set = Set {
    schedule: Some(Schedule::ZbH1),
    auto: Auto::OtherSchedule(&[Argument::None]),
    examples: &["stages:2 x zb-h1"],
    ..Set::new("zb-h1", "as `1f1b`, and weight gradients are computed later, where a stage would wait")
};

pub(super) const ZB_V: Set = Set {
    rounds: Some(Rounds {
        count: |_, said| two(said),
        cut: evenly,
        stage: |block, stages| block.min(2 * stages - 1 - block),
    }),
    schedule: Some(Schedule::ZbV),
    auto: Auto::OtherSchedule(&[Argument::None]),
    examples: &["stages:2 x zb-v"],
    ..Set::new(
        "zb-v",
        "each stage has two blocks: micro-batches go down through the first ones and up again through the second ones",
    )
};

pub(super) const TWO_BW: Set = Set {
    schedule: Some(Schedule::TwoBw),
    examples: &["stages:2 x 2bw"],
    ..Set::new(
        "2bw",
        "as `1f1b`, without a pipeline flush between steps; gradients are of parameters one update older",
    )
};

fn evenly(model: &Model<'_>, aside: &[bool], stages: u32, rounds: u32) -> Vec<u32> {
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
