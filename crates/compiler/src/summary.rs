//! What a program communicates and holds, counted from its instructions.

use std::collections::BTreeMap;

use graph::{Graph, Source};
use program::{Body, BufId, Instr, Program, RankId, Table};
use rules::Region;

/// One kind of communication, as one rank issues it in a step.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Communication {
    /// `forward` or `backward`.
    pub phase: &'static str,
    pub kind: &'static str,
    /// The module in which the tensor is made.
    pub module: String,
    pub tensor: String,
}

#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Per rank: how many instructions of each kind, by phase.
    pub counts: Vec<BTreeMap<(&'static str, &'static str), usize>>,
    /// What rank 0 communicates, in order.
    pub communications: Vec<Communication>,
    /// Per rank: bytes of parameters and buffers held.
    pub held: Vec<u64>,
    /// Operators whose parts differ, and operators that every device repeats.
    pub operators: usize,
    pub unknown: Vec<String>,
}

pub fn summarise(graph: &Graph, program: &Program) -> Summary {
    let mut summary = Summary { operators: graph.ops.len(), ..Summary::default() };
    for op in graph.op_ids() {
        if rules::families::family_of(&graph.op(op).target).is_none() {
            summary.unknown.push(graph.describe(op));
        }
    }
    let world = program.world as usize;
    summary.counts = vec![BTreeMap::new(); world];
    summary.held = vec![0; world];
    for role in &program.roles {
        let counts = counts(&role.body);
        for (rank, table) in role.ranks.iter().zip(&role.tables) {
            summary.counts[rank.index()].clone_from(&counts);
            summary.held[rank.index()] = held(graph, table);
        }
    }
    if let Some((role, _)) = program.role_of(RankId(0)) {
        summary.communications = communications(graph, &role.body);
    }
    summary
}

fn counts(body: &Body) -> BTreeMap<(&'static str, &'static str), usize> {
    let mut counts = BTreeMap::new();
    for (phase, instrs) in [("forward", &body.forward), ("backward", &body.backward)] {
        for kind in instrs.iter().filter_map(kind) {
            *counts.entry((phase, kind)).or_insert(0) += 1;
        }
    }
    counts
}

/// The name of an instruction that communicates.
fn kind(instr: &Instr) -> Option<&'static str> {
    Some(match instr {
        Instr::AllReduce { .. } => "all_reduce",
        Instr::AllGather { .. } => "all_gather",
        Instr::ReduceScatter { .. } => "reduce_scatter",
        Instr::AllToAll { .. } => "all_to_all",
        Instr::Exchange { .. } => "exchange",
        Instr::ReduceGradients { .. } => "reduce_gradients",
        Instr::ExchangeGradients { .. } => "exchange_gradients",
        _ => return None,
    })
}

fn communications(graph: &Graph, body: &Body) -> Vec<Communication> {
    let mut all = vec![];
    for (phase, instrs) in [("forward", &body.forward), ("backward", &body.backward)] {
        for instr in instrs {
            let Some(kind) = kind(instr) else { continue };
            let tensor = moved(instr).map(|buf| body.buf(buf).tensor);
            let name = tensor.map_or(String::new(), |t| graph.tensor(t).name.clone());
            let maker = tensor.and_then(|t| graph.producer(t)).map(|(op, _)| graph.op(op).module.clone());
            all.push(Communication { phase, kind, module: maker.unwrap_or_default(), tensor: name });
        }
    }
    all
}

fn moved(instr: &Instr) -> Option<BufId> {
    match instr {
        Instr::AllReduce { from, .. }
        | Instr::AllGather { from, .. }
        | Instr::ReduceScatter { from, .. }
        | Instr::AllToAll { from, .. } => Some(*from),
        Instr::Exchange { from, to, .. } => from.first().or(to.first()).copied(),
        _ => None,
    }
}

fn held(graph: &Graph, table: &Table) -> u64 {
    let size = |region: &Region| u64::try_from(region.numel()).unwrap_or(0);
    let counted = |s: &&program::Shard| !matches!(graph.tensor(s.tensor).source, Source::Input { .. });
    table
        .shards
        .iter()
        .filter(counted)
        .map(|s| size(&s.region) * graph.tensor(s.tensor).dtype.bytes() as u64)
        .sum()
}
