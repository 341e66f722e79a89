//! What was measured of the program's communications, beside what was predicted.

pub(crate) mod against;
pub(crate) mod read;

use diag::{Error, Result};
use graph::Graph;
use program::RankId;
use serde_json::{Value, json};
use simulate::{Message, TakesPart};

use super::Subject;
use super::clock::Clock;
use super::patterns;
use super::tracks::Tracks;
use super::words::time;

use against::Against;
use read::{MeasuredMessage, MeasuredRank, Recording};

/// A recording's JSON, and what it is called.
#[derive(Clone, Debug)]
pub struct RecordedFile {
    pub name: String,
    pub text: String,
}

pub(super) fn recorded(
    subject: &Subject<'_>,
    graph: &Graph,
    tracks: &Tracks,
    file: &RecordedFile,
) -> Result<Value> {
    let recording = read::read(file)?;
    let pairs = paired(subject, tracks, &recording).map_err(|why| another(file, why))?;
    let against = Against::new(graph, subject.cluster, &pairs);
    let update = subject.step.estimate.simulation.ranks.iter().map(|lane| lane.update).fold(0.0, f64::max);
    let predicted = subject.step.estimate.simulation.seconds - update;
    let measured = recording.ranks.iter().map(|rank| rank.seconds).fold(0.0, f64::max);
    let words: Vec<String> = std::iter::once(of_step(measured, predicted)).chain(against.largest()).collect();
    Ok(json!({
        "cluster": recording.cluster,
        "steps": recording.steps,
        "seconds": measured,
        "predicted": predicted,
        "words": words,
        "entries": against.to_json(),
        "ranks": pairs.iter().map(|rank| rank.to_json(subject)).collect::<Vec<_>>(),
    }))
}

pub(crate) fn of_step(measured: f64, predicted: f64) -> String {
    let times = if predicted > 0.0 { measured / predicted } else { 1.0 };
    format!(
        "A step took {}, {times:.1} times the {} that were predicted, both without the optimizer.",
        time(measured),
        time(predicted)
    )
}

/// A rank's messages with those that the plan's program has in their places.
pub(crate) struct PairedRank<'p> {
    pub(crate) rank: &'p MeasuredRank,
    pub(crate) track: usize,
    pub(crate) role: usize,
    pub(crate) messages: Vec<MessagePair<'p>>,
}

pub(crate) type MessagePair<'p> = (&'p MeasuredMessage, &'p TakesPart, &'p Message);

/// All of them; else what differs first.
fn paired<'p>(
    subject: &Subject<'p>,
    tracks: &Tracks,
    recording: &'p Recording,
) -> std::result::Result<Vec<PairedRank<'p>>, String> {
    require_same(&subject.compiled.program, subject.batches, recording)?;
    recording.ranks.iter().map(|rank| paired_rank(subject, tracks, rank)).collect()
}

/// Whether it is of the same model, ranks and micro-batches.
pub(crate) fn require_same(
    program: &program::Program,
    batches: u32,
    recording: &Recording,
) -> std::result::Result<(), String> {
    let of_all = [
        ("model", &recording.model, &program.model),
        ("number of ranks", &recording.world.to_string(), &program.world.to_string()),
        ("number of micro-batches", &recording.micro_batches.to_string(), &batches.to_string()),
    ];
    if let Some((what, there, here)) = of_all.into_iter().find(|(_, there, here)| there != here) {
        return Err(format!("its {what} is {there}, here it is {here}"));
    }
    Ok(())
}

fn paired_rank<'p>(
    subject: &Subject<'p>,
    tracks: &Tracks,
    rank: &'p MeasuredRank,
) -> std::result::Result<PairedRank<'p>, String> {
    let number = rank.rank;
    let track = tracks.iter().position(|track| track.ranks.contains(&RankId(number)));
    let track = track.ok_or_else(|| format!("here is no rank {number}"))?;
    let of_track = &tracks[track];
    let listed: Vec<(&TakesPart, &Message)> = of_track.parts(subject).collect();
    let messages = pairs(rank, &listed, of_track.rank.0 == number)?;
    Ok(PairedRank { rank, track, role: of_track.role, messages })
}

/// What a rank measured with what it, or one that does the same, takes part in.
pub(crate) fn pairs<'p>(
    rank: &'p MeasuredRank,
    listed: &[(&'p TakesPart, &'p Message)],
    is_same_rank: bool,
) -> std::result::Result<Vec<MessagePair<'p>>, String> {
    let (number, messages) = (rank.rank, &rank.messages);
    if messages.len() != listed.len() {
        let (there, here) = (messages.len(), listed.len());
        return Err(format!("its rank {number} has {there} communications in a step, here it has {here}"));
    }
    let pair =
        |(at, (measured, (part, message))): (usize, (&'p MeasuredMessage, &(&'p TakesPart, &'p Message)))| {
            if measured.is(part, message, is_same_rank) {
                return Ok((measured, *part, *message));
            }
            let here = format!(
                "{} of {} bytes among {} ranks",
                part.kind.name(),
                message.bytes,
                message.group.len()
            );
            Err(format!("communication {at} of its rank {number} is {measured}, here it is {here}"))
        };
    messages.iter().zip(listed).enumerate().map(pair).collect()
}

pub(crate) fn another(file: &RecordedFile, why: String) -> Error {
    Error::new("SW0933", format!("{} was recorded of another program", file.name))
        .why(why)
        .fix("name the model, the plan and the micro-batches that ran")
}

impl PairedRank<'_> {
    /// Seven numbers a communication: its code, micro-batch and instruction, when it began, how long it took, for how long
    /// the rank waited, and how long was predicted.
    fn to_json(&self, subject: &Subject<'_>) -> Value {
        let (program, clock) = (&subject.compiled.program, subject.clock());
        let numbers = |(measured, part, message): &MessagePair<'_>| {
            let code = patterns::code(program, self.role, part.block, part.pass);
            let times = [measured.start, measured.seconds, measured.waited, message.end - message.start];
            let [start, seconds, waited, predicted] = times.map(|it| Clock::ticks(clock, it));
            [code, i64::from(part.batch), part.instr as i64, start, seconds, waited, predicted]
        };
        json!({
            "rank": self.rank.rank,
            "track": self.track,
            "seconds": self.rank.seconds,
            "parts": self.messages.iter().flat_map(numbers).collect::<Vec<_>>(),
        })
    }
}
