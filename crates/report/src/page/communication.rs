//! What is communicated in a step, by whom and over what. What repeats, in layers and micro-batches, is one entry.

use std::collections::BTreeMap;

use graph::Graph;
use program::{Pass, RankId};
use serde_json::{Value, json};
use simulate::{LinkKind, Message, TakesPart};

use super::Subject;
use super::matrix::matrix;
use super::names::PageNames;
use super::tracks::Tracks;
use crate::modules::pattern_of;

/// So many ranks of a group are named.
const NAMED: usize = 16;

/// What entries that are told as one have in common.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct EntryKey {
    track: usize,
    pass: Pass,
    block: u32,
    kind: &'static str,
    bytes: u64,
    dtype: &'static str,
    group: Vec<RankId>,
    module: String,
    target: String,
}

#[derive(Clone, Copy, Default)]
struct EntrySum {
    first: usize,
    count: u64,
    seconds: f64,
    exposed: f64,
    share: f64,
}

pub(super) fn communication(
    subject: &Subject<'_>,
    graph: &Graph,
    tracks: &Tracks,
    names: &mut PageNames,
) -> Value {
    let mut sums: BTreeMap<EntryKey, EntrySum> = BTreeMap::new();
    for (at, track) in tracks.iter().enumerate() {
        let listed = track.parts(subject).filter(|(_, message)| message.moves());
        for (number, (part, message)) in listed.enumerate() {
            let key = key(graph, at, part, message);
            let sum = sums.entry(key).or_insert(EntrySum { first: number, ..EntrySum::default() });
            sum.count += 1;
            sum.seconds += message.end - message.start;
            sum.exposed += part.exposed;
            sum.share = sum.share.max(message.share);
        }
    }
    let mut entries: Vec<(&EntryKey, &EntrySum)> = sums.iter().collect();
    entries.sort_by_key(|(key, sum)| (key.track, sum.first));
    let json: Vec<Value> = entries.iter().map(|(key, sum)| entry(subject, key, sum, names)).collect();
    json!({ "entries": json, "matrix": matrix(subject, graph, tracks) })
}

fn key(graph: &Graph, track: usize, part: &TakesPart, message: &Message) -> EntryKey {
    let op = part.op.map(|op| graph.op(op));
    EntryKey {
        track,
        pass: part.pass,
        block: part.block,
        kind: part.kind.name(),
        bytes: message.bytes,
        dtype: message.dtype.map_or("", graph::Dtype::short),
        group: message.group.clone(),
        module: op.map_or_else(String::new, |op| pattern_of(&op.module)),
        target: op.map_or_else(String::new, |op| op.target.clone()),
    }
}

fn entry(subject: &Subject<'_>, key: &EntryKey, sum: &EntrySum, names: &mut PageNames) -> Value {
    let group: Vec<u32> = key.group.iter().take(NAMED).map(|rank| rank.0).collect();
    json!({
        "track": key.track,
        "pass": key.pass.name(),
        "block": key.block,
        "kind": key.kind,
        "bytes": key.bytes,
        "dtype": key.dtype,
        "members": key.group.len(),
        "group": group,
        "link": link(subject, &key.group),
        "module": names.modules.number(&key.module),
        "target": names.targets.number(&key.target),
        "count": sum.count,
        "seconds": sum.seconds,
        "exposed": sum.exposed,
        "share": sum.share,
    })
}

/// What the members are connected by.
fn link(subject: &Subject<'_>, group: &[RankId]) -> &'static str {
    match LinkKind::crossed_by(subject.cluster, group) {
        LinkKind::Between => "between nodes",
        LinkKind::Inside => "inside a node",
    }
}
