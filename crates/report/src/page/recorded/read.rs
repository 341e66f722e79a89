//! A recording, read. Of several steps each number is the one in the middle: the first step is slower than others.

use std::fmt;

use diag::{Error, Result};
use serde_json::Value;
use simulate::{Message, TakesPart};

use super::RecordedFile;

const FORMAT: u64 = 1;

pub(crate) struct Recording {
    pub(crate) model: String,
    pub(crate) cluster: Option<String>,
    pub(crate) world: u64,
    pub(crate) micro_batches: u64,
    /// How many were recorded.
    pub(crate) steps: usize,
    pub(crate) ranks: Vec<MeasuredRank>,
}

pub(crate) struct MeasuredRank {
    pub(crate) rank: u32,
    pub(crate) seconds: f64,
    pub(crate) messages: Vec<MeasuredMessage>,
    pub(crate) calls: Vec<MeasuredCall>,
}

/// A call of local code, or its backward, in all micro-batches of a step.
pub(crate) struct MeasuredCall {
    pub(crate) is_backward: bool,
    pub(crate) call: u32,
    pub(crate) seconds: f64,
    /// By line of the role's file, where it was measured so.
    pub(crate) lines: Vec<(u32, f64)>,
}

pub(crate) struct MeasuredMessage {
    kind: String,
    pub(crate) group: Vec<u64>,
    bytes: u64,
    /// Whether as many are only expected.
    about: bool,
    /// Pass, block, micro-batch and instruction.
    place: (String, u64, u64, u64),
    pub(crate) start: f64,
    pub(crate) seconds: f64,
    pub(crate) waited: f64,
}

impl MeasuredMessage {
    /// Whether it is this one. Other ranks of a role have groups of their own, and shards may be uneven.
    pub(crate) fn is(&self, part: &TakesPart, message: &Message, is_same_rank: bool) -> bool {
        let (pass, block, batch, instr) = &self.place;
        let place = *pass == part.pass.name()
            && (*block, *batch, *instr) == (part.block.into(), part.batch.into(), part.instr as u64);
        let mut group: Vec<u64> = message.group.iter().map(|rank| rank.0.into()).collect();
        let mut members = self.group.clone();
        group.sort_unstable();
        members.sort_unstable();
        let is_here = members == group && (self.about || self.bytes == message.bytes);
        self.kind == part.kind.name() && place && members.len() == group.len() && (!is_same_rank || is_here)
    }

    pub(crate) fn batch(&self) -> u64 {
        self.place.2
    }
}

impl fmt::Display for MeasuredMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} bytes among {} ranks", self.kind, self.bytes, self.group.len())
    }
}

pub(crate) fn read(file: &RecordedFile) -> Result<Recording> {
    let broken = |why: String| {
        Error::new("SW0932", format!("{} is not a recording", file.name))
            .why(why)
            .fix("give what `recorded.save` wrote after `with sw.record() as recorded`")
    };
    let value: Value = serde_json::from_str(&file.text).map_err(|error| broken(error.to_string()))?;
    recording(&value).map_err(|key| broken(format!("it has no valid `{key}`")))
}

/// Or the key that is missing, or has something else.
type Parsed<T> = std::result::Result<T, &'static str>;

fn recording(value: &Value) -> Parsed<Recording> {
    if value["format"].as_u64() != Some(FORMAT) {
        return Err("format");
    }
    let ranks = list(value, "roles")?;
    let steps = ranks.first().map_or(0, |rank| rank["measured_step_seconds"].as_array().map_or(0, Vec::len));
    Ok(Recording {
        model: word(value, "model")?,
        cluster: value["cluster"].as_str().map(str::to_owned),
        world: number(value, "world")?,
        micro_batches: number(value, "micro_batches")?,
        steps,
        ranks: ranks.iter().map(rank).collect::<Parsed<_>>()?,
    })
}

fn rank(value: &Value) -> Parsed<MeasuredRank> {
    Ok(MeasuredRank {
        rank: u32::try_from(number(value, "rank")?).map_err(|_| "rank")?,
        seconds: middle(value, "measured_step_seconds")?,
        messages: list(value, "communications")?.iter().map(message).collect::<Parsed<_>>()?,
        calls: match &value["computed"] {
            Value::Null => vec![],
            _ => list(value, "computed")?.iter().map(call).collect::<Parsed<_>>()?,
        },
    })
}

fn call(value: &Value) -> Parsed<MeasuredCall> {
    let line = |it: &Value| Some((u32::try_from(it[0].as_u64()?).ok()?, it[1].as_f64()?));
    Ok(MeasuredCall {
        is_backward: word(value, "pass")? == "backward",
        call: u32::try_from(number(value, "call")?).map_err(|_| "call")?,
        seconds: middle(value, "seconds")?,
        lines: list(value, "lines")?.iter().map(|it| line(it).ok_or("lines")).collect::<Parsed<_>>()?,
    })
}

fn message(value: &Value) -> Parsed<MeasuredMessage> {
    let measured = &value["measured"];
    Ok(MeasuredMessage {
        kind: word(value, "kind")?,
        group: list(value, "group")?.iter().map(|it| it.as_u64().ok_or("group")).collect::<Parsed<_>>()?,
        bytes: number(value, "bytes")?,
        about: value["bytes_expected"].as_bool().ok_or("bytes_expected")?,
        place: (
            word(value, "pass")?,
            number(value, "block")?,
            number(value, "micro_batch")?,
            number(value, "instruction")?,
        ),
        start: middle(measured, "start_seconds")?,
        seconds: middle(measured, "seconds")?,
        waited: middle(measured, "waited_seconds")?,
    })
}

fn list<'v>(value: &'v Value, key: &'static str) -> Parsed<&'v Vec<Value>> {
    value[key].as_array().ok_or(key)
}

fn word(value: &Value, key: &'static str) -> Parsed<String> {
    value[key].as_str().map(str::to_owned).ok_or(key)
}

fn number(value: &Value, key: &'static str) -> Parsed<u64> {
    value[key].as_u64().ok_or(key)
}

/// The one in the middle of a list of seconds.
fn middle(value: &Value, key: &'static str) -> Parsed<f64> {
    let mut all = list(value, key)?.iter().map(|it| it.as_f64().ok_or(key)).collect::<Parsed<Vec<_>>>()?;
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied().ok_or(key)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::middle;

    #[test]
    fn the_first_step_counts_no_more_than_others() {
        assert_eq!(middle(&json!({ "seconds": [9.0, 1.0, 2.0] }), "seconds"), Ok(2.0));
        assert_eq!(middle(&json!({ "seconds": [] }), "seconds"), Err("seconds"));
        assert_eq!(middle(&json!({ "seconds": [1.0, "2"] }), "seconds"), Err("seconds"));
    }
}
