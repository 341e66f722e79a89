//! What must have happened by the end: updates, and every gradient of a parameter, whole and once.

use std::collections::{BTreeMap, BTreeSet};

use graph::{OpId, Source, TensorId};
use program::{BufId, GroupingId, Instr, LeafId, Of, PerRank, Program};
use rules::Interval;

use crate::fault::Fault;
use crate::fold::summed;
use crate::held::Held;
use crate::local::drawn_by;
use crate::outgoing;
use crate::region::region_text;
use crate::share::{EMPTY, ListId, Quantity, WHOLE};
use crate::state::{Context, Rank};
use crate::sum::complete;
use crate::sweep::sweep;
use crate::symmetry::agree;

pub(crate) fn reduce_gradients(
    cx: &mut Context<'_>,
    ranks: &mut [Rank<'_>],
    group: GroupingId,
    members: &[usize],
    instrs: &[&Instr],
) -> Result<(), Fault> {
    let lists: Vec<&[LeafId]> = instrs.iter().filter_map(|instr| leaves(instr)).collect();
    if lists.iter().any(|list| list.len() != lists[0].len()) {
        return Err(Fault::new("SW0508", "the ranks of one group reduce different numbers of gradients"));
    }
    for position in 0..lists[0].len() {
        let leaves: Vec<usize> = lists.iter().map(|list| list[position].index()).collect();
        reduce_leaf(cx, ranks, group, members, &leaves)?;
    }
    Ok(())
}

fn leaves<'i>(instr: &&'i Instr) -> Option<&'i [LeafId]> {
    match instr {
        Instr::ReduceGradients { leaves, .. } => Some(leaves),
        _ => None,
    }
}

fn reduce_leaf(
    cx: &mut Context<'_>,
    ranks: &mut [Rank<'_>],
    group: GroupingId,
    members: &[usize],
    leaves: &[usize],
) -> Result<(), Fault> {
    let states: Vec<_> = members.iter().zip(leaves).map(|(&m, &leaf)| ranks[m].leaves[leaf]).collect();
    let first = states[0];
    if let Some(other) = states.iter().find(|s| s.tensor != first.tensor || s.region != first.region) {
        let text =
            |tensor: TensorId, region| format!("{}{}", cx.name(tensor), cx.region_text(tensor, region));
        let (expected, actual) = (text(first.tensor, first.region), text(other.tensor, other.region));
        return Err(Fault::new("SW0508", "gradients of different things are reduced")
            .why(format!("expected {expected} on every rank of the group, found {actual}")));
    }
    let quantity = Quantity { tensor: first.tensor, grad: true };
    let held = states.iter().map(|state| Held { of: quantity, region: state.region, share: state.gradient });
    let gradient = summed(cx, ranks, group, members, held.collect())?;
    for (&member, &leaf) in members.iter().zip(leaves) {
        let state = &mut ranks[member].leaves[leaf];
        (state.gradient, state.sealed) = (gradient, true);
    }
    Ok(())
}

pub(crate) fn update(cx: &mut Context<'_>, rank: &mut Rank<'_>, shard: usize, from: BufId) {
    let Some(held) = rank.held(from) else { return };
    if let Err(fault) = updated(cx, rank, shard, held) {
        cx.refuse(rank, fault);
    }
    rank.updated[shard] = true;
}

fn updated(cx: &Context<'_>, rank: &Rank<'_>, index: usize, held: Held) -> Result<(), Fault> {
    let (tensor, part) = (rank.own.table.shards[index].tensor, rank.own.shard(index));
    let name = cx.name(tensor);
    let Some(value) = new_value(cx, tensor) else {
        return Err(Fault::new("SW0513", format!("{name} is updated, but the model does not update it")));
    };
    if rank.updated[index] {
        return Err(Fault::new("SW0513", format!("{name} is updated twice")));
    }
    if rank.own.table.copies.iter().any(|copy| copy.shard == index) {
        let what = format!("{name} is updated, but gathered copies of it keep the old value");
        return Err(Fault::new("SW0513", what));
    }
    let factors = |t: TensorId| &cx.facts.analysis.factors[t.index()];
    let whole = |t: TensorId, region: &[Interval]| {
        factors(t).iter().flatten().zip(region).all(|(&size, i)| *i == Interval::whole(size))
    };
    let region = cx.store.region(held.region);
    let same = factors(tensor) == factors(value)
        && agree(cx.facts, value, region, &part.0).is_some_and(|there| there == *part.0);
    let all = whole(tensor, &part.0) && whole(value, region);
    if held.of == (Quantity { tensor: value, grad: false }) && held.share == WHOLE && (same || all) {
        return Ok(());
    }
    let share = if held.share == WHOLE { "" } else { "a part of the sum of " };
    let expected = region_text(factors(tensor), &part.0);
    Err(Fault::new("SW0513", format!("{name} is updated with something else than its new value")).why(
        format!("expected %{}{expected}, found {share}{}", cx.facts.graph.tensor(value).name, cx.text(held)),
    ))
}

/// What a buffer or parameter of the model becomes.
fn new_value(cx: &Context<'_>, tensor: TensorId) -> Option<TensorId> {
    cx.facts.graph.new_value(tensor).map(|value| cx.facts.class(value))
}

/// Everything that must hold once all ranks are at their ends.
pub(crate) fn finish(cx: &mut Context<'_>, ranks: &[Rank<'_>], trains: bool) {
    for rank in ranks {
        outgoing::outputs(cx, rank);
        updates(cx, rank);
        if trains {
            gradients(cx, rank);
            outgoing::gradients(cx, rank);
        }
        if cx.faults.is_full() {
            return;
        }
    }
}

/// What must hold of all ranks together, those that are not followed among them.
pub(crate) fn all_of_it(cx: &mut Context<'_>, program: &Program) {
    drawn_apart(cx, program);
    outgoing::together(cx, program);
    covered(cx, program);
}

fn updates(cx: &mut Context<'_>, rank: &Rank<'_>) {
    for (shard, updated) in rank.own.table.shards.iter().zip(&rank.updated) {
        if !updated && new_value(cx, shard.tensor).is_some() {
            let fault = Fault::new("SW0513", format!("{} is not updated", cx.name(shard.tensor)));
            cx.faults.push(fault.at(rank.id, None));
        }
    }
}

fn gradients(cx: &mut Context<'_>, rank: &Rank<'_>) {
    let mut leaves: Vec<Vec<usize>> = vec![vec![]; rank.own.table.shards.len()];
    for (leaf, state) in rank.leaves.iter().enumerate().filter(|(_, state)| !state.exchanged) {
        // A copy's is not the part's, unless there is none.
        if matches!(rank.own.leaf(leaf).0, Of::Copy(_)) {
            if state.gradient != EMPTY {
                let what = format!("the gradient of {} does not reach its shards", cx.name(state.tensor));
                cx.faults.push(Fault::new("SW0511", what).at(rank.id, None));
            }
            continue;
        }
        leaves[state.shard].push(leaf);
    }
    for (index, shard) in rank.own.table.shards.iter().enumerate() {
        if !cx.facts.reached(shard.tensor) {
            continue;
        }
        let region = cx.store.intervals.number(&rank.own.shard(index).0);
        let quantity = Quantity { tensor: shard.tensor, grad: true };
        let mut shares = vec![rank.shards[index]];
        for &leaf in &leaves[index] {
            let state = rank.leaves[leaf];
            shares.push(cx.store.placed(state.gradient, state.region, region));
        }
        if let Err(fault) = complete(cx, quantity, region, &shares) {
            cx.faults.push(fault.at(rank.id, None));
        }
    }
}

/// Every element of every parameter, and of every buffer that changes, lies somewhere.
fn covered(cx: &mut Context<'_>, program: &Program) {
    let mut regions = vec![vec![]; cx.facts.graph.tensors.len()];
    for shard in program.roles.iter().flat_map(|role| &role.table.shards) {
        let parts = shard.region.values().iter().map(|region| cx.store.intervals.number(&region.0));
        regions[shard.tensor.index()].extend(parts);
    }
    for (id, mut regions) in cx.facts.graph.tensor_ids().zip(regions) {
        let param = matches!(cx.facts.graph.tensor(id).source, Source::Param { .. });
        if !param && new_value(cx, id).is_none() {
            continue;
        }
        regions.sort_unstable();
        regions.dedup();
        let lists: Vec<&[Interval]> = regions.iter().map(|region| cx.store.region(*region)).collect();
        let space: Vec<Interval> = cx.facts.analysis.flat(id).into_iter().map(Interval::whole).collect();
        let missing = sweep(&space, &lists, &mut |inside, _| inside.is_empty().then_some(()));
        if missing.is_some() {
            cx.faults.push(Fault::new("SW0514", format!("some elements of {} are on no rank", cx.name(id))));
        }
    }
}

/// Parts of one random operator draw for the same region, or for regions apart from each other.
fn drawn_apart(cx: &mut Context<'_>, program: &Program) {
    let mut drawn: BTreeMap<OpId, BTreeSet<ListId>> = BTreeMap::new();
    for (op, role, slot) in std::mem::take(&mut cx.finder.drawn) {
        let regions = drawn_by(&program.roles[role].table, cx.facts, op, slot).map(PerRank::values);
        let regions = regions.into_iter().flatten().map(|region| cx.store.intervals.number(&region.0));
        drawn.entry(op).or_default().extend(regions);
    }
    for (op, regions) in drawn {
        let lists: Vec<&[Interval]> = regions.iter().map(|region| cx.store.region(*region)).collect();
        let Some(tensor) = cx.facts.op(op).outputs.iter().flatten().next() else { continue };
        let space: Vec<Interval> = cx.facts.analysis.flat(*tensor).into_iter().map(Interval::whole).collect();
        let overlap = sweep(&space, &lists, &mut |inside, _| (inside.len() > 1).then_some(()));
        if overlap.is_some() {
            let fault =
                Fault::new("SW0515", "parts of a random operator that overlap draw different numbers");
            cx.faults.push(fault.operator(cx.facts.graph.describe(op)));
        }
    }
}
