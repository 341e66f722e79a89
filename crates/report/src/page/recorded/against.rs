//! Where what was measured differs most from what was predicted.
//!
//! A member that comes early measures also how long it waits for the others. So of each communication the least counts that
//! any member measured. A message takes from when both are there until the receiver has it: who sends seldom waits for that.

use std::collections::{BTreeMap, BTreeSet};

use cluster::Cluster;
use graph::Graph;
use program::{Kind, Pass};
use serde_json::{Value, json};
use simulate::LinkKind;

use super::{MessagePair, PairedRank};
use crate::modules::pattern_of;
use crate::page::words::time;
use crate::took::Took;

/// So many entries are told.
const SHOWN: usize = 100;

pub(crate) struct Against {
    /// The largest difference first.
    pub(crate) entries: Vec<Difference>,
}

/// What is alike in layers and micro-batches, on all ranks.
pub(crate) struct Difference {
    key: DifferenceKey,
    modules: BTreeSet<String>,
    ranks: BTreeSet<u32>,
    count: u64,
    took: Took,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct DifferenceKey {
    kind: Kind,
    pass: Pass,
    pattern: String,
    /// Whether it crosses the border of a node.
    is_between: bool,
}

impl Against {
    pub(crate) fn new(graph: &Graph, cluster: &Cluster, ranks: &[PairedRank<'_>]) -> Self {
        let mut entries: BTreeMap<DifferenceKey, Difference> = BTreeMap::new();
        for (rank, (_, part, message), measured) in timed(ranks) {
            let module = part.op.map_or("", |op| &graph.op(op).module);
            let pattern = pattern_of(module);
            let is_between = LinkKind::crossed_by(cluster, &message.group) == LinkKind::Between;
            let key = DifferenceKey { kind: part.kind, pass: part.pass, pattern, is_between };
            let entry = entries.entry(key.clone()).or_insert_with(|| Difference::new(key));
            entry.modules.insert(module.to_owned());
            entry.ranks.insert(rank);
            entry.count += 1;
            entry.took += Took { predicted: message.end - message.start, measured };
        }
        let mut entries: Vec<Difference> = entries.into_values().collect();
        entries.sort_by(|a, b| b.seconds().abs().total_cmp(&a.seconds().abs()));
        Self { entries }
    }

    /// The largest difference in words, if anything is communicated.
    pub(crate) fn largest(&self) -> Option<String> {
        let entry = self.entries.first()?;
        Some(entry.said())
    }

    pub(crate) fn to_json(&self) -> Vec<Value> {
        self.entries.iter().take(SHOWN).map(Difference::to_json).collect()
    }
}

impl Difference {
    fn new(key: DifferenceKey) -> Self {
        let (modules, ranks) = (BTreeSet::new(), BTreeSet::new());
        Self { key, modules, ranks, count: 0, took: Took::default() }
    }

    pub(crate) fn to_json(&self) -> Value {
        json!({
            "name": self.name(),
            "kind": self.key.kind.name(),
            "pass": self.key.pass.name(),
            "module": self.module(),
            "link": if self.key.is_between { "between nodes" } else { "inside a node" },
            "ranks": self.ranks.len(),
            "count": self.count as f64 / self.each(),
            "predicted": self.of_device().predicted,
            "measured": self.of_device().measured,
            "times": self.times(),
        })
    }

    /// `All-reduces of h.*.mlp in forward take 2.1 times what was predicted, ...`
    pub(crate) fn said(&self) -> String {
        let Took { predicted, measured } = self.of_device();
        let mut name = self.name();
        if let Some(first) = name.get_mut(..1) {
            first.make_ascii_uppercase();
        }
        format!(
            "{name} in {} take {:.1} times what was predicted, {} of a device's step instead of {}: the largest difference.",
            self.key.pass.name(),
            self.times(),
            time(measured),
            time(predicted),
        )
    }

    /// Seconds of a device's step, as predicted and as measured.
    pub(crate) fn of_device(&self) -> Took {
        self.took.each(self.each())
    }

    pub(crate) fn is_between(&self) -> bool {
        self.key.is_between
    }

    /// Seconds of all devices.
    pub(crate) fn sums(&self) -> Took {
        self.took
    }

    /// Of how many ranks it is.
    fn each(&self) -> f64 {
        self.ranks.len().max(1) as f64
    }

    fn seconds(&self) -> f64 {
        (self.took.measured - self.took.predicted) / self.each()
    }

    fn times(&self) -> f64 {
        let Took { predicted, measured } = self.took;
        if predicted > 0.0 { measured / predicted } else { 1.0 }
    }

    /// The module, or the pattern of several.
    fn module(&self) -> &str {
        match (self.modules.len(), self.modules.first()) {
            (1, Some(module)) => module,
            _ => &self.key.pattern,
        }
    }

    /// `all-reduces of h.*.mlp`.
    fn name(&self) -> String {
        let kind = plural(self.key.kind);
        if self.module().is_empty() { kind.to_owned() } else { format!("{kind} of {}", self.module()) }
    }
}

fn plural(kind: Kind) -> &'static str {
    match kind {
        Kind::AllReduce => "all-reduces",
        Kind::AllGather => "all-gathers",
        Kind::ReduceScatter => "reduce-scatters",
        Kind::AllToAll => "all-to-alls",
        Kind::Exchange => "exchanges",
        Kind::Send => "sends",
        Kind::Receive => "receives",
        Kind::Gather => "gathers of parameters",
        Kind::Scatter => "reduce-scatters of gradients",
        Kind::ReduceGradients | Kind::ReduceShards => "reductions of gradients",
        Kind::ExchangeGradients => "exchanges of gradients",
        other => other.name(),
    }
}

/// What each rank takes part in, and how long that took.
pub(crate) fn timed<'p>(ranks: &'p [PairedRank<'p>]) -> Vec<(u32, &'p MessagePair<'p>, f64)> {
    let mut members: BTreeMap<MessageKey<'_>, Vec<&MessagePair<'_>>> = BTreeMap::new();
    for rank in ranks {
        keyed(rank).for_each(|(key, pair)| members.entry(key).or_default().push(pair));
    }
    let pairs_of = |rank: &'p PairedRank<'p>| {
        keyed(rank).map(|(key, pair)| (rank.rank.rank, pair, seconds_of(&members[&key]))).collect::<Vec<_>>()
    };
    ranks.iter().flat_map(pairs_of).collect()
}

/// How long a communication took, of what its members measured.
fn seconds_of(members: &[&MessagePair<'_>]) -> f64 {
    let of_kind = |kind: Kind| members.iter().find(|(_, part, _)| part.kind == kind).map(|(it, ..)| it);
    if let (Some(sent), Some(received)) = (of_kind(Kind::Send), of_kind(Kind::Receive)) {
        // Each counts from its own call of the step, and all are called together.
        let waited = (sent.start - received.start).max(0.0);
        return (received.seconds - waited).max(0.0);
    }
    members.iter().map(|(it, ..)| it.seconds).fold(f64::INFINITY, f64::min)
}

/// What names a communication on all its members: its kind, group and micro-batch, and how many like it were before.
type MessageKey<'p> = (Kind, &'p [u64], u64, usize);

fn keyed<'p>(rank: &'p PairedRank<'p>) -> impl Iterator<Item = (MessageKey<'p>, &'p MessagePair<'p>)> {
    let mut before: BTreeMap<(Kind, &[u64], u64), usize> = BTreeMap::new();
    rank.messages.iter().map(move |pair| {
        let (measured, part, _) = pair;
        // Of a message both ends are members.
        let kind = if part.kind == Kind::Receive { Kind::Send } else { part.kind };
        let series = (kind, &measured.group[..], measured.batch());
        let number = before.entry(series).or_default();
        *number += 1;
        ((series.0, series.1, series.2, *number), pair)
    })
}
