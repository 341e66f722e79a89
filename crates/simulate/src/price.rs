//! How long instructions take, on the device that a rank runs on.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use check::{InstrCost, RankTrace, Work};
use cluster::{Cluster, Collective, Contention, Device, Direction, OpCost, Sort};
use hashing::Map;
use program::{Exchange, ExchangeId, GroupingId, Instr, Kind, Piece, Program, RankId, Which};

use crate::{Kinds, Message, Scene};

/// One is added to another: both are read, and one is written.
pub const SUM: f64 = 3.0;

/// Seconds of each instruction of a rank: on its device, and to and from the host.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Price {
    pub(crate) work: f64,
    pub(crate) host: f64,
    /// Where gradients of an earlier micro-batch are there: on the device, and on the host.
    pub(crate) added: f64,
    pub(crate) added_on_host: f64,
    /// Of the host, until all of it is started, where it has a clock of its own.
    pub(crate) starts: f64,
}

/// For each rank its prices; ranks that do the same on devices of one kind share them.
pub(crate) fn prices(scene: &Scene<'_>) -> Vec<Rc<Vec<Price>>> {
    let (rank_traces, cluster) = (scene.rank_traces, scene.cluster);
    let mut known = BTreeMap::new();
    let prices_of = |rank_trace: &RankTrace| {
        let device = cluster.device(rank_trace.rank.0);
        let made = known.entry((Rc::as_ptr(&rank_trace.instr_costs), &device.name)).or_insert_with(|| {
            let instrs = scene.program.roles[rank_trace.role].body.instrs();
            let price =
                |(instr_cost, instr): (&InstrCost, &Instr)| price(instr_cost, instr, device, scene.kinds);
            Rc::new(rank_trace.instr_costs.iter().zip(instrs).map(price).collect())
        });
        Rc::clone(made)
    };
    rank_traces.iter().map(prices_of).collect()
}

fn price(instr_cost: &InstrCost, instr: &Instr, device: &Device, kinds: &Kinds) -> Price {
    let kind = instr.kind();
    let runtime = device.runtime;
    let around = match instr {
        Instr::Grad(grad) if grad.which == Which::Weights => {
            runtime.call + instr_cost.work.len() as f64 * runtime.apart
        }
        Instr::Call(_) | Instr::Grad(_) => runtime.call,
        _ => 0.0,
    };
    let works: Vec<f64> = instr_cost.work.iter().map(|work| seconds_of(work, kind, device, kinds)).collect();
    let (around, starts) = match runtime.launch {
        Some(launch) => {
            (0.0, around + launch * works.iter().filter(|seconds| **seconds > 0.0).count() as f64)
        }
        None => (around, 0.0),
    };
    let sum = OpCost { operations: 0.0, bytes: SUM * instr_cost.added as f64 };
    Price {
        work: around + works.iter().sum::<f64>(),
        host: device.seconds_to_host(instr_cost.to_host as f64),
        added: device.seconds_of(sum, Sort::SUM),
        added_on_host: device.seconds_on_host(SUM * instr_cost.added_on_host as f64),
        starts,
    }
}

/// A part of an instruction of a kind.
pub(crate) fn seconds_of(work: &Work, kind: Kind, device: &Device, kinds: &Kinds) -> f64 {
    let direction = if kind == Kind::Grad { Direction::Backward } else { Direction::Forward };
    let moved = kinds.moved(work.op);
    // What moves nothing is a part of another kernel.
    let operations = if moved > 0.0 { work.operations as f64 } else { 0.0 };
    let op_cost = OpCost { operations, bytes: work.bytes as f64 * moved };
    device.seconds_of(op_cost, kinds.sort(work.op, work.dtype, direction))
}

/// The groups of a program's collectives, as the cluster sees them.
pub(crate) struct Groups<'s> {
    program: &'s Program,
    cluster: &'s Cluster,
    /// For each grouping the group of each rank.
    of: Vec<Map<RankId, u32>>,
    crowds: Vec<Contention>,
    /// Of each exchange.
    sent: Vec<Contention>,
    known: Map<(GroupingId, u32, Collective, u64), f64>,
}

impl<'s> Groups<'s> {
    pub(crate) fn new(program: &'s Program, cluster: &'s Cluster) -> Self {
        let group_by_rank = |groups: &Vec<Vec<RankId>>| {
            let each = groups.iter().zip(0..);
            each.flat_map(|(group, at)| group.iter().map(move |rank| (*rank, at))).collect()
        };
        let contention = |groups: &Vec<Vec<RankId>>| {
            let devices: Vec<Vec<u32>> = groups.iter().map(|group| devices(group)).collect();
            cluster.contention(devices.iter().map(Vec::as_slice))
        };
        Self {
            program,
            cluster,
            of: program.groupings.iter().map(group_by_rank).collect(),
            crowds: program.groupings.iter().map(contention).collect(),
            sent: program.exchanges.iter().map(|exchange| contention_of(exchange, cluster)).collect(),
            known: Map::default(),
        }
    }

    /// The number of a rank's group; none of a rank that is in none.
    pub(crate) fn number(&self, grouping: GroupingId, rank: RankId) -> Option<u32> {
        self.of[grouping.index()].get(&rank).copied()
    }

    pub(crate) fn group(&self, grouping: GroupingId, number: u32) -> &'s [RankId] {
        &self.program.groupings[grouping.index()][number as usize]
    }

    /// How many messages of an exchange share the network of a node.
    pub(crate) fn contention_of(&self, exchange: ExchangeId) -> Contention {
        self.sent[exchange.index()]
    }

    /// Seconds of a collective of which the bytes alone take up the slowest link that it crosses.
    pub(crate) fn least(&self, message: &Message) -> f64 {
        let least = |collective| {
            self.cluster.least(collective, &devices(&message.group), Contention(1), message.bytes as f64)
        };
        message.kind.collective().map_or(0.0, least)
    }

    pub(crate) fn seconds(&mut self, grouping: GroupingId, number: u32, kind: Kind, bytes: u64) -> f64 {
        let Some(collective) = kind.collective() else { return 0.0 };
        let (group, contention) = (self.group(grouping, number), self.crowds[grouping.index()]);
        let seconds = || self.cluster.collective(collective, &devices(group), contention, bytes as f64);
        *self.known.entry((grouping, number, collective, bytes)).or_insert_with(seconds)
    }
}

/// Ranks that send to several others do so one after another. Pieces are many, and looked at only where a network is
/// shared.
fn contention_of(exchange: &Exchange, cluster: &Cluster) -> Contention {
    if !cluster.network.shared {
        return Contention(1);
    }
    let ends = |piece: &Piece| [exchange.sources[piece.from].0.0, exchange.targets[piece.to].0.0];
    let mut seen = BTreeSet::new();
    let is_first = |[from, to]: &[u32; 2]| cluster.node(*from) != cluster.node(*to) && seen.insert(*from);
    let pairs: Vec<[u32; 2]> = exchange.pieces.iter().map(ends).filter(is_first).collect();
    cluster.contention(pairs.iter().map(<[u32; 2]>::as_slice))
}

fn devices(group: &[RankId]) -> Vec<u32> {
    group.iter().map(|rank| rank.0).collect()
}
