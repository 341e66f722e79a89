//! Random legal plans: the hardest test of everything that follows, and a baseline for search.
//!
//! Every operator gets any legal split of its rules and random devices in random order, with
//! repeats. To meet regular patterns as well as irregular ones, an operator sometimes takes the
//! devices of the one before it.

use std::collections::BTreeSet;

use graph::{Graph, OpId};
use rules::{Analysis, Kind};

use crate::param_sharding::{names, readers_agree};
use crate::{
    Gather, OVERLAP, On, OpPlan, ParamSharding, ParamShardings, Plan, Reduce, Schedule, Split, Timetables,
    Wholes, exchange, legal, recompute,
};

/// A small generator (splitmix64), the same on every machine.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which is not zero.
    pub fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.number() % (bound as u64)).unwrap_or(0)
    }

    fn happens(&mut self, percent: u64) -> bool {
        self.number() % 100 < percent
    }
}

/// A random plan; the same seed gives the same plan. At least four of five operators that may be
/// split are.
pub fn plan(graph: &Graph, analysis: &Analysis, devices: u32, seed: u64) -> Plan {
    let mut random = Random::new(seed);
    let mut last: Vec<u32> = (0..devices).collect();
    let ops: Vec<OpPlan> = graph
        .op_ids()
        .map(|op| {
            let splits = splits(graph, analysis, op, devices, &mut random);
            let count: u32 = splits.iter().map(|s| s.parts).product();
            let devices = place(count, devices, &last, exchange::exchanges(&splits), &mut random);
            last.clone_from(&devices);
            OpPlan { splits, devices: devices.into() }
        })
        .collect();
    let recompute = spans(graph, &mut Random::new(!seed));
    let param_shardings = param_shardings(graph, analysis, &ops, &mut Random::new(seed.rotate_left(32)));
    let wholes = wholes(graph, &mut Random::new(seed.rotate_left(16)));
    let state_on_host = some_parameters(graph, &mut Random::new(!seed.rotate_left(16)));
    let held_on_host = some_parameters(graph, &mut Random::new(!seed.rotate_left(48)));
    let offload = offloads(graph, &mut Random::new(!seed.rotate_left(32)));
    let overlap = if Random::new(seed.rotate_left(48)).happens(50) { 0 } else { OVERLAP };
    Plan {
        name: format!("random:{seed}"),
        devices,
        ops,
        order: vec![],
        recompute,
        offload,
        param_shardings,
        state_on_host,
        held_on_host,
        wholes,
        blocks: vec![],
        schedule: Schedule::default(),
        tokens: 1,
        overlap,
        before: vec![],
        timetables: Timetables::new(),
    }
}

/// Two plans of three recompute: runs of operators, some of them inside of others. The others as the model says.
fn spans(graph: &Graph, random: &mut Random) -> Vec<Vec<OpId>> {
    let count = graph.ops.len();
    let mut spans: Vec<Vec<OpId>> = vec![];
    if count == 0 || random.happens(33) {
        return recompute::of_model(graph);
    }
    let mut at = random.below(count);
    while at < count {
        let length = 1 + random.below((count / 4).max(2));
        let end = (at + length).min(count);
        // One in ten operators of a span is kept.
        let span: Vec<OpId> = (at..end).filter(|_| !random.happens(10)).map(OpId::new).collect();
        if span.len() > 3 && random.happens(40) {
            spans.push(span[1..span.len() / 2 + 1].to_vec());
        }
        spans.push(span);
        at = end + random.below((count / 4).max(2));
    }
    recompute::sorted(spans)
}

/// Two plans of five keep about half of the parameters, or the optimizer's state of these, on the host.
fn some_parameters(graph: &Graph, random: &mut Random) -> BTreeSet<String> {
    if random.happens(60) {
        return BTreeSet::new();
    }
    let first = |tensor| names(graph, tensor).first().cloned();
    graph
        .tensor_ids()
        .filter(|tensor| graph.new_value(*tensor).is_none())
        .filter_map(first)
        .filter(|_| random.happens(50))
        .collect()
}

/// Two plans of five keep runs of operators on the host.
fn offloads(graph: &Graph, random: &mut Random) -> Vec<Vec<OpId>> {
    let count = graph.ops.len();
    if count == 0 || random.happens(60) {
        return vec![];
    }
    let (mut spans, mut at) = (vec![], random.below(count));
    while at < count {
        let end = (at + 1 + random.below((count / 3).max(2))).min(count);
        spans.push((at..end).filter(|_| !random.happens(10)).map(OpId::new).collect());
        at = end + random.below((count / 6).max(2));
    }
    recompute::sorted(spans)
}

/// Half of the plans divide parameters: about half of these, among devices that read the same of them.
fn param_shardings(
    graph: &Graph,
    analysis: &Analysis,
    ops: &[OpPlan],
    random: &mut Random,
) -> ParamShardings {
    let mut param_shardings = ParamShardings::new();
    if random.happens(50) {
        return param_shardings;
    }
    for tensor in graph.tensor_ids() {
        let Some(name) = names(graph, tensor).first() else { continue };
        if random.happens(50) || graph.new_value(tensor).is_some() {
            continue;
        }
        let mut groups: Vec<Vec<u32>> = vec![];
        for mut same in readers_agree(graph, analysis, ops, tensor) {
            for i in (1..same.len()).rev() {
                same.swap(i, random.below(i + 1));
            }
            let size = 2 + random.below(same.len());
            groups.extend(same.chunks(size).filter(|group| group.len() > 1).map(<[u32]>::to_vec));
        }
        let gather = if random.happens(60) { Gather::Pass } else { Gather::Step };
        let reduce = if random.happens(50) { Reduce::Each } else { Reduce::Last };
        if !groups.is_empty() {
            param_shardings
                .insert(name.clone(), ParamSharding { groups: groups.into(), dim: None, gather, reduce });
        }
    }
    param_shardings
}

/// One plan of three has some parameters updated whole, however they are divided: about two of three.
fn wholes(graph: &Graph, random: &mut Random) -> Wholes {
    if random.happens(67) {
        return Wholes::new();
    }
    let first = graph.tensor_ids().filter_map(|tensor| names(graph, tensor).first());
    first.filter(|_| random.happens(67)).cloned().collect()
}

fn splits(graph: &Graph, analysis: &Analysis, op: OpId, devices: u32, random: &mut Random) -> Vec<Split> {
    let open = open(analysis, op);
    let mut splits = vec![];
    let most = devices.max(2) * 2;
    let depth = if random.happens(35) { 2 } else { 1 };
    for round in 0..depth {
        let loop_wanted = round == 0 && !random.happens(5) || random.happens(60);
        let on = match (loop_wanted && !open.is_empty(), random.happens(25)) {
            (true, _) => divided(graph, analysis, op, open[random.below(open.len())], random),
            (false, true) => On::Value,
            (false, false) => On::Copies,
        };
        let parts = 2 + u32::try_from(random.below(devices.max(2) as usize - 1)).unwrap_or(0);
        let count: u32 = splits.iter().map(|s: &Split| s.parts).product();
        splits.push(Split { on, parts });
        let most = if exchange::exchanges(&splits) { devices } else { most };
        if count * parts > most || legal(graph, analysis, op, &splits).is_err() {
            splits.pop();
        }
    }
    if splits.is_empty() && !open.is_empty() && !random.happens(5) {
        let two = vec![Split { on: On::Loop(open[random.below(open.len())]), parts: 2 }];
        if legal(graph, analysis, op, &two).is_ok() {
            return two;
        }
    }
    splits
}

/// A split of a loop; of experts' tokens one of two exchanges rows.
fn divided(graph: &Graph, analysis: &Analysis, op: OpId, index: usize, random: &mut Random) -> On {
    match exchange::experts(graph, analysis, op) {
        Some(experts) if exchange::is_of_tokens(graph, analysis, op, index) && random.happens(50) => {
            exchange::on_experts(index, experts)
        }
        _ => On::Loop(index),
    }
}

/// The loops of an operator that may be split.
pub fn open(analysis: &Analysis, op: OpId) -> Vec<usize> {
    let loops = &analysis.op(op).loops;
    (0..loops.len()).filter(|&i| loops[i].kind != Kind::Whole && loops[i].size > 1).collect()
}

fn place(count: u32, devices: u32, last: &[u32], apart: bool, random: &mut Random) -> Vec<u32> {
    if !apart && last.len() == count as usize && random.happens(50) {
        return last.to_vec();
    }
    let any = |random: &mut Random| u32::try_from(random.below(devices as usize)).unwrap_or(0);
    if !apart && random.happens(30) || count > devices {
        return (0..count).map(|_| any(random)).collect();
    }
    let mut all: Vec<u32> = (0..devices).collect();
    if random.happens(50) {
        for i in (1..all.len()).rev() {
            all.swap(i, random.below(i + 1));
        }
    }
    all.truncate(count as usize);
    all
}
