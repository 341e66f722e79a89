//! What devices have in memory over a step, by what it is for.

use compiler::Purpose;
use serde_json::{Value, json};
use simulate::ByPurpose;

use super::Subject;
use super::clock::Clock;
use super::tracks::{Track, Tracks};

/// So many stretches of time are told of a track. Of more, several are told by the one that has most.
const STRETCHES: usize = 240;
/// The same where there are many tracks, and of how many.
const FEWER: (usize, usize) = (100, 8);

pub(super) fn memory(subject: &Subject<'_>, tracks: &Tracks) -> Value {
    let stretches = if tracks.len() > FEWER.1 { FEWER.0 } else { STRETCHES };
    json!({
        "purposes": Purpose::ALL.iter().map(|purpose| purpose.name()).collect::<Vec<_>>(),
        "tracks": tracks.iter().map(|track| of_track(subject, track, stretches)).collect::<Vec<_>>(),
    })
}

/// Of the fullest device of a track: its memory, the most of the rank by purpose and when that is, and stretches of
/// time: the start, and bytes by purpose.
fn of_track(subject: &Subject<'_>, track: &Track, stretches: usize) -> Value {
    let clock = subject.clock();
    let memory = &subject.step.estimate.memory[track.fullest.index()];
    let device = subject.cluster.device(track.rank.0);
    let held = subject.step.held.iter().find(|held| held.rank == track.fullest);
    let over = held.map_or(vec![], |held| shortened(&held.closely, stretches));
    let end = held.and_then(|held| held.closely.last()).map(|last| clock.ticks(last.end));
    json!({
        "rank": track.fullest.0,
        "there": device.memory,
        "peak": memory.peak,
        "most": memory.total(),
        "at": memory.at.as_ref().map(ToString::to_string),
        "on_host": memory.offloaded,
        "over": over.iter().flat_map(|it| numbers(it, clock)).collect::<Vec<_>>(),
        "end": end,
    })
}

fn numbers(usage: &ByPurpose, clock: Clock) -> Vec<u64> {
    std::iter::once(clock.ticks(usage.start).unsigned_abs()).chain(usage.bytes).collect()
}

fn shortened(all: &[ByPurpose], stretches: usize) -> Vec<ByPurpose> {
    let (Some(first), Some(last)) = (all.first(), all.last()) else { return vec![] };
    let joined = same(all);
    if joined.len() <= stretches {
        return joined;
    }
    let width = (last.end - first.start) / stretches as f64;
    let bucket = |usage: &ByPurpose| ((usage.start - first.start) / width) as usize;
    joined.chunk_by(|a, b| bucket(a) == bucket(b)).map(most).collect()
}

/// Stretches that follow each other with the same bytes, as one.
fn same(all: &[ByPurpose]) -> Vec<ByPurpose> {
    all.chunk_by(|a, b| a.bytes == b.bytes).map(most).collect()
}

/// The time of all of these, with what is there when it is most.
fn most(usages: &[ByPurpose]) -> ByPurpose {
    let total = |it: &ByPurpose| it.bytes.iter().sum::<u64>();
    let most = usages.iter().fold(usages[0], |most, it| if total(it) > total(&most) { *it } else { most });
    ByPurpose { start: usages[0].start, end: usages[usages.len() - 1].end, ..most }
}
