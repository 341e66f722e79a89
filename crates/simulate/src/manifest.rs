//! What ranks communicate in a step, for who tunes it: `docs/reference/manifest.md` describes it.
//!
//! For each role the communications of its first rank, in the order in which that comes to them; its other ranks do the
//! same in their groups. Or those of each rank by itself.

use std::collections::BTreeMap;

use cluster::Cluster;
use graph::Graph;
use program::{Pass, RankId};
use rules::families::makes_rows;
use serde_json::{Value, json};

use crate::bursts::links;
use crate::link::LinkKind;
use crate::{Scene, Simulation, TakesPart, What};

/// What a manifest says first: its schema is in the Python package.
const SCHEMA: &str = "shardwright/manifest/1";
/// What `recorded.save` writes is made of one.
const FORMAT: u32 = 1;

/// Which ranks it lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The first of each role.
    Roles,
    /// All that were followed.
    Ranks,
}

/// How much there is to compute in a step of the model, and how much all devices can compute in a second.
#[derive(Clone, Copy, Debug)]
pub struct ModelWork {
    pub operations: f64,
    pub peak: f64,
}

/// `graph` is the one that the program's numbers are of.
pub fn manifest(
    scene: &Scene<'_>,
    graph: &Graph,
    simulation: &Simulation,
    work: &ModelWork,
    scope: Scope,
) -> Value {
    let program = scene.program;
    let mut seen = vec![false; program.roles.len()];
    let mut roles = vec![];
    for (at, rank_trace) in scene.rank_traces.iter().enumerate() {
        if std::mem::replace(&mut seen[rank_trace.role], true) && scope == Scope::Roles {
            continue;
        }
        let ranks = match scope {
            Scope::Roles => ranges(&program.roles[rank_trace.role].ranks),
            Scope::Ranks => ranges(&[rank_trace.rank]),
        };
        let computed = computed(simulation, rank_trace.rank);
        // Who measures finds each by its instruction, also those in which nothing moves.
        let is_listed =
            |part: &&TakesPart| scope == Scope::Ranks || simulation.messages[part.message].moves();
        let parts: Vec<&TakesPart> = simulation.parts[at].iter().filter(is_listed).collect();
        let messages = parts
            .iter()
            .enumerate()
            .map(|(order, part)| message(graph, scene.cluster, simulation, order, part, &computed));
        let mut listed = json!({
            "role": rank_trace.role,
            "ranks": ranks,
            "rank": rank_trace.rank.0,
            "communications": messages.collect::<Vec<_>>(),
        });
        // Whoever measures has no need of what is made of predictions.
        if scope == Scope::Roles {
            listed["links"] = Value::from(links(scene.cluster, simulation, &parts));
        }
        roles.push(listed);
    }
    let (key, version) = match scope {
        Scope::Roles => ("schema", json!(SCHEMA)),
        Scope::Ranks => ("format", json!(FORMAT)),
    };
    json!({
        key: version,
        "model": program.model,
        "plan": program.plan,
        "cluster": scene.cluster.name,
        "world": program.world,
        "micro_batches": scene.batches,
        "step_seconds": simulation.seconds,
        "operations": work.operations,
        "operations_a_second": work.peak,
        "roles": roles,
    })
}

fn message(
    graph: &Graph,
    cluster: &Cluster,
    simulation: &Simulation,
    order: usize,
    part: &TakesPart,
    computed: &[Computed],
) -> Value {
    let message = &simulation.messages[part.message];
    json!({
        "order": order,
        "kind": part.kind.name(),
        "group": message.group.iter().map(|rank| rank.0).collect::<Vec<_>>(),
        "link": LinkKind::crossed_by(cluster, &message.group).name(),
        "bytes": message.bytes,
        "bytes_expected": part.op.is_some_and(|op| makes_rows(&graph.op(op).target)),
        "dtype": message.dtype.map(graph::Dtype::short),
        "pass": part.pass.name(),
        "block": part.block,
        "micro_batch": part.batch,
        "instruction": part.instr,
        "operator": part.op.map(|op| graph.describe(op)),
        "start_seconds": message.start,
        "expected_seconds": message.end - message.start,
        "exposed_seconds": part.exposed,
        "share_of_link": message.share,
        "overlaps": overlaps(computed, message.start, message.end),
    })
}

/// When a rank computes, and in which code of which micro-batch.
type Computed = (f64, f64, (Pass, u32, u32));

fn computed(simulation: &Simulation, rank: RankId) -> Vec<Computed> {
    let spans = simulation.spans.iter().filter(|span| span.rank == rank);
    let computes = spans.filter(|span| matches!(span.what, What::Instr(..)));
    computes.map(|span| (span.start, span.end, (span.pass, span.block, span.batch))).collect()
}

/// What the rank computes meanwhile. What it computes is in the order of time.
fn overlaps(computed: &[Computed], start: f64, end: f64) -> Vec<Value> {
    let mut overlaps: BTreeMap<(Pass, u32, u32), f64> = BTreeMap::new();
    let from = computed.partition_point(|(_, until, _)| *until <= start);
    for (begin, until, code) in computed[from..].iter().take_while(|(begin, _, _)| *begin < end) {
        *overlaps.entry(*code).or_default() += until.min(end) - begin.max(start);
    }
    let entry = |((pass, block, batch), seconds): ((Pass, u32, u32), f64)| json!({ "pass": pass.name(), "block": block, "micro_batch": batch, "seconds": seconds });
    overlaps.into_iter().map(entry).collect()
}

/// `[[0, 3], [8, 11]]` are the ranks 0 to 3 and 8 to 11.
fn ranges(ranks: &[RankId]) -> Vec<[u32; 2]> {
    let mut sorted: Vec<u32> = ranks.iter().map(|rank| rank.0).collect();
    sorted.sort_unstable();
    let mut ranges: Vec<[u32; 2]> = vec![];
    for rank in sorted {
        match ranges.last_mut() {
            Some([_, last]) if *last + 1 == rank => *last = rank,
            _ => ranges.push([rank, rank]),
        }
    }
    ranges
}
