//! Plans whose steps follow each other without a pause, and what they cannot have.

use diag::{Error, Result};

use crate::project::Projected;
use crate::uses::Context;

/// Of parameters there are two versions, each where the other one is not: what is made of them for a while would be of
/// one or the other.
pub fn validate(cx: &Context<'_>, projected: &[Projected]) -> Result<()> {
    if let Some(device) = cx.plan.timetables.keys().next() {
        return Err(refused(cx, &format!("there is a timetable for device {device}"))
            .why("the schedule fixes what each device runs when, also across the ends of steps")
            .fix("leave the line out, or write `schedule 1f1b`"));
    }
    let mut names = cx.graph.updates.iter().map(|(name, _)| name);
    let written = |name: &&String| cx.graph.held(name).is_some_and(|held| cx.graph.is_parameter(held));
    if let Some(name) = names.find(written) {
        return Err(refused(cx, &format!("a forward writes the parameter `{name}`"))
            .why("no older version of what a forward writes is kept for the micro-batches in flight")
            .fix("keep it in a buffer, or take `1f1b`"));
    }
    let Some(copy) = projected.iter().find_map(|it| Some((it, it.table.copies.first()?))) else {
        return Ok(());
    };
    let tensor = copy.0.table.shards[copy.1.shard].tensor;
    let what = format!("`{}` is sharded between steps, or lives on the host", cx.graph.tensor(tensor).name);
    Err(refused(cx, &what)
        .why("it is gathered for each use, in a newer version than micro-batches in flight need")
        .fix("hold parameters whole, or sharded as `megatron` does, or take `1f1b`"))
}

/// Where devices have not one block each.
pub fn several(cx: &Context<'_>) -> Error {
    refused(cx, "a device has several blocks")
        .why("each stage has one block, and keeps as many micro-batches in flight as there are stages \
              after it")
        .fix("write `stages:4 x 2bw`, with as many blocks as stages; for more blocks take `interleaved` or `zb-v`")
}

fn refused(cx: &Context<'_>, what: &str) -> Error {
    Error::new(
        "SW0423",
        format!("{what}, and `{}` runs steps without a pipeline flush", cx.plan.schedule.name()),
    )
}
