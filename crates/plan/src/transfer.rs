//! The same decisions for another graph of the same model: another batch size or sequence length,
//! evaluation instead of training, a call without labels.
//!
//! Operators are matched by module path, target and source line. A matched operator is divided as
//! before, along the dims of the same names, so that the weights stay where they are; where a size
//! does not allow it, in fewer parts, each computed by several of the same devices. A new operator
//! is divided along the dims of its neighbours. The result is always complete and legal, and what
//! could not be carried over is said.

use std::collections::{HashMap, VecDeque};

use graph::{Graph, OpId};
use rules::{Analysis, Kind, OpDims};

use crate::classes::Classes;
use crate::counterparts::Counterparts;
use crate::exchange;
use crate::fit::{fit, without_idle_copies};
use crate::{On, OpPlan, Plan, Split, blocks, recompute, tokens};

/// A plan for another graph, and what is different in it.
pub struct Transferred {
    pub plan: Plan,
    pub notes: Vec<String>,
}

/// A graph and its analysis.
#[derive(Clone, Copy)]
pub struct Side<'g> {
    pub graph: &'g Graph,
    pub analysis: &'g Analysis,
}

pub fn transfer(plan: &Plan, from: Side<'_>, to: Side<'_>) -> Transferred {
    let source = matches(from.graph, to.graph);
    let mut notes = Notes::default();
    let mut ops: Vec<Option<OpPlan>> = (to.graph.op_ids())
        .map(|op| source[op.index()].map(|old| carry(plan.op(old), from, old, to, op, &mut notes)))
        .collect();
    follow_neighbours(to, plan.devices, &mut ops, &mut notes);
    let ops = ops.into_iter().map(|op| op.unwrap_or_else(|| everywhere(plan.devices))).collect();
    let pieces = Counterparts::new(from.graph.ops.len(), source.iter().copied());
    let order = orders(plan, to.graph, &pieces, &mut notes);
    let recompute = spans(plan, from.graph, to.graph, &pieces);
    let (offload, blocks) = (pieces.spans(&plan.offload), in_blocks(plan, to.graph, &source));
    let mut plan = Plan { ops, order, recompute, offload, blocks, ..plan.clone() };
    let mut notes = notes.print(to.graph);
    notes.extend(whole_sequence(&mut plan, to));
    Transferred { plan, notes }
}

/// Leaves out slices that the graph does not have: there is one token, or a call of the model looks ahead.
fn whole_sequence(plan: &mut Plan, to: Side<'_>) -> Option<String> {
    let refused = tokens::validate(to.graph, to.analysis, plan).err()?;
    plan.tokens = 1;
    Some(format!("the sequence is whole: {}", refused.what))
}

/// For each operator of the new graph the one of the old graph that it is.
fn matches(old: &Graph, new: &Graph) -> Vec<Option<OpId>> {
    let mut matches = vec![None; new.ops.len()];
    let mut taken = vec![false; old.ops.len()];
    for with_line in [true, false] {
        let key = |graph: &'_ Graph, op: OpId| {
            let it = graph.op(op);
            let line = if with_line { it.line.clone() } else { String::new() };
            (it.module.clone(), it.target.clone(), line)
        };
        let mut open: HashMap<_, VecDeque<OpId>> = HashMap::new();
        for op in old.op_ids().filter(|op| !taken[op.index()]) {
            open.entry(key(old, op)).or_default().push_back(op);
        }
        for op in new.op_ids() {
            let slot = &mut matches[op.index()];
            if slot.is_none() {
                *slot = open.get_mut(&key(new, op)).and_then(VecDeque::pop_front);
            }
            if let Some(old) = *slot {
                taken[old.index()] = true;
            }
        }
    }
    matches
}

/// What is recomputed, as far as it is there. A plan that follows the model does so here.
fn spans(plan: &Plan, old: &Graph, new: &Graph, pieces: &Counterparts) -> Vec<Vec<OpId>> {
    if plan.recompute == recompute::of_model(old) {
        return recompute::of_model(new);
    }
    pieces.spans(&plan.recompute)
}

/// The block of each operator; new ones go with what they read.
fn in_blocks(plan: &Plan, new: &Graph, source: &[Option<OpId>]) -> Vec<u32> {
    if plan.blocks.is_empty() {
        return vec![];
    }
    let said: Vec<Option<u32>> = source.iter().map(|old| old.map(|old| plan.block(old))).collect();
    let blocks = blocks::completed(new, &said);
    // A block of which nothing is left is none.
    let mut there: Vec<u32> = blocks.clone();
    there.sort_unstable();
    there.dedup();
    if there.len() < 2 {
        return vec![];
    }
    let number =
        |block: &u32| u32::try_from(there.partition_point(|other| other < block)).unwrap_or(u32::MAX);
    blocks.iter().map(number).collect()
}

fn carry(plan: &OpPlan, from: Side<'_>, old: OpId, to: Side<'_>, op: OpId, notes: &mut Notes) -> OpPlan {
    let (before, after) = (from.analysis.op(old), to.analysis.op(op));
    let mut splits: Vec<Split> = vec![];
    let mut same = true;
    for split in &plan.splits {
        let (on, word) = match split.on {
            On::Loop(index) => {
                let on = same_loop(before, index, after).map_or(On::Copies, On::Loop);
                (on, format!("`{}`", before.loops[index].name))
            }
            On::Value => (On::Value, "the value".to_string()),
            On::Exchange { tokens, experts } => {
                let same = |index| same_loop(before, index, after);
                let on = same(tokens)
                    .zip(same(experts))
                    .map_or(On::Copies, |(tokens, experts)| exchange::on_experts(tokens, experts));
                (on, format!("`{}` for experts", before.loops[tokens].name))
            }
            On::Copies => (On::Copies, String::new()),
        };
        let fitted = fit(to.graph, to.analysis, op, &splits, Split { on, parts: split.parts });
        let parts = divided(&fitted);
        if split.on != On::Copies && parts != split.parts {
            same = false;
            notes.add(op, &format!("{word} is split {parts} ways and not {}", split.parts));
        }
        splits.extend(fitted);
    }
    let carried = OpPlan { splits, devices: plan.devices.clone() };
    if same { carried } else { without_idle_copies(carried) }
}

/// The loop of the same name; where a dim has other factors now, the one of the same size or the
/// outermost that may be split.
fn same_loop(before: &OpDims, index: usize, after: &OpDims) -> Option<usize> {
    let name = &before.loops[index].name;
    let factors = |dims: &OpDims| -> Vec<usize> {
        (0..dims.loops.len()).filter(|&i| base(&dims.loops[i].name) == base(name)).collect()
    };
    let all = factors(after);
    if all.len() == factors(before).len() {
        return after.find(name);
    }
    let open = |&&i: &&usize| after.loops[i].kind != Kind::Whole;
    let equal = |&&i: &&usize| after.loops[i].size == before.loops[index].size;
    all.iter().filter(open).find(equal).or_else(|| all.iter().find(open)).copied()
}

fn base(name: &str) -> &str {
    name.split('.').next().unwrap_or(name)
}

/// New operators are divided as what makes their inputs, else as what reads their results.
fn follow_neighbours(to: Side<'_>, devices: u32, ops: &mut [Option<OpPlan>], notes: &mut Notes) {
    if ops.iter().all(Option::is_some) {
        return;
    }
    let classes = Classes::new(to.graph, to.analysis);
    let uses = to.graph.uses();
    let makers = |op: OpId| -> Vec<OpId> {
        let inputs = to.graph.op(op).inputs();
        inputs.into_iter().filter_map(|t| to.graph.producer(t)).map(|(maker, _)| maker).collect()
    };
    let readers = |op: OpId| -> Vec<OpId> {
        let outputs = to.graph.op(op).outputs.iter().flatten();
        outputs.flat_map(|t| &uses[t.index()]).map(|(reader, _)| *reader).collect()
    };
    let follow = |ops: &mut [Option<OpPlan>], op: OpId, neighbours: &[OpId]| {
        if ops[op.index()].is_none() {
            let known = neighbours.iter().filter_map(|n| Some((*n, ops[n.index()].as_ref()?)));
            let choices = known.map(|(n, plan)| along(to, &classes, n, plan, op));
            // The first of those that divide it most.
            let best = choices.rev().max_by_key(|plan| divided(&plan.splits));
            ops[op.index()] = best;
        }
    };
    let new: Vec<OpId> = to.graph.op_ids().filter(|op| ops[op.index()].is_none()).collect();
    new.iter().for_each(|&op| follow(ops, op, &makers(op)));
    new.iter().rev().for_each(|&op| follow(ops, op, &readers(op)));
    for op in new {
        let it = ops[op.index()].get_or_insert_with(|| everywhere(devices));
        let how = if divided(&it.splits) > 1 { "split as its neighbours are" } else { "not split" };
        notes.add(op, &format!("the plan does not mention it; it is {how}"));
    }
}

/// A neighbour's plan for another operator: split wherever that carries the neighbour's dims.
fn along(to: Side<'_>, classes: &Classes, neighbour: OpId, plan: &OpPlan, op: OpId) -> OpPlan {
    let mut splits = vec![];
    for split in &plan.splits {
        let on = match split.on {
            On::Loop(index) | On::Exchange { tokens: index, .. } => {
                let class = classes.of_loop(neighbour, index);
                classes.open_loop(to.analysis, op, class).map_or(On::Copies, On::Loop)
            }
            On::Copies | On::Value => On::Copies,
        };
        splits.extend(fit(to.graph, to.analysis, op, &splits, Split { on, parts: split.parts }));
    }
    without_idle_copies(OpPlan { splits, devices: plan.devices.clone() })
}

fn divided(splits: &[Split]) -> u32 {
    splits.iter().filter(|s| s.on != On::Copies).map(|s| s.parts).product()
}

fn everywhere(devices: u32) -> OpPlan {
    let copies = Split { on: On::Copies, parts: devices };
    OpPlan { splits: if devices > 1 { vec![copies] } else { vec![] }, devices: (0..devices).collect() }
}

/// The orders between operators that are still there, if they can all be kept.
fn orders(plan: &Plan, to: &Graph, pieces: &Counterparts, notes: &mut Notes) -> Vec<(OpId, OpId)> {
    let kept = pieces.order(&plan.order);
    if !is_order(to, &kept) {
        notes.add(kept[0].0, "the plan's order cannot be kept; operators run in the model's order");
        return vec![];
    }
    kept
}

/// Whether operators can run in the given order and after what they read.
fn is_order(graph: &Graph, order: &[(OpId, OpId)]) -> bool {
    let mut after: Vec<Vec<OpId>> = vec![vec![]; graph.ops.len()];
    let mut waits = vec![0_usize; graph.ops.len()];
    let needs = graph.op_ids().flat_map(|op| {
        let inputs = graph.op(op).inputs().into_iter();
        inputs.filter_map(|t| graph.producer(t)).map(move |(maker, _)| (maker, op)).collect::<Vec<_>>()
    });
    for (a, b) in needs.chain(order.iter().copied()) {
        after[a.index()].push(b);
        waits[b.index()] += 1;
    }
    let mut ready: Vec<OpId> = graph.op_ids().filter(|op| waits[op.index()] == 0).collect();
    let mut done = 0;
    while let Some(op) = ready.pop() {
        done += 1;
        for next in &after[op.index()] {
            waits[next.index()] -= 1;
            if waits[next.index()] == 0 {
                ready.push(*next);
            }
        }
    }
    done == graph.ops.len()
}

/// What is different, and for which operators; in the order of the first.
#[derive(Default)]
struct Notes(Vec<(String, Vec<OpId>)>);

impl Notes {
    fn add(&mut self, op: OpId, what: &str) {
        match self.0.iter_mut().find(|(said, _)| said == what) {
            Some((_, ops)) => ops.push(op),
            None => self.0.push((what.into(), vec![op])),
        }
    }

    fn print(&self, graph: &Graph) -> Vec<String> {
        let line = |(what, ops): &(String, Vec<OpId>)| {
            let more = if ops.len() > 1 { format!(" (and {} more)", ops.len() - 1) } else { String::new() };
            format!("{}{more}: {what}", graph.describe(ops[0]))
        };
        self.0.iter().map(line).collect()
    }
}
