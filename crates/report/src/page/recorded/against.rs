//! Where what was measured differs most from what was predicted.
//!
//! A member that comes early measures also how long it waits for the others. So of each communication the least counts that
//! any member measured.

use std::collections::{BTreeMap, BTreeSet};

use graph::Graph;
use program::{Kind, Pass};
use serde_json::{Value, json};

use super::super::communication::pattern_of;
use super::super::words::time;
use super::{Pair, PairedRank};

/// So many rows are told.
const TOLD: usize = 100;

pub(super) struct Against {
    /// The largest difference first.
    rows: Vec<Row>,
}

/// What is alike in layers and micro-batches, on all ranks.
struct Row {
    key: RowKey,
    modules: BTreeSet<String>,
    ranks: BTreeSet<u32>,
    count: u64,
    predicted: f64,
    measured: f64,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct RowKey {
    kind: Kind,
    pass: Pass,
    pattern: String,
}

impl Against {
    pub(super) fn of(graph: &Graph, ranks: &[PairedRank<'_>]) -> Self {
        let mut least: BTreeMap<MessageKey<'_>, f64> = BTreeMap::new();
        for rank in ranks {
            for (key, (measured, ..)) in keyed(rank) {
                let known = least.entry(key).or_insert(f64::INFINITY);
                *known = known.min(measured.seconds);
            }
        }
        let mut rows: BTreeMap<RowKey, Row> = BTreeMap::new();
        for rank in ranks {
            for (key, (_, part, message)) in keyed(rank) {
                let module = part.op.map_or("", |op| &graph.op(op).module);
                let of_row = RowKey { kind: part.kind, pass: part.pass, pattern: pattern_of(module) };
                let row = rows.entry(of_row.clone()).or_insert_with(|| Row::new(of_row));
                row.modules.insert(module.to_owned());
                row.ranks.insert(rank.rank.rank);
                row.count += 1;
                row.predicted += message.end - message.start;
                row.measured += least[&key];
            }
        }
        let mut rows: Vec<Row> = rows.into_values().collect();
        rows.sort_by(|a, b| b.difference().abs().total_cmp(&a.difference().abs()));
        Self { rows }
    }

    /// The largest difference in words, if anything is communicated.
    pub(super) fn largest(&self) -> Option<String> {
        let row = self.rows.first()?;
        let (measured, predicted) = (row.measured / row.each(), row.predicted / row.each());
        let mut name = row.name();
        if let Some(first) = name.get_mut(..1) {
            first.make_ascii_uppercase();
        }
        Some(format!(
            "{name} in {} take {:.1} times what was predicted, {} of a device's step instead of {}: the largest difference.",
            row.key.pass.name(),
            row.times(),
            time(measured),
            time(predicted),
        ))
    }

    pub(super) fn to_json(&self) -> Vec<Value> {
        let json = |row: &Row| {
            json!({
                "name": row.name(),
                "kind": row.key.kind.name(),
                "pass": row.key.pass.name(),
                "module": row.module(),
                "ranks": row.ranks.len(),
                "count": row.count as f64 / row.each(),
                "predicted": row.predicted / row.each(),
                "measured": row.measured / row.each(),
                "times": row.times(),
            })
        };
        self.rows.iter().take(TOLD).map(json).collect()
    }
}

impl Row {
    fn new(key: RowKey) -> Self {
        let (modules, ranks) = (BTreeSet::new(), BTreeSet::new());
        Self { key, modules, ranks, count: 0, predicted: 0.0, measured: 0.0 }
    }

    /// Of how many ranks it is.
    fn each(&self) -> f64 {
        self.ranks.len().max(1) as f64
    }

    fn difference(&self) -> f64 {
        (self.measured - self.predicted) / self.each()
    }

    fn times(&self) -> f64 {
        if self.predicted > 0.0 { self.measured / self.predicted } else { 1.0 }
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

/// What names a communication on all its members: its kind, group and micro-batch, and how many like it were before.
type MessageKey<'p> = (Kind, &'p [u64], u64, usize);

fn keyed<'p>(rank: &'p PairedRank<'p>) -> impl Iterator<Item = (MessageKey<'p>, &'p Pair<'p>)> {
    let mut before: BTreeMap<(Kind, &[u64], u64), usize> = BTreeMap::new();
    rank.messages.iter().map(move |pair| {
        let (measured, part, _) = pair;
        // The receiver waits for what the sender has yet to compute.
        let kind = if part.kind == Kind::Receive { Kind::Send } else { part.kind };
        let alike = (kind, &measured.group[..], measured.batch());
        let number = before.entry(alike).or_default();
        *number += 1;
        ((alike.0, alike.1, alike.2, *number), pair)
    })
}
