//! What a rank has over time, as counters: bytes of memory, and bytes of the communications that go on.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{micro, nano};
use crate::link::LinkKind;
use crate::{HeldMemory, Message, Scene, Simulation};

/// What a rank has in memory: the most in each task, and where the check looked closely, in each instruction.
pub(super) fn memory(held: &HeldMemory) -> Vec<Value> {
    let coarse = held.over.iter().map(|it| (nano(it.start), it.bytes));
    let close = held.closely.iter().map(|it| (nano(it.start), it.bytes.iter().sum()));
    let steps: Vec<(i64, u64)> = if held.closely.is_empty() { coarse.collect() } else { close.collect() };
    let mut over: BTreeMap<i64, u64> = BTreeMap::new();
    for (at, bytes) in steps {
        // Of what follows each other within a nanosecond the most counts.
        let known = over.entry(at).or_default();
        *known = bytes.max(*known);
    }
    over.into_iter().map(|(at, bytes)| counter(held.rank.0, "memory", at, bytes)).collect()
}

/// Bytes of the communications in which a rank takes part, while they go on, for each kind of link that it uses. They
/// are counted as the manifest counts them.
pub(super) fn in_flight(scene: &Scene<'_>, simulation: &Simulation, at: usize) -> Vec<Value> {
    let rank = simulation.ranks[at].rank.0;
    let messages = || simulation.parts[at].iter().map(|part| &simulation.messages[part.message]);
    let mut events = vec![];
    for link in LinkKind::ALL {
        let on_it = messages().filter(|message| LinkKind::crossed_by(scene.cluster, &message.group) == link);
        let name = format!("in flight {}", link.said());
        let mut bytes: u64 = 0;
        for (at, change) in changes(on_it) {
            bytes = bytes.saturating_add_signed(change);
            events.push(counter(rank, &name, at, bytes));
        }
    }
    events
}

/// By how much the bytes change at each moment at which they do.
fn changes<'m>(messages: impl Iterator<Item = &'m Message>) -> BTreeMap<i64, i64> {
    let mut changes: BTreeMap<i64, i64> = BTreeMap::new();
    for message in messages {
        let bytes = message.bytes as i64;
        *changes.entry(nano(message.start)).or_default() += bytes;
        *changes.entry(nano(message.end)).or_default() -= bytes;
    }
    changes.retain(|_, change| *change != 0);
    changes
}

fn counter(rank: u32, name: &str, at: i64, bytes: u64) -> Value {
    json!({ "name": name, "ph": "C", "pid": rank, "ts": micro(at), "args": { "bytes": bytes } })
}
